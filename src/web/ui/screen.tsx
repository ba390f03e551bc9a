/** What the screens outside of the app have in common: one column, one heading that takes the focus at each step. */
import type { ComponentChildren, JSX } from 'preact';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import type { Failure } from '../link/messages.js';
import { Button, Notice } from './kit.js';
import { Check, Copy, type Icon } from './icons.js';
import { text } from './strings.js';

interface ScreenProps {
  readonly title: string;
  readonly icon?: Icon;
  readonly children?: ComponentChildren;
  /** Makes it a form. */
  readonly onSubmit?: () => void;
}

/** One step. Give it a `key` where steps follow each other, so that each one's heading is focused and read. */
export function Screen({ title, icon: Sign, children, onSubmit }: ScreenProps): JSX.Element {
  const heading = useRef<HTMLHeadingElement>(null);
  useLayoutEffect(() => heading.current?.focus(), []);
  const inside = (
    <>
      <header class="step-head no-print">
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
        <div class="step">{inside}</div>
      ) : (
        <form
          class="step"
          noValidate
          onSubmit={(event) => {
            event.preventDefault();
            onSubmit();
          }}
        >
          {inside}
        </form>
      )}
    </main>
  );
}

/** What went wrong, said aloud. Nothing for null. */
export function Problem({
  problem,
  title,
  actions,
}: {
  readonly problem: Failure | null;
  readonly title?: string;
  readonly actions?: ComponentChildren;
}): JSX.Element | null {
  if (problem === null) return null;
  return (
    <Notice kind="danger" title={title} actions={actions} live>
      {text.problem(problem)}
    </Notice>
  );
}

/** A text to be copied: a command, a fingerprint. */
export function Copyable({ value, label }: { readonly value: string; readonly label: string }): JSX.Element {
  return (
    <div class="copyable">
      <code dir="ltr">{value}</code>
      <CopyButton value={value} label={label} />
    </div>
  );
}

/** Copies a text that is no secret of an item. */
export function CopyButton({
  value,
  label,
  plain = false,
}: {
  readonly value: string;
  readonly label: string;
  /** Its words are seen. */
  readonly plain?: boolean;
}): JSX.Element {
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
