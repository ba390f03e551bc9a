/**
 * Loaded before a test file, for what the process of one needs.
 *
 * The test library follows every promise and timer by async hooks, to name the test that an uncaught error belongs to,
 * which takes a fifth of a busy test's time. Without it such an error fails its file all the same.
 *
 * A process whose work is done ends as by `process.exit`, which waits for the compiler's threads. Node 20 takes its main
 * isolate away first otherwise; a compilation that allocates just then aborts the process ("Assertion failed:
 * (data.first) != nullptr"), after tests that all passed.
 */
import asyncHooks, { type AsyncHook } from 'node:async_hooks';
import { syncBuiltinESMExports } from 'node:module';

const none: AsyncHook = { enable: () => none, disable: () => none };
asyncHooks.createHook = () => none;
syncBuiltinESMExports();

const emit = process.emit.bind(process) as (event: string, ...args: unknown[]) => boolean;
Reflect.set(process, 'emit', (event: string, ...args: unknown[]) => {
  const had = emit(event, ...args);
  if (event === 'exit') process.exit(); // not again: all listeners have run
  return had;
});
