/**
 * Loaded before a test file: the test library follows every promise and timer by async hooks, to name the test that an
 * uncaught error belongs to, which takes a fifth of a busy test's time. Without it such an error fails its file all the same.
 */
import asyncHooks, { type AsyncHook } from 'node:async_hooks';
import { syncBuiltinESMExports } from 'node:module';

const none: AsyncHook = { enable: () => none, disable: () => none };
asyncHooks.createHook = () => none;
syncBuiltinESMExports();
