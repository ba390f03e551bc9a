/** Export and import of everything. An export is saved directly to disk, or as a download in browsers without that. */
import { useEffect, useRef, useState } from 'preact/hooks';
import { PHRASE_WORDS } from '../../protocol/limits.js';
import { Button, Field, Notice, openDialog, useTyped, type Closable, type Typed } from './kit.js';
import { call, link } from './link.js';
import { FormDialog, useForm } from './screen.js';
import { Section } from './section.js';
import { FileField, ImportFrame, useOutcome, Working } from './settings-import.js';
import * as text from './strings.js';
import { pagesText } from './strings-pages.js';
import { wordsIn } from './typed.js';
import { saveBlob } from './content.js';

const words = pagesText.settings.archive;

/** The section of the settings about the archive. */
export function ArchiveSection() {
  return (
    <Section title={words.title}>
      <p class="quiet">{words.lead}</p>
      <div class="line wrap">
        <Button onClick={() => openDialog(ExportDialog)} label={words.export} />
        <Button onClick={() => openDialog(ImportDialog)} label={words.import} />
      </div>
    </Section>
  );
}

/** Local date, as `2026-11-23`. */
const today = (): string => new Date().toLocaleDateString('sv-SE');

/** `lead`: an additional first paragraph. */
export function ExportDialog({ onClose, lead }: Closable & { lead?: string }) {
  const phrase = useTyped();
  const [written, setWritten] = useState(0);
  const [whole, setWhole] = useState<number | null>(null);
  const stop = useRef(new AbortController());
  useEffect(() => () => stop.current.abort(), []);
  const typed = wordsIn(phrase.value);
  const save = async (): Promise<void> => {
    const target = await chooseTarget(`${location.hostname}-${today()}.vault`);
    if (target === null) return;
    const source = link().read('archive', { phrase: typed.join(' ') });
    setWhole(await saveStream(source, target, { onBytes: setWritten, stop: stop.current.signal }));
    phrase.onValue('');
  };
  const form = useForm(typed.length === PHRASE_WORDS, save);
  const wrong = form.problem?.code === 'wrong_words';
  return (
    <FormDialog
      title={words.exportTitle}
      action={whole === null ? words.choose : null}
      form={form}
      problemInField={wrong}
      other={<Button onClick={onClose} label={form.busy ? words.stop : text.kit.close} />}
      onClose={onClose}
    >
      {whole === null ? (
        <>
          {lead !== undefined && <p>{lead}</p>}
          <p>{words.exportLead}</p>
          <PhraseField {...phrase} label={text.begin.phrase.list} tried={form.tried} wrong={wrong} />
        </>
      ) : (
        <Notice kind="good" live>
          {words.exported(whole)}
        </Notice>
      )}
      {form.busy && <Working label={words.written(written)} />}
    </FormDialog>
  );
}

function ImportDialog({ onClose }: Closable) {
  const phrase = useTyped();
  const [file, setFile] = useState<File | null>(null);
  const { lines, run } = useOutcome();
  const typed = wordsIn(phrase.value);
  const take = async (): Promise<void> => {
    if (file === null) return;
    await run(call('importArchive', { file, phrase: typed.join(' ') }));
    phrase.onValue('');
  };
  const form = useForm(file !== null && typed.length === PHRASE_WORDS, take);
  return (
    <ImportFrame {...{ form, lines, onClose }} title={words.importTitle} action={words.import} reading={words.reading}>
      <p>{words.importLead}</p>
      <FileField
        id="archive-file"
        label={words.file}
        error={form.tried && file === null && words.noFile}
        onFile={setFile}
      />
      <PhraseField {...phrase} label={words.phraseOfFile} tried={form.tried} />
    </ImportFrame>
  );
}

interface PhraseFieldProps extends Typed {
  readonly label: string;
  readonly tried: boolean;
  /** Twelve words, but not the right ones. */
  readonly wrong?: boolean;
}

function PhraseField({ tried, wrong = false, ...field }: PhraseFieldProps) {
  const count = wordsIn(field.value).length;
  const error = tried && count !== PHRASE_WORDS ? words.words : wrong && words.notThese;
  return <Field kind="lines" mono {...field} hint={text.begin.recover.count(count)} error={error} />;
}

/** Received bytes are moved into blobs of about this size, which are outside of the page's memory. */
const PIECE_BYTES = 4 * 1024 * 1024;

/** What a `FileSystemWritableFileStream` has; its functions are awaited. */
interface Target {
  readonly write: (bytes: Uint8Array<ArrayBuffer>) => unknown;
  readonly close: () => unknown;
  readonly abort: () => unknown;
}

interface Picker {
  showSaveFilePicker?: (options: { suggestedName: string }) => Promise<FileSystemFileHandle>;
}

/** Must be called in a click handler: browsers open the file picker only then. Null: the user cancelled. */
async function chooseTarget(suggestedName: string): Promise<Target | null> {
  const pick = (globalThis as Picker).showSaveFilePicker;
  if (pick === undefined) return asDownload(suggestedName);
  try {
    const file = await pick({ suggestedName });
    return await file.createWritable();
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') return null;
    throw error;
  }
}

function asDownload(name: string): Target {
  const pieces: Blob[] = [];
  let waiting: Uint8Array<ArrayBuffer>[] = [];
  let size = 0;
  const gather = (): void => {
    pieces.push(new Blob(waiting));
    [waiting, size] = [[], 0];
  };
  return {
    write: (bytes) => {
      waiting.push(bytes);
      size += bytes.length;
      if (size >= PIECE_BYTES) gather();
    },
    close: () => {
      gather();
      saveBlob(new Blob(pieces, { type: 'application/octet-stream' }), name);
    },
    // Nothing was saved: what was gathered is freed with this target.
    abort: () => undefined,
  };
}

/** Writes all of `source`. `onBytes` gets the number of bytes so far; a stop leaves no file. Returns the total. */
export async function saveStream(
  source: AsyncIterable<Uint8Array>,
  target: Target,
  { onBytes, stop }: { readonly onBytes: (written: number) => void; readonly stop: AbortSignal },
): Promise<number> {
  let written = 0;
  try {
    for await (const bytes of source) {
      stop.throwIfAborted();
      await target.write(new Uint8Array(bytes));
      onBytes((written += bytes.length));
    }
    stop.throwIfAborted();
  } catch (error) {
    await target.abort();
    throw error;
  }
  await target.close();
  return written;
}
