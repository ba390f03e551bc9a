/**
 * The built program, as processes of its own: signals, pipes, terminals, two at once, killed ones. Calls that differ
 * from such a one only in their command run in this process.
 */
import { existsSync, readdirSync, readFileSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import t from 'tap';
import { EXIT } from '../src/terminal/terminal.js';
import { lockHolder } from '../src/files/lock.js';
import { toBase64Url } from '../src/protocol/base64.js';
import { BINARY, identityIn, mistyped, runHere, spawnCli, typed, type Ended, type Json } from './support/cli.js';
import { until } from './support/events.js';
import { temporaryFolder, type WithTeardown } from './support/postgres.js';
import { runServer, type Running } from './support/server.js';

interface Scene {
  readonly server: Running;
  readonly url: string;
  readonly home: string;
  readonly phrase: string;
  readonly folder: string;
  /** Runs the built program. */
  run(argv: readonly string[]): Promise<Ended>;
  /** The same call in this process. */
  here(argv: readonly string[]): Promise<Ended>;
}

/** Every file of a folder, at any depth. */
const filesBelow = (folder: string): string[] =>
  readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name));

/** A server, claimed in a home of its own. */
async function scene(t: WithTeardown): Promise<Scene> {
  const server = await runServer(t);
  const url = `http://127.0.0.1:${server.port}`;
  const home = await temporaryFolder(t);
  const run: Scene['run'] = (argv) => spawnCli(t, argv, { home }).ended;
  const here: Scene['here'] = (argv) => runHere(home, argv);
  const claimed = await here(['claim', url, '--json', '--show-phrase', '--name', 'Desk']);
  if (claimed.code !== 0) throw new Error(claimed.stderr);
  const { phrase } = JSON.parse(claimed.stdout.split('\n')[0] ?? '') as { phrase: string };
  return { server, url, home, phrase, folder: join(home, 'service', 'device', 'default'), run, here };
}

const parsed = ({ stdout }: Ended): Json => JSON.parse(stdout) as Json;

/** For the tests that another one's items do not disturb. */
const shared = scene(t);

t.test(
  'CLI-16 CLI-17 CLI-20: standard output has JSON only, a pipe no colours, one private file all secrets',
  async (t) => {
    const { run, here, home, folder, phrase } = await shared;
    const put = await run(['put', 'milk', '--json']);
    t.equal(put.code, EXIT.ok);
    t.match(parsed(put), { queued: false, type: 'text' });
    t.equal(statSync(folder).mode & 0o777, 0o700);
    for (const path of filesBelow(folder)) t.equal(statSync(path).mode & 0o077, 0, path);
    const everything: string[] = [];
    for (const argv of [
      ['list'],
      ['bins'],
      ['devices'],
      ['status'],
      ['sync'],
      ['search', 'milk'],
      ['get', String(parsed(put)['id'])],
    ]) {
      const plain = await (argv[0] === 'list' ? run : here)(argv);
      const json = await here([...argv, '--json']);
      t.equal(plain.code, EXIT.ok, `${argv.join(' ')}: ${plain.stderr}`);
      t.notMatch(plain.stdout + plain.stderr, /\u001b/, `${argv.join(' ')}: no colours`);
      t.type(parsed(json), 'object', argv.join(' '));
      everything.push(plain.stdout, plain.stderr, json.stdout, json.stderr);
    }
    const { masterKey, keys, token } = await identityIn(folder);
    const secrets = [toBase64Url(masterKey), toBase64Url(keys.secretKey), token.text];
    for (const secret of [phrase, phrase.split(' ').slice(0, 2).join(' '), ...secrets]) {
      t.notOk(everything.join('\n').includes(secret), 'no secret is printed');
      for (const path of filesBelow(folder)) t.notOk(readFileSync(path).includes(secret), path);
    }
    t.same(readdirSync(home), ['service'], 'nothing is written anywhere else');
  },
);

t.test('CLI-15 CLI-16: the built program ends with its exit codes and one message', async (t) => {
  const { run, here, home } = await shared;
  const fails = async (argv: readonly string[], code: number, error: string): Promise<void> => {
    const ended = await (argv[0] === 'get' ? run : here)([...argv, '--json']);
    t.equal(ended.code, code, argv.join(' '));
    t.equal(ended.stdout, '', argv.join(' '));
    const last = ended.stderr.trim().split('\n').at(-1) ?? '';
    t.match(JSON.parse(last), { error: { code: error, message: String } }, argv.join(' '));
    const plain = await here(argv);
    t.match(plain.stderr, /^Error: /m);
    t.notMatch(plain.stderr, /\n {4}at |\.js:\d/, 'no stack is shown');
  };
  await fails(['get', '01ZZZZ'], EXIT.notFound, 'not_found');
  await fails(['nonsense'], EXIT.usage, 'usage');
  await fails(['put', '--type', 'contact', '--set', 'age=7'], EXIT.usage, 'bad_payload');
  await fails(['list', '--profile', 'none'], EXIT.notFound, 'no_device');
  await fails(['revoke', 'Desk', '--yes'], EXIT.refused, 'last_device');
  await fails(['certify', 'Desk', '0000'], EXIT.untrusted, 'fingerprint');
  t.match(await here([]), { code: EXIT.usage, stdout: /Usage: service-device/ });
  t.match(await here(['--version']), {
    code: EXIT.ok,
    stdout: /^\d+\.\d+\.\d+ \((?:[0-9a-f]{12}(?:-dirty)?|unknown)\)\n$/,
  });
  t.match(await here(['help', 'put']), { code: EXIT.ok, stdout: /Usage: service-device put/ });
  const debugged = spawnCli(t, ['get', '01ZZZZ'], { home, env: { SERVICE_DEBUG: '1' } });
  t.match((await debugged.ended).stderr, /\n {4}at /, 'a stack is shown on request');
});

t.test('CLI-18: commands at once on one profile all succeed; the lock of a killed one is taken over', async (t) => {
  const { run, here, folder, home, server } = await scene(t);
  const both = await Promise.all(['one', 'two'].map((text) => run(['put', text, '--json'])));
  t.same(
    both.map(({ code }) => code),
    [0, 0],
    both.map(({ stderr }) => stderr).join('\n'),
  );
  const { items } = parsed(await here(['list', '--json'])) as { items: Json[] };
  t.same(items.map(({ title }) => title).sort(), ['one', 'two']);

  const lock = join(folder, 'lock');
  const other = spawnCli(t, ['recover', `http://127.0.0.1:${server.port}`, '--profile', 'held', '--phrase-file', '-'], {
    home,
    through: [process.execPath, BINARY],
  });
  const held = join(home, 'service', 'device', 'held', 'lock');
  // It waits for its input while it holds the lock.
  await until('the lock', () => existsSync(held) && lockHolder(held) === other.pid);
  const waiting = spawnCli(t, ['list', '--profile', 'held'], { home });
  other.kill('SIGKILL');
  await other.ended;
  t.match(await waiting.ended, { code: EXIT.notFound, stderr: /no device in profile held/ }, 'taken over at once');

  const file = join(lock, String(1 + Math.max(...readdirSync(lock).map(Number))));
  writeFileSync(file, `${process.pid} another-process-with-its-number`);
  const long = new Date(Date.now() - 60_000);
  utimesSync(file, long, long);
  t.equal((await run(['list'])).code, EXIT.ok, 'so is a lock whose process number another process has got');
});

t.test('CLI-12 CLI-26: watch runs beside other commands, and ends at a signal with 130', async (t) => {
  const { here, home } = await shared;
  const watch = spawnCli(t, ['watch', '--json'], { home });
  await watch.seen(/"ready"/);
  t.equal((await here(['put', 'seen at once'])).code, EXIT.ok);
  await watch.seen(/"title":"seen at once"/);
  watch.kill('SIGINT');
  t.match(await watch.ended, { code: EXIT.interrupted, stderr: /"interrupted"/ });
  const counted = spawnCli(t, ['watch', '--count', '1'], { home });
  await counted.seen(/Watching/);
  await here(['put', 'the last one']);
  t.match(await counted.ended, {
    code: EXIT.ok,
    stdout: /^\d\d:\d\d:\d\d {2}\w{5} {2}inbox +text +the last one\n$/,
  });
});

t.test('CLI-01 CLI-05 CLI-17: two people claim and pair at two terminals', async (t) => {
  const { port } = await runServer(t);
  const [one, two] = [await temporaryFolder(t), await temporaryFolder(t)];
  const url = `http://127.0.0.1:${port}`;
  const claim = typed(t, one, `claim ${url} --name Desk`);
  const shown = await claim.seen(/Your twelve words[^]*?12 \S+/);
  const words = [...shown[0].matchAll(/\d+ ([a-z]+)/g)].map(([, word]) => word ?? '');
  t.equal(words.length, 12);
  const [, first] = await claim.seen(/Word number (\d+): /);
  claim.write(`${words[Number(first) - 1] ?? ''}\r`);
  const [, second] = await claim.seen(new RegExp(`Word number (?!${first ?? ''}:)(\\d+): `));
  claim.write(`${words[Number(second) - 1] ?? ''}\r`);
  t.match(await claim.ended, { code: EXIT.ok, stdout: /Done\..* This is "Desk"/ });

  const pair = typed(t, one, 'pair');
  const [, text = ''] = await pair.seen(/(http:\S+#pair=[a-z-]+)/);
  const join = typed(t, two, `join '${text}' --name Phone --glyph phone`);
  const [, digits = ''] = await join.seen(/Digits: (\d{3} \d{3})/);
  await pair.seen(new RegExp(`Digits: ${digits}`));
  await pair.seen(/\[y\/N\] /);
  pair.write('yes\r');
  const [paired, joined] = await Promise.all([pair.ended, join.ended]);
  t.same([paired.code, joined.code], [EXIT.ok, EXIT.ok], paired.stdout + joined.stdout);
  t.match(paired.stdout, /\u001b\[30;107m.*█/, 'a QR code is shown, dark on light');

  const secret = typed(t, two, 'put --type password --set service=mail');
  await secret.seen(/Secret: /);
  secret.write('hunter2\r');
  const written = await secret.ended;
  t.equal(written.code, EXIT.ok);
  t.notMatch(written.stdout, 'hunter2', 'a secret is not shown while it is typed');
  const list = await typed(t, one, 'list').ended;
  t.match(list.stdout, /\u001b\[36m/, 'a terminal gets colours');
  const colourless = await typed(t, one, 'list', { NO_COLOR: '1' }).ended;
  t.match(colourless.stdout, /password +Phone +mail/);
  t.notMatch(colourless.stdout, /\u001b\[\d+m/, 'with NO_COLOR a terminal gets no colours');

  const asked = typed(t, two, 'rm 01');
  await asked.seen(/\[y\/N\] /);
  asked.write('\u0003');
  t.equal((await asked.ended).code, EXIT.interrupted, 'Ctrl-C at a question interrupts');
});

t.test(
  'CLI-22: at a terminal `recover` asks for a phrase that is not shown, and sends nothing before it is right',
  async (t) => {
    const { server, url, here, phrase } = await scene(t);
    await here(['put', 'still here']);
    const calls = (): unknown[] => server.logs.filter(({ msg }) => msg === 'request').map(({ path }) => path);
    const before = calls().length;
    const home = await temporaryFolder(t);
    const recover = typed(t, home, `recover ${url} --name Back`);
    await recover.seen(/The twelve words: /);
    recover.write(`${mistyped(phrase)}\r`);
    await recover.seen(/Try again\.\s+The twelve words: /);
    t.same(calls().slice(before), [], 'a mistyped phrase is refused on this machine');
    recover.write(`${phrase}\r`);
    const { code, stdout, stderr } = await recover.ended;
    t.equal(code, EXIT.ok, stdout);
    t.same(
      calls()
        .slice(before)
        .filter((path) => String(path).includes('recover')),
      ['/api/devices/recover/challenge', '/api/devices/recover'],
      'the right one is used, once',
    );
    for (const [at, word] of phrase.split(' ').slice(0, -1).entries())
      t.notOk(
        (stdout + stderr).includes(`${word} ${phrase.split(' ')[at + 1] ?? ''}`),
        'no part of the phrase is shown',
      );
    t.match(parsed(await runHere(home, ['list', '--json'])), { items: [{ title: 'still here' }] });
  },
);

t.test('CLI-15: a reader that closes the pipe ends the program without an error', async (t) => {
  const { here, home } = await shared;
  await here(['put', 'x'.repeat(60_000)]);
  const piped = spawnCli(t, ['-c', `${process.execPath} ${BINARY} list --json | true; echo "\${PIPESTATUS[0]}"`], {
    home,
    through: ['bash'],
  });
  const { stdout, stderr } = await piped.ended;
  t.equal(stdout, '0\n');
  t.equal(stderr, '');
});

t.test('CLI-15: a command that writes goes on to its end where nobody reads its output any more', async (t) => {
  const { here, home } = await shared;
  const folder = await temporaryFolder(t);
  const names = Array.from({ length: 12 }, (_, at) => `unread-${at}.txt`);
  for (const name of names) writeFileSync(join(folder, name), name);
  const put = `${process.execPath} ${BINARY} put --folder ${folder}`;
  const piped = spawnCli(t, ['-c', `${put} | true; echo "\${PIPESTATUS[0]}"`], { home, through: ['bash'] });
  t.match(await piped.ended, { stdout: '0\n' });
  const { items } = parsed(await here(['list', '--json'])) as { items: Json[] };
  t.equal(items.filter(({ title }) => String(title).includes('unread-')).length, names.length);
});

t.test('CLI-15: a command whose messages nobody reads any more fails with its exit code', async (t) => {
  const { home } = await shared;
  const list = `${process.execPath} ${BINARY} list --profile none`;
  // The reader ends before the program writes.
  const unread = spawnCli(t, ['-c', `{ sleep 0.3; ${list} 2>&3; echo "$?"; } 3> >(true)`], { home, through: ['bash'] });
  t.match(await unread.ended, { stdout: `${EXIT.notFound}\n`, stderr: '' });
});
