/** Tasks in plain language, solved by the packed companion as an MCP client drives it. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import type { Tool } from '@modelcontextprotocol/sdk/types.js';
import t, { type Test } from 'tap';
import { CONTENT_TYPES } from '../src/protocol/item.js';
import { broken, mutations, solve, TASKS, type Solved } from './support/agent-tasks.js';
import { world } from './support/client-world.js';
import { home } from './support/mcp-process.js';
import { packAll } from './support/packages.js';

t.setTimeout(600_000);

const run = promisify(execFile);

/** Solves all tasks with the packed companion, one after the other. */
async function solved(t: Test): Promise<{ readonly all: readonly Solved[]; readonly tools: readonly Tool[] }> {
  const { of } = await packAll(t);
  const program = join(of('mcp').staged, 'build/src/mcp/main.js');
  const { first, pair } = await world(t);
  await first.device.connect();
  const second = await pair('Agent');
  second.device.close();
  const { env } = await home(t, second.identity());
  const client = new Client({ name: 'test', version: '1' });
  t.teardown(async () => client.close());
  await client.connect(
    new StdioClientTransport({ command: process.execPath, args: [program, 'serve'], env, stderr: 'ignore' }),
  );
  const { tools } = await client.listTools();
  const all: Solved[] = [];
  let passwords = 'withhold';
  for (const task of TASKS) {
    const wanted = task.passwords ?? 'withhold';
    if (wanted !== passwords) await run(process.execPath, [program, 'passwords', wanted], { env });
    passwords = wanted;
    all.push(await solve(t, task, { client, device: first.device }));
  }
  return { all, tools };
}

/** Fields that answers have only where a server lies or is away. */
const UNSEEN = /\/items\/properties\/(?:unreadable|onServer|blob\/properties\/problem)/;

t.test('MCP-97 MCP-98 MCP-99: the packed companion solves thirty tasks in plain language', async (t) => {
  t.equal(TASKS.length, 30);
  t.equal(new Set(TASKS.map(({ name }) => name)).size, 30);
  const { all, tools } = await solved(t);
  const types = all.flatMap(({ calls }) => calls.map(({ result }) => result.structuredContent?.['type']));
  for (const type of CONTENT_TYPES) t.ok(types.includes(type), `${type} is put`);
  for (const one of all)
    t.same(broken(one, tools), [], `${one.task.name}: text, answers and definitions determine every argument`);
  for (const { missing, tools: fewer } of mutations(tools)) {
    if (UNSEEN.test(missing)) continue;
    t.ok(
      all.some((one) => broken(one, fewer).length > 0),
      `without ${missing} a task fails`,
    );
  }
});
