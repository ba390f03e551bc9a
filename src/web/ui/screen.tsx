/** Common parts of the screens without a side bar: one column, and a heading that takes the focus at each step. */
import { Fragment, type ComponentChildren } from 'preact';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import type { Failure } from '../link/messages.js';
import { Button, Notice, submits } from './kit.js';
import { Check, Copy, type LucideIcon } from 'lucide-preact';
import type { PasskeyError } from './passkey.js';
import { text } from './strings.js';

interface ScreenProps {
  readonly title: string;
  readonly icon?: LucideIcon;
  readonly children?: ComponentChildren;
  /** Set: the screen is a form. */
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
  const inside = (
    <>
      <header class="stack tight no-print">
        <p class="step-host">
          {Sign !== undefined && <Sign />}
          <bdi>{location.host}</bdi>
        </p>
        <h1 ref={heading} tabIndex={-1}>
          {title}
        </h1>
      </header>
      {children}
    </>
  );
  return (
    <main class="screen">
      {onSubmit === undefined ? (
        <div class="step stack">{inside}</div>
      ) : (
        <form class="step stack" noValidate onSubmit={submits(onSubmit)}>
          {inside}
        </form>
      )}
    </main>
  );
}

/** An error, announced by screen readers. Nothing for null. */
export function Problem({
  problem,
  title,
  actions,
}: {
  problem: Failure | null;
  title?: string;
  actions?: ComponentChildren;
}) {
  if (problem === null) return null;
  return (
    <Notice kind="danger" title={title} actions={actions} live>
      {text.problem(problem)}
    </Notice>
  );
}

/** As `Problem`. `words`: the screen's messages for a `PasskeyError`. */
export function PasskeyProblem({
  problem,
  words,
}: {
  problem: Failure | null;
  words: Readonly<Record<PasskeyError['code'], string>>;
}) {
  if (problem?.name !== 'PasskeyError') return <Problem problem={problem} />;
  return (
    <Notice kind="warn" live>
      {words[problem.code as PasskeyError['code']]}
    </Notice>
  );
}

/** A line that breaks between words, and within a word only if it alone is too long. */
function Command({ value }: { value: string }) {
  return (
    <code dir="ltr">
      {value.split(' ').map((word, at) => (
        <Fragment key={at}>
          {at > 0 && ' '}
          <span>{word}</span>
        </Fragment>
      ))}
    </code>
  );
}

/** A text to be copied: a command, a fingerprint. */
export function Copyable({ value, label }: { value: string; label: string }) {
  return (
    <div class="copyable">
      <Command value={value} />
      <CopyButton value={value} label={label} />
    </div>
  );
}

/** Copies a text that is not a secret. */
export function CopyButton({
  value,
  label,
  plain = false,
}: {
  readonly value: string;
  readonly label: string;
  /** The label is visible. */
  readonly plain?: boolean;
}) {
  const [state, setState] = useState<'copied' | 'notCopied' | null>(null);
  const copy = async (): Promise<void> => {
    await navigator.clipboard.writeText(value);
    setState('copied');
  };
  const said = state === null ? label : text.kit[state];
  return (
    <Button
      kind={plain ? 'plain' : 'icon'}
      icon={state === 'copied' ? Check : Copy}
      label={plain ? undefined : said}
      onClick={() => void copy().catch(() => setState('notCopied'))}
    >
      {plain ? said : undefined}
    </Button>
  );
}
