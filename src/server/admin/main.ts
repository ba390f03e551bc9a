#!/usr/bin/env node
/** `service-admin`: what an operator does by hand, on the database that the environment names. */
import { SERVER_VERSION } from '../../root.js';
import { runProcess } from '../../terminal/process.js';
import { adminFailureOf } from './failure.js';
import { runAdmin } from './program.js';

/** An embedded database that was started for the command is stopped first; that takes 20 seconds at most. */
const GRACE_MS = 30_000;

await runProcess({
  graceMs: GRACE_MS,
  failureOf: adminFailureOf,
  run: (call) => runAdmin({ ...call, version: SERVER_VERSION }),
});
