#!/usr/bin/env node
/** `service-mcp`: the companion. Puts the parts together, and ends the process with the command's exit code. */
import { runCommand } from './command.js';
import { EXIT } from './errors.js';
import { failureOf } from './failure.js';
import { mcpPlatform } from './platform.js';
import { placeOf } from './place.js';
import { streamTerminal } from './terminal.js';
import { MCP_VERSION } from './version.js';

/** After an interruption a command may put away what it has in hand; then it ends anyway. */
const GRACE_MS = 5_000;

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

// Whatever is written, by libraries too, is nobody else's business.
process.umask(0o077);
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, interrupt);
// Whoever read has gone: there is nobody left to tell, and `serve` must end with its client.
for (const stream of [process.stdout, process.stderr]) stream.on('error', interrupt);
process.on('uncaughtException', (error) => {
  process.stderr.write(`Error (internal): ${failureOf(error).message}\n`);
  process.exit(EXIT.failure);
});

const { stdin: input, stdout: output, stderr: errors, env } = process;
const terminal = streamTerminal({ input, output, errors, interrupted: interruption.signal, interrupt });
const code = await runCommand(process.argv.slice(2), {
  ...{ place: placeOf(env), platform: await mcpPlatform(), env, version: MCP_VERSION },
  ...{ interrupted: interruption.signal, note: (text: string) => terminal.note(text), terminal, input, output },
});
await Promise.all([flushed(process.stdout), flushed(process.stderr)]);
process.exit(code);
