/**
 * Common parts of the screens: work that a button or form starts, a step in one column with a heading that takes the
 * focus, errors, texts to be copied, and dialogs that do one thing.
 */
import { useSignal } from '@preact/signals';
import { Check, Copy, type LucideIcon } from 'lucide-preact';
import { Fragment, type ComponentChildren } from 'preact';
import { useState, useLayoutEffect, useRef } from 'preact/hooks';
import type { Failure } from '../link/messages.js';
import { Button, Notice, submits, Dialog, openDialog, type Closable } from './kit.js';
import { problemOf } from './link.js';
import type { PasskeyError } from './passkey.js';
import * as text from './strings.js';

export type Task = ReturnType<typeof useTask>;

/** One piece of work at a time. */
export function useTask() {
  const state = useSignal<{ busy: boolean; problem: Failure | null }>({ busy: false, problem: null });
  const end = (problem: Failure | null): void => void (state.value = { busy: false, problem });
  /** Runs `work` and then `done`, unless something runs already. */
  const run = (work: () => Promise<unknown>, done?: () => void): void => {
    if (state.peek().busy) return;
    state.value = { busy: true, problem: null };
    work()
      .then(done)
      .then(
        () => end(null),
        (error: unknown) => end(problemOf(error)),
      );
  };
  const { busy, problem } = state.value;
  /** The properties of a button that does so. */
  const button = (...what: Parameters<typeof run>) => ({ busy, onClick: () => run(...what) });
  return { busy, problem, run, button };
}

type Form = ReturnType<typeof useForm>;

/**
 * The task of a form: `submit` runs `work` and then `done`, if what was typed is `valid`. `tried`: it was submitted, and
 * from then on shows what is not valid.
 */
export function useForm(valid: boolean, work: () => Promise<unknown>, done?: () => void) {
  const task = useTask();
  const [tried, setTried] = useState(false);
  const submit = (): void => {
    setTried(true);
    if (valid) task.run(work, done);
  };
  return { ...task, tried, submit };
}

interface ScreenProps {
  readonly title: string;
  readonly icon?: LucideIcon;
  readonly children?: ComponentChildren;
  readonly onSubmit?: () => void;
}

/**
 * One step. Steps that follow each other need a `key`, so that the heading of each, or its element with `autoFocus`,
 * gets the focus and is read.
 */
export function Screen({ title, icon: Sign, children, onSubmit }: ScreenProps) {
  const heading = useRef<HTMLHeadingElement>(null);
  useLayoutEffect(() => {
    const asked = heading.current?.closest('main')?.querySelector<HTMLElement>('[autofocus]');
    (asked ?? heading.current)?.focus();
  }, []);
  return (
    <main class="screen">
      <form class="step stack" noValidate onSubmit={submits(() => onSubmit?.())}>
        <header class="stack tight no-print">
          <p class="step-host line small quiet">
            {Sign !== undefined && <Sign />}
            <bdi>{location.host}</bdi>
          </p>
          <h1 ref={heading} tabIndex={-1}>
            {title}
          </h1>
        </header>
        {children}
      </form>
    </main>
  );
}

interface ProblemProps {
  readonly problem: Failure | null;
  readonly title?: string;
  readonly actions?: ComponentChildren;
  /** The screen's messages for a `PasskeyError`. */
  readonly passkey?: Readonly<Record<PasskeyError['code'], string>>;
}

/** An error, announced by screen readers. Nothing for null. */
export function Problem({ problem, passkey, ...notice }: ProblemProps) {
  if (problem === null) return null;
  const own = problem.name === 'PasskeyError' ? passkey?.[problem.code as PasskeyError['code']] : undefined;
  return (
    <Notice {...notice} kind={own === undefined ? 'danger' : 'warn'} live>
      {own ?? text.problem(problem)}
    </Notice>
  );
}

/** Something is under way; the children say what. */
export function Waiting({ children }: { children?: ComponentChildren }) {
  return (
    <p class="step-waiting line quiet" role="status">
      <span class="turning" aria-hidden="true" /> {children}
    </p>
  );
}

/** A text to be copied: a command, a fingerprint. It breaks between words, and within one only if that is too long. */
export function Copyable({ value, label }: { value: string; label: string }) {
  return (
    <div class="copyable line">
      <code class="grow" dir="ltr">
        {value.split(' ').map((word, at) => (
          <Fragment key={at}>
            {at > 0 && ' '}
            <span>{word}</span>
          </Fragment>
        ))}
      </code>
      <CopyButton value={value} label={label} />
    </div>
  );
}

/** Copies a text that is not a secret. `kind` `plain`: the label is visible. */
export function CopyButton(props: { value: string; label: string; kind?: 'icon' | 'plain' }) {
  const { value, label, kind = 'icon' } = props;
  const [state, setState] = useState<'copied' | 'notCopied' | null>(null);
  const copy = async (): Promise<void> => {
    await navigator.clipboard.writeText(value);
    setState('copied');
  };
  return (
    <Button
      kind={kind}
      icon={state === 'copied' ? Check : Copy}
      label={state === null ? label : text.kit[state]}
      onClick={() => void copy().catch(() => setState('notCopied'))}
    />
  );
}

export interface FormDialogProps extends Closable {
  readonly title: string;
  /** Label of the button; null: none is shown. */
  readonly action: string | null;
  readonly danger?: boolean;
  readonly disabled?: boolean;
  readonly form: Form;
  /** True: a field shows the problem, so it is not repeated below the fields. */
  readonly problemInField?: boolean;
  /** A button before the main one. */
  readonly other?: ComponentChildren;
  readonly children: ComponentChildren;
}

/** Enter and the button submit it; a problem is shown below the fields. */
export function FormDialog(props: FormDialogProps) {
  const { title, action, danger = false, disabled, form, problemInField = false, other, onClose, children } = props;
  return (
    <Dialog
      title={title}
      onClose={onClose}
      onSubmit={form.submit}
      actions={
        <>
          {other}
          {action !== null && (
            <Button kind={danger ? 'danger' : 'primary'} submit busy={form.busy} disabled={disabled} label={action} />
          )}
        </>
      }
    >
      {children}
      <Problem problem={problemInField ? null : form.problem} />
    </Dialog>
  );
}

/** A question before something is done. */
interface ConfirmProps extends Closable {
  readonly title: string;
  /** Label of the button. */
  readonly action: string;
  /** Done for a yes; the dialog is closed when it has succeeded, and shows the problem otherwise. */
  readonly onYes: () => unknown;
  readonly children?: ComponentChildren;
  /** Shown instead of `children` while it is done. */
  readonly meanwhile?: ComponentChildren;
  readonly disabled?: boolean;
  /** Offered beside the problem, where it has failed. */
  readonly instead?: Pick<ConfirmProps, 'action' | 'onYes'> | false;
}

/** Asks for confirmation. The focus is on the cancel button. */
export function Confirm(props: ConfirmProps) {
  const { title, onClose, children, meanwhile = children, disabled, instead = false } = props;
  const { busy, problem, button } = useTask();
  const answer = ({ action, onYes }: Pick<ConfirmProps, 'action' | 'onYes'>) => (
    <Button kind="danger" disabled={disabled} {...button(async () => await onYes(), onClose)} label={action} />
  );
  return (
    <Dialog
      title={title}
      onClose={onClose}
      plain
      actions={
        <>
          <Button onClick={onClose} autoFocus label={busy ? text.kit.close : text.kit.cancel} />
          {answer(props)}
        </>
      }
    >
      {busy ? meanwhile : children}
      <Problem problem={problem} actions={instead && answer(instead)} />
    </Dialog>
  );
}

/** Opens a dialog that asks for confirmation; returns as `openDialog`. */
export const ask = (question: Omit<ConfirmProps, 'onClose'>): (() => void) =>
  openDialog(({ onClose }) => <Confirm {...question} onClose={onClose} />);
