#!/usr/bin/env node
/** `service-mcp`: builds the context of a command, runs it, and ends the process with its exit code. */
import { RELEASE } from '../root.js';
import { endProcess, GRACE_MS, interruptible, nodeTerminal } from '../terminal/process.js';
import { EXIT } from '../terminal/terminal.js';
import { runCommand } from './command.js';
import { mcpPlatform, pathsOf, type Terminal } from './context.js';
import { failureOf } from './errors.js';

const { signal: interrupted, interrupt } = interruptible();
// The reader closed the pipe: nothing can be reported any more, and `serve` must exit with its client.
for (const stream of [process.stdout, process.stderr]) stream.on('error', interrupt);
process.on('uncaughtException', (error) => {
  process.stderr.write(`Error (internal): ${failureOf(error).message}\n`);
  process.exit(EXIT.failure);
});

const { stdin: input, stdout: output, stderr: errors, env } = process;
const screen = nodeTerminal({ json: false, env, input, output, errors, interrupted, interrupt });
const terminal: Terminal = {
  ...screen,
  // Prompts go to standard error: standard output may be redirected to a file.
  interactive: input.isTTY && errors.isTTY,
  progress: (text) => {
    if (errors.isTTY) screen.progress(text);
  },
};
const code = await runCommand(process.argv.slice(2), {
  ...{ paths: pathsOf(env), platform: await mcpPlatform(), env, ...RELEASE },
  ...{ interrupted, note: (text: string) => terminal.note(text), terminal, input, output },
});
// A client that does not read standard error must not keep the program running.
setTimeout(() => process.exit(code), GRACE_MS).unref();
await endProcess(code);
