#!/usr/bin/env node
/** `service-device`: a device in the terminal. Wires the program to this process. */
import { setFlagsFromString } from 'node:v8';
import { COMPLETE } from './completion-spec.js';

// Before most of the program is loaded: else a large file would take up to 152 MiB of memory instead of 133 (CBLOB-32).
setFlagsFromString('--optimize-for-size');

const { argv, env, stdout } = process;

// Imported separately: a shell waits for the completion, and the other import is most of the program.
if (argv[2] === COMPLETE) {
  const { complete } = await import('./candidates.js');
  // Covers the files that the store's library writes.
  process.umask(0o077);
  await complete(argv.slice(3), { env, print: (line) => void stdout.write(`${line}\n`) });
  // Ends even while a keychain does not answer.
  stdout.write('', () => process.exit());
} else {
  const { runService } = await import('./program.js');
  await runService();
}
