/**
 * Test files one after the other in one process, which loads the test library and the server's modules once. Each file
 * begins as in a process of its own, but for what modules keep: what the file before it had started has ended, and
 * environment and time limit are those of the beginning.
 */
import t from 'tap';
import type { WithTeardown } from './postgres.js';

type End = () => unknown;

const ended = async (ends: readonly End[]): Promise<void> => {
  for (const end of [...ends].reverse()) await end();
};

/** Of all files; undefined in the process of a single one. */
let shared: End[] | undefined;

/** For what the files of a process share: it ends after the last of them. */
export const ofProcess: WithTeardown = {
  teardown: (end) => {
    if (shared === undefined) t.teardown(end);
    else shared.push(end);
  },
};

/** Imports a file and waits until its tests have run. */
async function testsOf(file: string): Promise<void> {
  const idle = new Promise((resolve) => t.once('idle', resolve));
  const loaded: Promise<unknown> = import(file);
  // The tests wait until the file is loaded: the library is idle once all of them have run.
  void t.waitOn(loaded);
  await loaded;
  await idle;
}

/** Files as URLs. */
export async function runTogether(files: readonly string[]): Promise<void> {
  const { env } = process;
  const given = { ...env };
  const { timeout = 0 } = t.options;
  shared = [];
  for (const file of files) {
    process.env = env; // a test may have replaced the whole
    for (const name of Object.keys(env)) if (given[name] === undefined) Reflect.deleteProperty(env, name);
    Object.assign(env, given);
    t.setTimeout(timeout);
    // The library itself ends what a file has started only at the end of the process.
    const ends: End[] = [];
    t.teardown = (end: End) => void ends.push(end);
    await testsOf(file);
    await ended(ends);
  }
  await ended(shared);
}
