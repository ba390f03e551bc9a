/** Export and import of everything. */
import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { Button, Dialog, Field, Notice, Progress } from './kit.js';
import { attempt } from './actions.js';
import { call, importing, link } from './link.js';
import { chooseTarget, saveStream } from './save-stream.js';
import { Problem } from './screen.js';
import { Section } from './section.js';
import { text } from './strings.js';
import { pagesText } from './strings-pages.js';
import { useTask } from './task.js';
import { PHRASE_WORDS, wordsIn } from './typed.js';

const words = pagesText.settings.archive;

/** The section of the settings about the archive. */
export function ArchiveSection(): JSX.Element {
  const [asked, setAsked] = useState<'export' | 'import' | null>(null);
  const close = (): void => setAsked(null);
  return (
    <Section title={words.title}>
      <p class="quiet">{words.lead}</p>
      <div class="line wrap">
        <Button onClick={() => setAsked('export')}>{words.export}</Button>
        <Button onClick={() => setAsked('import')}>{words.import}</Button>
      </div>
      {asked === 'export' && <ExportDialog onClose={close} />}
      {asked === 'import' && <ImportDialog onClose={close} />}
    </Section>
  );
}

interface AskProps {
  readonly onClose: () => void;
}

/** Local date, as `2026-11-23`. */
const today = (): string => new Date().toLocaleDateString('sv-SE');

/** `lead`: an additional first paragraph. */
export function ExportDialog({ onClose, lead }: AskProps & { readonly lead?: string }): JSX.Element {
  const [phrase, setPhrase] = useState('');
  const [tried, setTried] = useState(false);
  const [written, setWritten] = useState(0);
  const [whole, setWhole] = useState<number | null>(null);
  const task = useTask();
  const stop = useRef(new AbortController());
  useEffect(() => () => stop.current.abort(), []);
  const typed = wordsIn(phrase);
  const wrong = task.problem?.code === 'wrong_words';
  const submit = (): void => {
    setTried(true);
    if (typed.length !== PHRASE_WORDS) return;
    setWhole(null);
    task.run(async () => {
      const target = await chooseTarget(`${location.hostname}-${today()}.vault`);
      if (target === null) return;
      const source = link().read('archive', { phrase: typed.join(' ') });
      setWhole(await saveStream(source, target, { onBytes: setWritten, stop: stop.current.signal }));
      setPhrase('');
    });
  };
  return (
    <Dialog
      title={words.exportTitle}
      onClose={onClose}
      onSubmit={submit}
      actions={
        <>
          <Button onClick={onClose}>{task.busy ? words.stop : text.kit.close}</Button>
          {whole === null && (
            <Button kind="primary" submit busy={task.busy}>
              {words.choose}
            </Button>
          )}
        </>
      }
    >
      {whole === null ? (
        <>
          {lead !== undefined && <p>{lead}</p>}
          <p>{words.exportLead}</p>
          <PhraseField label={words.phrase} value={phrase} onValue={setPhrase} tried={tried} wrong={wrong} />
        </>
      ) : (
        <Notice kind="good" live>
          {words.exported(whole)}
        </Notice>
      )}
      {task.busy && <Working label={words.written(written)} />}
      <Problem problem={wrong ? null : task.problem} />
    </Dialog>
  );
}

function ImportDialog({ onClose }: AskProps) {
  const [phrase, setPhrase] = useState('');
  const [file, setFile] = useState<File | null>(null);
  const [tried, setTried] = useState(false);
  const [result, setResult] = useState<readonly string[] | null>(null);
  const task = useTask();
  const typed = wordsIn(phrase);
  // Also of an import that was started before this dialog was opened.
  const progress = importing.value ?? { done: 0, total: 0 };
  const running = progress.total > 0;
  const submit = (): void => {
    setTried(true);
    if (file === null || typed.length !== PHRASE_WORDS) return;
    task.run(async () => {
      setResult(words.imported(await call('importArchive', { file, phrase: typed.join(' ') })));
      setPhrase('');
    });
  };
  return (
    <Dialog
      title={words.importTitle}
      onClose={onClose}
      onSubmit={submit}
      actions={
        <>
          <Button onClick={onClose}>{text.kit.close}</Button>
          {running ? (
            <Button onClick={() => void attempt(call('importStop'))}>{words.stop}</Button>
          ) : (
            result === null && (
              <Button kind="primary" submit busy={task.busy}>
                {words.import}
              </Button>
            )
          )}
        </>
      }
    >
      {result === null ? (
        <>
          <p>{words.importLead}</p>
          <FileField error={tried && file === null ? words.noFile : null} onFile={setFile} />
          <PhraseField label={words.phraseOfFile} value={phrase} onValue={setPhrase} tried={tried} />
        </>
      ) : (
        <Notice kind="good" live>
          {result.map((line) => (
            <p key={line}>{line}</p>
          ))}
        </Notice>
      )}
      {running ? (
        <Working label={words.importing(progress.done, progress.total)} share={progress.done / progress.total} />
      ) : (
        task.busy && <Working label={words.reading} />
      )}
      <Problem problem={task.problem} />
    </Dialog>
  );
}

function FileField({ error, onFile }: { readonly error: string | null; readonly onFile: (file: File | null) => void }) {
  return (
    <div class="field">
      <label class="label" for="archive-file">
        {words.file}
      </label>
      <input
        id="archive-file"
        class="file-field"
        type="file"
        aria-invalid={error === null ? undefined : true}
        onChange={(event) => onFile(event.currentTarget.files?.[0] ?? null)}
      />
      {error !== null && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
    </div>
  );
}

function PhraseField(props: {
  readonly label: string;
  readonly value: string;
  readonly onValue: (value: string) => void;
  readonly tried: boolean;
  /** Twelve words, but not the right ones. */
  readonly wrong?: boolean;
}) {
  const count = wordsIn(props.value).length;
  return (
    <Field
      kind="lines"
      mono
      label={props.label}
      value={props.value}
      onValue={props.onValue}
      hint={text.begin.recover.count(count)}
      error={props.tried && count !== PHRASE_WORDS ? words.words : props.wrong === true ? words.notThese : null}
    />
  );
}

function Working({ label, share = null }: { readonly label: string; readonly share?: number | null }) {
  return (
    <div class="stack tight">
      <Progress label={label} value={share} />
      <p class="quiet small numbers">{label}</p>
    </div>
  );
}
