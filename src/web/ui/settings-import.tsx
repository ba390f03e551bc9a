/** Import of what other programs exported: a file is chosen and read, what it holds is shown, and then written. */
import { signal } from '@preact/signals';
import { useEffect, useRef, useState } from 'preact/hooks';
import type { ComponentChildren } from 'preact';
import type { ForeignPreview, ForeignRead, Imported } from '../link/messages.js';
import { newItemId } from '../random.js';
import { attempt } from './actions.js';
import { Button, Field, Labelled, Notice, OneLine, openDialog, Points, Progress, toast, useTyped } from './kit.js';
import type { Closable, FieldProps, Typed } from './kit.js';
import { call, importing, problemOf } from './link.js';
import { FormDialog, useForm, type FormDialogProps } from './screen.js';
import { Section } from './section.js';
import * as text from './strings.js';
import { pagesText } from './strings-pages.js';
import { asksToLeave } from './unsaved.js';

const words = pagesText.settings.foreign;
const archive = pagesText.settings.archive;

interface Outcome {
  readonly kind: 'good' | 'danger';
  readonly lines: readonly string[];
}

/** The outcome of an import whose dialog was closed before the import ended. */
const unseen = signal<Outcome | null>(null);

/** Imports that run. */
let running = 0;

asksToLeave(() => running > 0 || unseen.value !== null);

/** Runs imports for a dialog, and has the outcome; after the dialog was closed, the settings have it. */
export function useOutcome() {
  const [lines, setLines] = useState<readonly string[] | null>(null);
  const shown = useRef(true);
  useEffect(() => () => void (shown.current = false), []);
  const later = (outcome: Outcome): void => {
    unseen.value = outcome;
    toast(words.ended);
  };
  const run = async (work: Promise<Imported>): Promise<void> => {
    running++;
    try {
      const imported = archive.imported(await work);
      if (shown.current) setLines(imported);
      else later({ kind: 'good', lines: imported });
    } catch (error) {
      if (shown.current) throw error;
      later({ kind: 'danger', lines: [text.problem(problemOf(error))] });
    } finally {
      running--;
    }
  };
  return { lines, run };
}

/** The section of the settings about other programs. */
export function ImportSection() {
  const last = unseen.value;
  return (
    <Section title={words.title}>
      <p class="quiet">{words.lead}</p>
      {last !== null && (
        <Notice kind={last.kind} title={words.ended} onDismiss={() => (unseen.value = null)}>
          <Lines lines={last.lines} />
        </Notice>
      )}
      <div class="line">
        <Button onClick={() => openDialog(ForeignDialog)} label={words.open} />
      </div>
    </Section>
  );
}

function ForeignDialog({ onClose }: Closable) {
  const [id] = useState(newItemId);
  const [file, setFile] = useState<File | null>(null);
  const [keyFile, setKeyFile] = useState<File | null>(null);
  const [last, setLast] = useState<{ readonly of: File; readonly answer: ForeignRead } | null>(null);
  const password = useTyped();
  const outcome = useOutcome();
  // An import that runs goes on.
  useEffect(() => () => void call('foreignDrop', id).catch(() => undefined), []);
  // Another file may have been chosen while that one was read.
  const read = last?.of === file ? last?.answer : undefined;
  const locked = read?.step === 'locked' ? read : null;
  const preview = read?.step === 'read' ? read : null;
  const next = async (): Promise<void> => {
    if (preview !== null) return outcome.run(call('foreignImport', id));
    if (file === null) return;
    const typed = locked === null ? null : password.value;
    const answer = await call('foreignRead', { id, file, password: typed, keyFile: locked === null ? null : keyFile });
    setLast({ of: file, answer });
    // It has done its work: while the preview is shown, nothing needs it.
    if (answer.step === 'read') password.onValue('');
  };
  const form = useForm(file !== null, next);
  const choose = (chosen: File | null): void => {
    setFile(chosen);
    setKeyFile(null);
    password.onValue('');
  };
  const action = preview === null ? words.read : preview.items === 0 ? null : words.importAll(preview.items);
  return (
    <ImportFrame
      {...{ form, action, onClose }}
      title={words.title}
      lines={outcome.lines && [...outcome.lines, words.deleteFile]}
      reading={words.reading}
      other={preview !== null && <Button onClick={() => choose(null)} label={words.another} />}
    >
      {preview !== null ? (
        <Preview {...preview} />
      ) : (
        <Chooser
          locked={locked}
          password={password}
          missing={form.tried && file === null}
          onFile={choose}
          onKeyFile={setKeyFile}
        />
      )}
    </ImportFrame>
  );
}

interface ImportFrameProps extends Pick<FormDialogProps, 'title' | 'action' | 'form' | 'onClose' | 'children'> {
  /** The outcome; null: there is none yet. */
  readonly lines: readonly string[] | null;
  /** Says that the file is read. */
  readonly reading: string;
  /** A button before the one that closes the dialog, while nothing is read or written. */
  readonly other?: ComponentChildren;
}

/** The dialog of an import: what it needs (`children`), its progress and its outcome. */
export function ImportFrame({ lines, reading, other, children, ...dialog }: ImportFrameProps) {
  // Also of an import that was started before this dialog was opened.
  const { done, total } = importing.value ?? { done: 0, total: 0 };
  const over = lines !== null || total > 0;
  const { busy } = dialog.form;
  return (
    <FormDialog
      {...dialog}
      action={over ? null : dialog.action}
      other={
        <>
          {!over && !busy && other}
          <Button onClick={dialog.onClose} label={text.kit.close} />
          {total > 0 && <Button onClick={() => void attempt(call('importStop'))} label={archive.stop} />}
        </>
      }
    >
      {lines === null ? (
        children
      ) : (
        <Notice kind="good" live>
          <Lines lines={lines} />
        </Notice>
      )}
      {total > 0 && <Working label={archive.importing(done, total)} share={done / total} />}
      {total === 0 && busy && <Working label={reading} />}
    </FormDialog>
  );
}

function Lines({ lines }: Pick<Outcome, 'lines'>) {
  return (
    <>
      {lines.map((line) => (
        <p key={line}>{line}</p>
      ))}
    </>
  );
}

interface ChooserProps {
  readonly locked: (ForeignRead & { readonly step: 'locked' }) | null;
  readonly password: Typed;
  /** True: it was submitted without a file. */
  readonly missing: boolean;
  readonly onFile: (file: File | null) => void;
  readonly onKeyFile: (file: File | null) => void;
}

/** The file, and what opens it where it is locked. */
function Chooser({ locked, password, missing, onFile, onKeyFile }: ChooserProps) {
  return (
    <>
      <p>{words.dialogLead}</p>
      <FileField id="foreign-file" label={words.file} error={missing && archive.noFile} onFile={onFile} />
      {locked !== null && (
        <Field
          {...password}
          kind="secret"
          autoComplete="current-password"
          autoFocus
          label={words.password}
          error={locked.wrong && words.wrong}
        />
      )}
      {locked?.program === 'keepass' && <FileField id="key-file" label={words.keyFile} onFile={onKeyFile} />}
      <p class="quiet small">
        <a href="/docs/importing" target="_blank" rel="noreferrer">
          {words.how}
        </a>
      </p>
    </>
  );
}

/** What the file holds, what it becomes, and what stays behind. */
function Preview({ from, entries, types, into, here, withOriginal, leftOut, marks, items }: ForeignPreview) {
  const rest = [
    ...(here > 0 ? [words.here(here)] : []),
    ...(withOriginal > 0 ? [words.withOriginal(withOriginal)] : []),
    ...leftOut.map(({ reason, entries: count }) => words.left(count, reason)),
    ...marks.map(({ mark, entries: count }) => words.mark(count, text.safeText(mark))),
  ];
  return (
    <>
      <p>{words.holds(from, entries, items, into.length)}</p>
      {items > 0 && (
        <Points points={types.map((one) => `${text.list.kinds(one.type)}: ${one.items.toLocaleString()}`)} />
      )}
      {items > 0 && (
        <details>
          <summary>{words.bins(into.length)}</summary>
          <ul class="points stack">
            {into.map(({ name, items: count }) => (
              <li key={name}>
                <OneLine value={name === '' ? text.list.defaultBin : name} /> ({count.toLocaleString()})
              </li>
            ))}
          </ul>
        </details>
      )}
      {rest.length > 0 && <Points points={rest} />}
    </>
  );
}

export function Working({ label, share = null }: { label: string; share?: number | null }) {
  return (
    <div class="stack tight">
      <Progress label={label} value={share} />
      <p class="quiet small numbers">{label}</p>
    </div>
  );
}

interface FileFieldProps extends Pick<FieldProps, 'label' | 'error'> {
  readonly id: string;
  readonly onFile: (file: File | null) => void;
}

export function FileField({ id, label, error, onFile }: FileFieldProps) {
  return (
    <Labelled id={id} label={label} error={error}>
      <input
        id={id}
        class="file-field"
        type="file"
        aria-invalid={error ? true : undefined}
        onChange={(event) => onFile(event.currentTarget.files?.[0] ?? null)}
      />
    </Labelled>
  );
}
