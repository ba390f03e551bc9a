#!/usr/bin/env node
/** `service-mcp`: the companion. Puts the parts together, and ends the process with the command's exit code. */
import { nodeTerminal } from '../terminal/node-terminal.js';
import { endProcess, interruptible } from '../terminal/process.js';
import { EXIT } from '../terminal/terminal.js';
import { runCommand } from './command.js';
import type { Terminal } from './context.js';
import { failureOf } from './failure.js';
import { mcpPlatform } from './platform.js';
import { placeOf } from './place.js';
import { MCP_VERSION } from './version.js';

const { signal: interrupted, interrupt } = interruptible();
// Whoever read has gone: there is nobody left to tell, and `serve` must end with its client.
for (const stream of [process.stdout, process.stderr]) stream.on('error', interrupt);
process.on('uncaughtException', (error) => {
  process.stderr.write(`Error (internal): ${failureOf(error).message}\n`);
  process.exit(EXIT.failure);
});

const { stdin: input, stdout: output, stderr: errors, env } = process;
const screen = nodeTerminal({ json: false, env, streams: { input, output, errors }, interrupted, interrupt });
const terminal: Terminal = {
  ...screen,
  // A person is asked on standard error: the result may go into a file.
  interactive: input.isTTY && errors.isTTY,
  progress: (text) => {
    if (errors.isTTY) screen.progress(text);
  },
};
const code = await runCommand(process.argv.slice(2), {
  ...{ place: placeOf(env), platform: await mcpPlatform(), env, version: MCP_VERSION },
  ...{ interrupted, note: (text: string) => terminal.note(text), terminal, input, output },
});
await endProcess(code);
