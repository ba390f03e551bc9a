/** The program as its users start it: its streams, its start and its end. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import { auditPath } from '../src/mcp/audit.js';
import { EXIT } from '../src/terminal/terminal.js';
import { lockHolder } from '../src/files/lock.js';
import { LATEST_PROTOCOL_VERSION } from '@modelcontextprotocol/sdk/types.js';
import { note, shows } from './support/client-world.js';
import type { Listing } from './support/mcp.js';
import { inspector, machine, PROGRAM, started, type Home } from './support/mcp-process.js';
import { temporaryFolder, type WithTeardown } from './support/postgres.js';

t.setTimeout(600_000);

interface Raw {
  readonly child: ChildProcess;
  readonly out: () => string;
  readonly errors: () => string;
  /** Exit code, or the signal that ended it. All its output has been received by then. */
  readonly ended: Promise<unknown>;
  send(message: object | string): void;
  /** Resolves once standard output has an answer with this id. */
  answer(id: number): Promise<Record<string, unknown>>;
}

/** The program without a client library in between. */
function raw(t: WithTeardown, { env }: Home): Raw {
  const child = spawn(process.execPath, [PROGRAM, 'serve'], { env, stdio: ['pipe', 'pipe', 'pipe'] });
  t.teardown(() => void child.kill('SIGKILL'));
  let out = '';
  let errors = '';
  const look = new Set<() => void>();
  child.stdout.on('data', (chunk: Buffer) => {
    out += chunk.toString('utf8');
    for (const each of [...look]) each();
  });
  child.stderr.on('data', (chunk: Buffer) => {
    errors += chunk.toString('utf8');
  });
  child.stdin.on('error', () => undefined);
  const ended = once(child, 'close').then(([code, signal]) => (signal ?? code) as unknown);
  return {
    ...{ child, ended, out: () => out, errors: () => errors },
    send: (message) => void child.stdin.write(`${typeof message === 'string' ? message : JSON.stringify(message)}\n`),
    answer: async (id) =>
      new Promise((resolve, reject) => {
        const find = (): void => {
          const lines = out.split('\n').slice(0, -1);
          const found = lines
            .map((line) => JSON.parse(line) as Record<string, unknown>)
            .find((line) => line['id'] === id);
          if (found === undefined) return;
          look.delete(find);
          resolve(found);
        };
        look.add(find);
        void ended.then(() => reject(new Error(`ended before it answered ${id}: ${errors}`)));
        find();
      }),
  };
}

const initialize = {
  jsonrpc: '2.0',
  id: 1,
  method: 'initialize',
  params: { protocolVersion: LATEST_PROTOCOL_VERSION, capabilities: {}, clientInfo: { name: 'test', version: '1' } },
};
const call = (id: number, name: string, args: object): object => ({
  ...{ jsonrpc: '2.0', id, method: 'tools/call' },
  params: { name, arguments: args },
});

t.test('MCP-57: the program puts, lists, searches and deletes over standard input and output', async (t) => {
  const { all, at } = await machine(t);
  const { client, errors } = await started(t, at);
  const gone = new Promise((resolve) => all.first.device.on('delete', ({ id }) => resolve(id)));
  const put = await client.callTool({
    name: 'sb_put_item',
    arguments: { bin: 'inbox', payload: { text: 'over a pipe' } },
  });
  const { id } = put.structuredContent as { id: string };
  t.match(await shows(all.first, id), { payload: { text: 'over a pipe' } });
  const listed = (await client.callTool({ name: 'sb_list_items', arguments: {} })).structuredContent as Listing;
  t.match(listed, { total: 1, complete: true, items: [{ id }] });
  const found = await client.callTool({ name: 'sb_search', arguments: { query: 'a pipe' } });
  t.match(found.structuredContent, { items: [{ id }] });
  await client.callTool({ name: 'sb_delete_item', arguments: { id } });
  t.equal(await gone, id);
  t.match(errors(), /Agent serves all bins/);
  const record = await readFile(auditPath(at), 'utf8');
  t.equal(record.trim().split('\n').length, 4);
  t.notMatch(record, /over a pipe|a pipe/);
  t.equal((await stat(auditPath(at))).mode & 0o777, 0o600);
});

t.test('MCP-53: a setting with an invalid value stops the start', async (t) => {
  const { at } = await machine(t);
  for (const [name, value] of [
    ['SERVICE_READ_ONLY', 'ture'],
    ['SERVICE_REDACT_SECRETS', '2'],
    ['SERVICE_BINS', ' , '],
  ] as const) {
    const program = raw(t, { ...at, env: { ...at.env, [name]: value } });
    program.send(initialize);
    t.equal(await program.ended, EXIT.usage, name);
    t.match(program.errors(), name);
    t.equal(program.out(), '', 'no message was answered');
  }
});

t.test('MCP-60: standard output has nothing but the protocol, also after input that is no message', async (t) => {
  const { at } = await machine(t);
  const program = raw(t, at);
  program.send(initialize);
  t.match(await program.answer(1), { result: { serverInfo: { name: 'service-mcp' }, instructions: /data/ } });
  program.send('this is no message of the protocol, and secret');
  program.send('{"jsonrpc":"2.0"}');
  program.send({ jsonrpc: '2.0', method: 'notifications/initialized' });
  program.send(call(2, 'sb_list_items', {}));
  program.send(call(3, 'sb_drop_everything', {}));
  t.match(await program.answer(2), { result: { structuredContent: { total: 0 } } });
  t.match(await program.answer(3), { error: { code: -32602 } });
  program.child.stdin?.end();
  t.equal(await program.ended, 0, 'the program ends with its input');
  for (const line of program.out().trim().split('\n')) t.match(JSON.parse(line), { jsonrpc: '2.0' });
  t.notMatch(program.errors(), /secret/);
});

t.test('MCP-61: at the end of input calls are finished; then, and at a signal, it ends and unlocks', async (t) => {
  const { all, at } = await machine(t);
  const first = raw(t, at);
  first.send(initialize);
  first.send({ jsonrpc: '2.0', method: 'notifications/initialized' });
  first.send(call(2, 'sb_put_item', { bin: 'inbox', payload: { text: 'the last one' } }));
  first.child.stdin?.end();
  t.equal(await first.ended, 0);
  t.match(await first.answer(2), { id: 2, result: { structuredContent: { type: 'text' } } });
  await all.first.device.pull();
  t.match(await all.first.device.list(), [{ payload: { text: 'the last one' } }]);
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    const next = raw(t, at);
    next.send(initialize);
    await next.answer(1);
    next.child.kill(signal);
    t.equal(await next.ended, 0, signal);
    t.equal(lockHolder(join(at.paths.folder, 'mcp.lock')), undefined, 'the lock is released');
  }
  const broken = raw(t, at);
  broken.send(initialize);
  await broken.answer(1);
  broken.child.stdout?.destroy();
  broken.send(call(2, 'sb_list_items', {}));
  t.ok([0, 130].includes(Number(await broken.ended)), 'the program ends when its output is no longer read');
});

t.test(
  'MCP-62: a second instance, a bad setting and a missing pairing end the start, with a code on standard error',
  async (t) => {
    const { at } = await machine(t);
    const first = raw(t, at);
    first.send(initialize);
    await first.answer(1);
    const second = raw(t, at);
    t.equal(await second.ended, 4);
    t.match(second.errors(), new RegExp(`already_running.*process ${first.child.pid}`));
    const other = raw(t, { ...at, env: { ...at.env, SERVICE_READ_ONLY: 'maybe' } });
    t.equal(await other.ended, 2);
    t.match(other.errors(), /bad_setting.*SERVICE_READ_ONLY/);
    const folder = await temporaryFolder(t);
    const none = raw(t, { ...at, env: { ...at.env, XDG_CONFIG_HOME: folder } });
    t.equal(await none.ended, 3);
    t.match(none.errors(), /not_paired.*service-mcp pair/);
    t.equal(`${second.out()}${other.out()}${none.out()}`, '', 'standard output stays empty');
  },
);

t.test('MCP-80: serve refuses a SERVICE_HOST of another server, and accepts any spelling of its own', async (t) => {
  const { all, at } = await machine(t);
  for (const host of ['https://elsewhere.example', 'http://127.0.0.1:1', 'no address']) {
    const wrong = raw(t, { ...at, env: { ...at.env, SERVICE_HOST: host } });
    t.equal(await wrong.ended, 2, host);
    t.match(wrong.errors(), /bad_setting.*SERVICE_HOST.*pair --force/);
    t.equal(wrong.out(), '', 'standard output stays empty');
  }
  const { serverUrl } = all.first.identity();
  for (const host of ['', ` ${serverUrl}/ `, serverUrl.replace('http://', '')]) {
    const right = raw(t, { ...at, env: { ...at.env, SERVICE_HOST: host } });
    right.send(initialize);
    t.match(await right.answer(1), { result: {} }, host);
    right.child.stdin?.end();
    t.equal(await right.ended, 0);
  }
});

t.test("MCP-65: the inspector's command line lists the tools and calls one", async (t) => {
  const { all, at } = await machine(t);
  const { id } = await all.first.device.put(note('seen by the inspector'));
  const inspect = await inspector(t, at);
  t.match(await inspect('--method', 'tools/list'), {
    tools: [{ name: 'sb_put_item' }, { name: 'sb_list_items' }, { name: 'sb_search' }, { name: 'sb_delete_item' }],
  });
  const listed = await inspect('--method', 'tools/call', '--tool-name', 'sb_list_items', '--tool-arg', 'limit=5');
  t.match(listed, { structuredContent: { items: [{ id }] } });
});
