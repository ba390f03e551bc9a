#!/usr/bin/env node
/** `service-device`: a device in the terminal. Puts the parts together, hears signals, and ends with an exit code. */
import { nodeSockets } from '../../client/node-socket.js';
import type { Platform } from '../../client/platform.js';
import { nodeSodium } from '../../crypto/sodium-node.js';
import { systemClock } from '../../protocol/clock.js';
import { SERVER_VERSION } from '../../root.js';
import { failureOf } from './failure.js';
import { jsonLine, nodeTerminal } from './node-terminal.js';
import { runProgram } from './program.js';
import { EXIT } from './terminal.js';

/** After an interruption a command may put away what it has in hand; then it ends anyway. */
const GRACE_MS = 5_000;

const platform: Platform = {
  sodium: nodeSodium,
  fetch: (url, init) => fetch(url, init),
  sockets: nodeSockets,
  clock: systemClock,
  random: Math.random,
};

const interruption = new AbortController();
const interrupt = (): void => {
  // The second time is meant.
  if (interruption.signal.aborted) process.exit(EXIT.interrupted);
  interruption.abort();
  setTimeout(() => process.exit(EXIT.interrupted), GRACE_MS).unref();
};

/** Until everything written has left the process: what is still in a pipe's buffer would be lost by `exit`. */
const flushed = (stream: NodeJS.WriteStream): Promise<void> =>
  new Promise((resolve) => {
    if (stream.destroyed || stream.writableEnded) resolve();
    else stream.write('', () => resolve());
  });

async function main(): Promise<void> {
  // Whatever is written, by libraries too, is nobody else's business.
  process.umask(0o077);
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, interrupt);
  for (const stream of [process.stdout, process.stderr]) {
    stream.on('error', (error: NodeJS.ErrnoException) => {
      // Whoever read has gone (`| head`): there is nobody left to tell.
      process.exit(error.code === 'EPIPE' ? EXIT.ok : EXIT.failure);
    });
  }
  process.on('uncaughtException', (error) => {
    process.stderr.write(`Error: ${failureOf(error).message}\n`);
    process.exit(EXIT.failure);
  });
  const code = await runProgram({
    argv: process.argv.slice(2),
    env: process.env,
    platform,
    version: SERVER_VERSION,
    terminal: (json) =>
      nodeTerminal({
        json,
        env: process.env,
        streams: { input: process.stdin, output: process.stdout, errors: process.stderr },
        interrupted: interruption.signal,
        interrupt,
      }),
    write: (text) => void process.stdout.write(text),
    fail: (value) => void process.stderr.write(`${jsonLine(value)}\n`),
  });
  await Promise.all([flushed(process.stdout), flushed(process.stderr)]);
  process.exit(code);
}

await main();
