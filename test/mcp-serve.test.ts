/** The program as its users start it: its streams, its start and its end, and its prompts at a terminal. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { readFile, stat, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { PassThrough, Writable } from 'node:stream';
import { LATEST_PROTOCOL_VERSION } from '@modelcontextprotocol/sdk/types.js';
import t from 'tap';
import { auditPath } from '../src/mcp/audit.js';
import { runCommand } from '../src/mcp/command.js';
import { mcpPlatform } from '../src/mcp/context.js';
import { RELEASE } from '../src/root.js';
import { EXIT } from '../src/terminal/terminal.js';
import { lockHolder } from '../src/files/lock.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import type { Platform } from '../src/sdk/platform.js';
import { TestClock } from './support/clock.js';
import { note, shows, wiretap, world, type World } from './support/client-world.js';
import { soon, until } from './support/events.js';
import type { Listing } from './support/mcp.js';
import { inspector, machine, PROGRAM, started, type Home } from './support/mcp-process.js';
import { temporaryFolder, type WithTeardown } from './support/postgres.js';
import { spawnCli } from './support/cli.js';

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

/**
 * `serve` in this process, where a process would show no more: its client leaves with the first answer. What it answered,
 * and what it said.
 */
async function servedHere(at: Home): Promise<{ code: number; out: string; errors: string }> {
  const [input, output] = [new PassThrough(), new PassThrough()];
  const said = { out: '', errors: '' };
  output.setEncoding('utf8').on('data', (text: string) => (said.out += text));
  output.once('data', () => input.end());
  input.write(`${JSON.stringify(initialize)}\n`);
  const code = await commandHere(at, { input, output, platform: await mcpPlatform() }, said);
  return { code, ...said };
}

/** `serve` in this process, over these streams. */
async function commandHere(
  { env, paths }: Home,
  parts: { readonly input: PassThrough; readonly output: Writable; readonly platform: Platform },
  said: { errors: string },
): Promise<number> {
  const { input, output } = parts;
  const note = (text: string): void => void (said.errors += `${text}\n`);
  const terminal = {
    ...{
      interactive: false,
      print: (text: string) => void output.write(`${text}\n`),
      note,
      progress: () => undefined,
      openInput: () => input,
    },
    ask: () => Promise.reject(new Error('nobody is there')),
  };
  return runCommand(['serve'], {
    ...{ paths, env, ...parts, ...RELEASE },
    ...{ interrupted: new AbortController().signal, note, terminal },
  });
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

/** A machine for the tests that write nothing. */
const shared = machine(t);

t.test('MCP-53: a setting with an invalid value stops the start', async (t) => {
  const { at } = await shared;
  for (const [name, value] of [
    ['SERVICE_READ_ONLY', 'ture'],
    ['SERVICE_REDACT_SECRETS', '2'],
    ['SERVICE_BINS', ' , '],
  ] as const) {
    const { code, out, errors } = await servedHere({ ...at, env: { ...at.env, [name]: value } });
    t.equal(code, EXIT.usage, name);
    t.match(errors, name);
    t.equal(out, '', 'no message was answered');
  }
});

t.test('MCP-60: standard output has nothing but the protocol, also after input that is no message', async (t) => {
  const { at } = await shared;
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

for (const full of [false, true])
  t.test(
    `MCP-61: the answers to a client that reads nothing do not pile up, and it keeps no program running, ${full ? 'even' : 'or'} when no more is read`,
    async (t) => {
      const { at } = await machine(t);
      const input = new PassThrough();
      const unread: (() => void)[] = [];
      let reads = true;
      let out = '';
      const output = new Writable({
        write: (chunk: Buffer, _encoding, done) => {
          out += chunk.toString('utf8');
          if (reads) done();
          else unread.push(done);
        },
      });
      const clock = new TestClock();
      const said = { errors: '' };
      const over = commandHere(at, { input, output, platform: { ...(await mcpPlatform()), clock } }, said);
      const ask = (id: number): void =>
        void input.write(`${JSON.stringify({ jsonrpc: '2.0', id, method: 'tools/list' })}\n`);
      const answers = (): number => out.split('\n').length - 1;
      input.write(`${JSON.stringify(initialize)}\n`);
      await until('the first answer', () => answers() === 1);
      reads = false;
      let asked = 1;
      const filled = async (): Promise<void> => {
        const before = asked;
        await until('that no more is read', () => {
          // In pieces, as a pipe has them.
          if (asked < before + 499) ask(++asked);
          return input.isPaused() && input.readableLength > 1_000;
        });
        t.ok(asked < before + 499, `it took ${asked - before} calls`);
      };
      await filled();
      reads = true;
      for (const done of unread.splice(0)) done();
      await until('all answers', () => answers() === asked);

      reads = false;
      if (full) await filled();
      else ask(++asked);
      await until('an answer that nobody reads', () => unread.length > 0);
      input.end();
      let ended = false;
      void over.finally(() => (ended = true));
      await until('its end', () => {
        clock.advance(1_000);
        return ended;
      });
      t.equal(await over, 0, said.errors);
      t.ok(output.destroyed);
      t.equal(lockHolder(join(at.paths.folder, 'mcp.lock')), undefined, 'the lock is released');
      t.equal(/the client reads no answers/.test(said.errors), full, said.errors);
    },
  );

t.test('MCP-61: a client that reads no standard error keeps no program running', async (t) => {
  const { at } = await machine(t);
  const child = spawn(process.execPath, [PROGRAM, 'serve'], { env: at.env, stdio: ['pipe', 'ignore', 'pipe'] });
  t.teardown(() => void child.kill('SIGKILL'));
  const ended = once(child, 'exit');
  // Each is noted there: more than the pipe holds.
  child.stdin.end('{"id":"no message"}\n'.repeat(10_000));
  t.same(await soon(ended, 'its end'), [EXIT.ok, null]);
});

t.test('MCP-14: a program whose pairing is gone from this machine refuses the next call, and ends', async (t) => {
  const { at } = await machine(t);
  const program = raw(t, at);
  program.send(initialize);
  await program.answer(1);
  program.send({ jsonrpc: '2.0', method: 'notifications/initialized' });
  program.send(call(2, 'sb_list_items', {}));
  t.match(await program.answer(2), { result: { structuredContent: { complete: true } } });
  // As `unpair --force` leaves it without the server: the device itself is not revoked.
  await rm(at.paths.configPath);
  program.send(call(3, 'sb_list_items', {}));
  t.match(await program.answer(3), { result: { isError: true, content: [{ text: /not_paired/ }] } });
  t.equal(await program.ended, 3);
  t.match(program.errors(), /not_paired.*replaced or ended/);
});

t.test(
  'MCP-62: a second instance, a bad setting and a missing pairing end the start, with a code on standard error',
  async (t) => {
    const { at } = await shared;
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
    first.child.stdin?.end();
    await first.ended;
  },
);

t.test('MCP-80: serve refuses a SERVICE_HOST of another server, and accepts any spelling of its own', async (t) => {
  const { all, at } = await shared;
  for (const host of ['https://elsewhere.example', 'http://127.0.0.1:1', 'no address']) {
    const { code, out, errors } = await servedHere({ ...at, env: { ...at.env, SERVICE_HOST: host } });
    t.equal(code, 2, host);
    t.match(errors, /bad_setting.*SERVICE_HOST.*pair --force/);
    t.equal(out, '', 'standard output stays empty');
  }
  const { serverUrl } = all.first.identity();
  for (const host of ['', ` ${serverUrl}/ `, serverUrl.replace('http://', '')]) {
    const { code, out } = await servedHere({ ...at, env: { ...at.env, SERVICE_HOST: host } });
    t.match(JSON.parse(out), { id: 1, result: {} }, host);
    t.equal(code, 0);
  }
});

// The long test lists the tools, and calls them all.
t.test("MCP-65: the inspector's command line calls a tool", async (t) => {
  const { all, at } = await machine(t);
  const { id } = await all.first.device.put(note('seen by the inspector'));
  const inspect = await inspector(t, at);
  const listed = await inspect('--method', 'tools/call', '--tool-name', 'sb_list_items', '--tool-arg', 'limit=5');
  t.match(listed, { structuredContent: { items: [{ id }] } });
});

const PASSWORD = 'a long password of the test';

/** A server and its first device, which uses the real Argon2id for words and passwords. */
async function stretching(t: WithTeardown): Promise<World> {
  const tap = wiretap();
  return world(t, { tap: { ...tap, platform: { ...tap.platform, sodium: nodeSodium } } });
}

t.test('MCP-20: at a terminal the words are visible and the password is not', async (t) => {
  const { url, first } = await stretching(t);
  await first.device.connect();
  await first.device.setPassword(PASSWORD);
  const home = await temporaryFolder(t);
  const typed = (command: string) =>
    spawnCli(t, ['-qfec', `stty cols 200; ${process.execPath} ${PROGRAM} ${command}`, '/dev/null'], {
      home,
      env: { TERM: 'xterm' },
      through: ['script'],
    });
  const stopped = typed(`pair --host ${url}`);
  await stopped.seen(/May agents read the secrets of your passwords\? \[y\/N\] /);
  stopped.write('\r');
  await stopped.seen(/The six words that the other device shows: /);
  stopped.write('\u0003');
  t.match(await stopped.ended, { code: 130, stdout: /Error \(interrupted\)/ });

  const offer = await first.device.offerPairing(() => true);
  const pair = typed(`pair --host ${url} --name Agent > ${join(home, 'out')}`);
  await pair.seen(/\[y\/N\] /);
  pair.write('\r');
  await pair.seen(/The six words that the other device shows: /);
  pair.write(`${offer.words}\r`);
  await pair.seen(/Account password: /);
  pair.write('not that one\r');
  await pair.seen(/not the account password/);
  await pair.seen(/Account password: [^]*Account password: /);
  pair.write(`${PASSWORD}\r`);
  const ended = await pair.ended;
  t.equal(ended.code, 0, ended.stdout);
  t.ok(ended.stdout.includes(offer.words), 'the words are echoed');
  t.match(ended.stdout, /Digits: \d{3} \d{3}/);
  t.notMatch(ended.stdout, /long password|not that one/);
  t.match(
    await readFile(join(home, 'out'), 'utf8'),
    /^Paired\. This machine is "Agent"[^\n]*\nSecrets of passwords are withheld[^\n]*\n[^\n]*\n$/,
  );
});
