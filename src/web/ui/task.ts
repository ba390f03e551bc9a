/** Work that a button or form starts: whether it runs, and how it failed. */
import { useEffect, useRef, useState } from 'preact/hooks';
import type { Failure } from '../link/messages.js';
import { problemOf } from './link.js';

export interface Task {
  readonly busy: boolean;
  readonly problem: Failure | null;
  /** Runs `work`, unless something runs already. */
  readonly run: (work: () => Promise<unknown>) => void;
}

/** One piece of work at a time. Its end is ignored after the component is unmounted. */
export function useTask(): Task {
  const [state, setState] = useState<{ busy: boolean; problem: Failure | null }>({ busy: false, problem: null });
  const running = useRef(false);
  const gone = useRef(false);
  useEffect(() => () => void (gone.current = true), []);
  const run = (work: () => Promise<unknown>): void => {
    if (running.current) return;
    running.current = true;
    setState({ busy: true, problem: null });
    const end = (problem: Failure | null): void => {
      running.current = false;
      if (!gone.current) setState({ busy: false, problem });
    };
    work().then(
      () => end(null),
      (error: unknown) => end(problemOf(error)),
    );
  };
  return { ...state, run };
}
