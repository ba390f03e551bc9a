/** Common parts of the pages beside the list. */
import { ArrowLeft } from 'lucide-preact';
import type { ComponentChildren } from 'preact';
import { useEffect, useId, useLayoutEffect, useRef, useState } from 'preact/hooks';
import type { Failure } from '../link/messages.js';
import { Button } from './kit.js';
import { info, problemOf } from './link.js';
import { leave } from './route.js';
import { text } from './strings.js';

/** The head of a page beside the list: a back button where the side bar is hidden, the heading, and actions. */
export function PageHead({ title, children }: { title: string; children?: ComponentChildren }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useLayoutEffect(() => heading.current?.focus(), []);
  return (
    <div class="page-head">
      <Button kind="icon" icon={ArrowLeft} label={text.kit.back} onClick={leave} />
      <h1 ref={heading} class="grow" tabIndex={-1}>
        {title}
      </h1>
      {children}
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

/** A reply of the server, requested again after each change of `turn` or the connection. Undefined: not known yet. */
export function useAnswer<T>(ask: () => Promise<T>, turn: unknown): { value: T | undefined; problem: Failure | null } {
  const [answer, setAnswer] = useState<{ value: T | undefined; problem: Failure | null }>({
    value: undefined,
    problem: null,
  });
  const connection = info.value?.connection.state;
  useEffect(() => {
    let stale = false;
    ask().then(
      (value) => stale || setAnswer({ value, problem: null }),
      (error: unknown) => stale || setAnswer(({ value }) => ({ value, problem: problemOf(error) })),
    );
    return () => void (stale = true);
    // Requested again when the connection is back.
  }, [turn, connection]);
  return answer;
}
