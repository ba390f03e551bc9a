#!/usr/bin/env node
/** `service-device`: a device in the terminal. Wires the program to this process. */
import { setFlagsFromString } from 'node:v8';
import { COMPLETE } from './completion-spec.js';

// Before most of the program is loaded: a large file would take up to 152 MiB of memory instead of 133 (CBLOB-32).
setFlagsFromString('--optimize-for-size');

const { argv, env, stdout } = process;

// Each is loaded alone: a shell waits for the one, and the other is most of the program.
if (argv[2] === COMPLETE) {
  const { complete } = await import('./candidates.js');
  // Covers the files that the store's library writes.
  process.umask(0o077);
  await complete(argv.slice(3), { env, print: (line) => void stdout.write(`${line}\n`) });
  // A keychain that does not answer is left behind.
  stdout.write('', () => process.exit());
} else {
  const { runService } = await import('./process.js');
  await runService();
}
