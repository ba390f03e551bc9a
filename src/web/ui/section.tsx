/** Common parts of the pages beside the list. */
import { ArrowLeft } from 'lucide-preact';
import type { ComponentChildren } from 'preact';
import { useId, useLayoutEffect, useRef } from 'preact/hooks';
import { Button } from './kit.js';
import { info, useLoaded } from './link.js';
import { leave } from './route.js';
import * as text from './strings.js';

interface PageFrameProps {
  readonly title: string;
  /** Beside the heading. */
  readonly actions?: ComponentChildren;
  readonly children: ComponentChildren;
}

/** A page beside the list: a back button where the side bar is hidden, a heading that takes the focus, and parts. */
export function PageFrame({ title, actions, children }: PageFrameProps) {
  const heading = useRef<HTMLHeadingElement>(null);
  useLayoutEffect(() => heading.current?.focus(), []);
  return (
    <div class="page">
      <div class="page-head line">
        <Button kind="icon" icon={ArrowLeft} label={text.kit.back} onClick={leave} />
        <h1 ref={heading} class="grow" tabIndex={-1}>
          {title}
        </h1>
        {actions}
      </div>
      <div class="stack loose">{children}</div>
    </div>
  );
}

/** A group of settings with its heading. */
export function Section({ title, children }: { title: string; children: ComponentChildren }) {
  const id = useId();
  return (
    <section class="card stack" aria-labelledby={id}>
      <h2 id={id}>{title}</h2>
      {children}
    </section>
  );
}

/** A reply of the server, requested again after each change of `turn` or the connection. */
export const useAnswer = <T,>(ask: () => Promise<T>, turn: unknown) =>
  useLoaded(ask, [turn, info.value?.connection.state]);
