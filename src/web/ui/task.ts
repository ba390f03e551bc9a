/** Work that a button or form starts: whether it runs, and how it failed. */
import { useSignal } from '@preact/signals';
import { useState } from 'preact/hooks';
import type { Failure } from '../link/messages.js';
import { problemOf } from './link.js';

export interface Task {
  readonly busy: boolean;
  readonly problem: Failure | null;
  /** Runs `work`, unless something runs already; `done` gets its result. */
  readonly run: <T>(work: () => Promise<T>, done?: (value: T) => void) => void;
}

/** One piece of work at a time. */
export function useTask(): Task {
  const state = useSignal<Pick<Task, 'busy' | 'problem'>>({ busy: false, problem: null });
  const end = (problem: Failure | null): void => void (state.value = { busy: false, problem });
  const run: Task['run'] = (work, done) => {
    if (state.peek().busy) return;
    state.value = { busy: true, problem: null };
    work()
      .then(done)
      .then(
        () => end(null),
        (error: unknown) => end(problemOf(error)),
      );
  };
  return { ...state.value, run };
}

export interface Form extends Task {
  /** It was submitted: from then on it shows what is not valid. */
  readonly tried: boolean;
  readonly submit: () => void;
}

/** The task of a form: `submit` runs `work` and then `done`, if what was typed is `valid`. */
export function useForm<T>(valid: boolean, work: () => Promise<T>, done?: (value: T) => void): Form {
  const task = useTask();
  const [tried, setTried] = useState(false);
  const submit = (): void => {
    setTried(true);
    if (valid) task.run(work, done);
  };
  return { ...task, tried, submit };
}
