#!/usr/bin/env node
/** `service-mcp`: the companion. Puts the parts together. */
import { runCommand } from './command.js';
import { mcpPlatform } from './platform.js';
import { placeOf } from './place.js';
import { MCP_VERSION } from './version.js';

const interruption = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => interruption.abort());
process.umask(0o077);

process.exitCode = await runCommand(process.argv.slice(2), {
  place: placeOf(process.env),
  platform: await mcpPlatform(),
  env: process.env,
  version: MCP_VERSION,
  interrupted: interruption.signal,
  note: (text) => void process.stderr.write(`${text}\n`),
  input: process.stdin,
  output: process.stdout,
});
