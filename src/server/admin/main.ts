#!/usr/bin/env node
/** `service-admin`: the operator's commands, on the database that the environment names. */
import { RELEASE } from '../../root.js';
import { runProcess } from '../../terminal/process.js';
import { adminFailureOf } from './failure.js';
import { runAdmin } from './program.js';

/** Stopping an embedded database that was started for the command takes 20 seconds at most. */
const GRACE_MS = 30_000;

await runProcess({
  graceMs: GRACE_MS,
  failureOf: adminFailureOf,
  run: (call) => runAdmin({ ...call, ...RELEASE }),
});
