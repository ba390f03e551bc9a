/**
 * The built program, and something at the server's address that is no server: nothing is lost, no command ends
 * silently.
 */
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { createServer } from 'node:net';
import t from 'tap';
import { EXIT } from '../src/terminal/terminal.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { encodeWords } from '../src/crypto/words.js';
import { PROJECT_ROOT } from '../src/root.js';
import { joinedDesk, machine, runHere, spawnCli, type Ended, type Json } from './support/cli.js';
import { wiretap } from './support/client-world.js';
import { door, textsKept, titlesOf, type Manners } from './support/door.js';
import { inLongRun } from './support/long.js';
import { openFor } from './support/loopback-server.js';
import { temporaryFolder } from './support/postgres.js';

/** Acts once the request has arrived. */
const afterRequest =
  (then: Manners): Manners =>
  (socket) =>
    void socket.once('data', () => then(socket));

/** How something that is no server may treat a client. */
const STRANGE: Readonly<Record<string, Manners>> = {
  'closes at once': (socket) => void socket.destroy(),
  'ends at once': (socket) => void socket.end(),
  'resets after the request': afterRequest((socket) => void socket.resetAndDestroy()),
  'talks nonsense': afterRequest((socket) => void socket.end(Buffer.from('c0ffee00ff01', 'hex'))),
  'is another protocol': afterRequest((socket) => void socket.write('SSH-2.0-OpenSSH_9.2\r\n')),
  'answers in TLS': afterRequest((socket) => void socket.end(Buffer.from('15030100020228', 'hex'))),
  'resets in its reply': afterRequest((socket) => {
    socket.write('HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"a":', () => void socket.resetAndDestroy());
  }),
};

t.test('CLI-19 CLI-38: texts for an address that closes at once are all kept, and sent later', (t) => textsKept(t, 3));

const usual = ['closes at once', 'talks nonsense', 'resets in its reply'];
for (const [what, manners] of Object.entries(STRANGE).filter(([what]) => inLongRun(usual.includes(what), true))) {
  t.test(`CLI-38 CLI-39: commands keep texts and report failures at something that ${what}`, async (t) => {
    const { url, becomes } = await door(t);
    const desk = await machine(t);
    await desk.json(['claim', url, '--show-phrase', '--name', 'Desk']);
    const { id } = await desk.json(['put', 'before']);
    becomes(manners);
    t.match(await desk.json(['put', 'meanwhile']), { queued: true });
    const listed = await desk.call(['list', '--json']);
    t.match(listed, { code: EXIT.ok, notes: /Not up to date/ });
    t.same(titlesOf(listed.data[0] ?? {}), ['before', 'meanwhile']);
    t.equal((await desk.call(['get', String(id)])).bytes.toString(), 'before');
    t.match(await desk.call(['rm', String(id), '--yes']), { code: EXIT.ok, notes: /queued/ });
    t.match(await desk.call(['status']), { code: EXIT.ok, out: /out of reach/ });
    for (const argv of [
      ['sync'],
      ['pair', '--yes', '--digits', '123456'],
      ['put', '--type', 'file', '--file', '-'],
      ['bins', 'add', 'Work'],
      ['revoke', 'Desk', '--yes'],
    ]) {
      const { code, notes } = await desk.call(argv, { input: 'content' });
      t.equal(code, EXIT.unavailable, `${argv.join(' ')}: ${notes}`);
      t.match(notes, /^Error: .*cannot be reached/m, argv.join(' '));
    }
    becomes(undefined);
    await desk.json(['sync']);
    t.same(titlesOf(await desk.json(['list'])), ['meanwhile']);
  });
}

t.test('CLI-38: a text is kept before the server is contacted', async (t) => {
  const { url, becomes } = await door(t);
  const home = await temporaryFolder(t);
  const run = (...argv: string[]): Promise<Ended> => runHere(home, [...argv, '--json']);
  await run('claim', url, '--show-phrase');
  await run('put', 'before');
  let asked = 0;
  const waits = new Promise<void>((resolve) => {
    // The second attempt follows after a second without an answer.
    becomes(() => {
      if (++asked === 2) resolve();
    });
  });
  const put = spawnCli(t, ['put', 'milk'], { home });
  await waits;
  put.kill('SIGKILL');
  await put.ended;
  becomes(undefined);
  t.same(titlesOf(JSON.parse((await run('list')).stdout) as Json), ['before', 'milk']);
});

t.test('CLI-39: `join` reports a server that cannot be reached', async (t) => {
  const port = await openFor(
    t,
    createServer((socket) => void socket.destroy()),
  );
  const url = `http://127.0.0.1:${port}`;
  const desk = await machine(t);
  const words = encodeWords(nodeSodium, new Uint8Array(8));
  const joined = await desk.call(['join', url, ...words.split(' ')]);
  t.match(joined, { code: EXIT.unavailable, notes: /^Error: the server cannot be reached/m });
});

t.test('CLI-39: a call that is not understood says what to do', async (t) => {
  const desk = await machine(t);
  t.match(await desk.call(['password']), { code: EXIT.usage, out: /set .*\n.*change .*\n.*remove/ });
  t.match(await desk.call(['help', 'nothing']), { code: EXIT.usage, out: /Commands:/ });
  t.match(await desk.call(['nothing']), { code: EXIT.usage, notes: /unknown command.*\n.*--help/ });
  t.match(await desk.call(['completion']), { code: EXIT.usage, notes: /missing required.*\n.*--help/ });
  const asJson = await desk.call(['--json', 'password']);
  t.match(asJson, { code: EXIT.usage, out: '', error: { code: 'usage', hint: /--help/ } });
});

t.test('CLI-39: a command that nothing can continue any more reports that', async (t) => {
  const module = pathToFileURL(join(PROJECT_ROOT, 'build/src/terminal/process.js')).href;
  const failure = pathToFileURL(join(PROJECT_ROOT, 'build/src/cli/failure.js')).href;
  const text = `
    const { runProcess } = await import(${JSON.stringify(module)});
    const { failureOf } = await import(${JSON.stringify(failure)});
    await runProcess({ graceMs: 1000, failureOf, run: () => new Promise(() => undefined) });
  `;
  const started = (argv: readonly string[]) =>
    spawnCli(t, ['--input-type=module', '-e', text, '--', ...argv], {
      home: '/nonexistent',
      through: [process.execPath],
    });
  t.match(await started([]).ended, { code: EXIT.failure, stderr: /^Error: the command stopped half way/ });
  const { code, stderr } = await started(['--json']).ended;
  t.equal(code, EXIT.failure);
  t.match(JSON.parse(stderr), { error: { code: 'failure', message: /half way/ } });
  const thrown = "run: () => new Promise(() => setImmediate(() => { throw new TypeError('nobody caught it'); }))";
  const uncaught = spawnCli(
    t,
    ['--input-type=module', '-e', text.replace(/run: .*(?= \}\))/, thrown), '--', '--json'],
    { home: '/nonexistent', through: [process.execPath] },
  );
  const broken = await uncaught.ended;
  t.equal(broken.code, EXIT.failure);
  t.match(JSON.parse(broken.stderr), { error: { code: 'failure', message: /nobody caught it/ } });
  const stuck =
    "run: () => (setTimeout(() => undefined, 200), process.kill(process.pid, 'SIGINT'), new Promise(() => undefined))";
  const cut = spawnCli(t, ['--input-type=module', '-e', text.replace(/run: .*(?= \}\))/, stuck)], {
    home: '/nonexistent',
    through: [process.execPath],
  });
  t.match(await cut.ended, { code: EXIT.interrupted, stderr: 'Interrupted.\n' }, 'after Ctrl-C that is no fault');
});

t.test(
  'CLI-47: a write kept before the server was contacted has no key for a device revoked in the meantime',
  async (t) => {
    const tap = wiretap();
    const { desk, ...made } = await joinedDesk(t, tap);
    const phone = await made.pair('Phone');
    await desk.json(['put', 'one']);
    await made.first.device.revoke(phone.device.id);
    tap.calls.length = 0;
    await desk.json(['put', 'two']);
    const bodies = tap.calls.flatMap(({ path, body }) => (path === '/items' && body !== null ? [body] : []));
    t.equal(bodies.length, 1);
    const keys = (bodies[0]?.['payloadEnc'] as { keys: Json }).keys;
    t.ok(Object.keys(keys).includes(made.first.device.id));
    t.notOk(Object.keys(keys).includes(phone.device.id), 'though the stored list of devices has it');

    // The stored list of devices has no uncertified one; the present list has.
    tap.alterReply = ({ path }, answer) => {
      if (path !== '/devices') return undefined;
      const strip = (entry: Json): Json => (entry['id'] === made.first.device.id ? { ...entry, cert: null } : entry);
      return { ...answer, devices: (answer['devices'] as Json[]).map(strip) };
    };
    tap.calls.length = 0;
    const put = await desk.call(['put', 'three', '--json']);
    t.match(put, { code: EXIT.untrusted, error: { code: 'uncertified_device' } });
    t.notOk(tap.calls.some(({ method, path }) => method === 'POST' && path.startsWith('/items')));
    tap.alterReply = () => undefined;
    t.match(await desk.json(['put', 'four']), { queued: false });
    const { items } = (await desk.json(['list'])) as { items: Json[] };
    t.same(items.map(({ title }) => title).sort(), ['four', 'one', 'two']);
  },
);
