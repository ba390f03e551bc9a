#!/usr/bin/env node
/** `service-load`: loads a server of one's own. */
import { RELEASE } from '../root.js';
import { runProcess } from '../terminal/process.js';
import { loadFailureOf, runLoad } from './program.js';

/** Removing a large run takes minutes: a second Ctrl-C does not wait for it. */
const GRACE_MS = 300_000;

await runProcess({
  graceMs: GRACE_MS,
  failureOf: loadFailureOf,
  run: (call) => runLoad({ ...call, ...RELEASE }),
});
