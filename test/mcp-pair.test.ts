/** The companion's commands for a person: pair, unpair and status, and their messages when something is wrong. */
import { chmod, mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import type { JoinApproval } from '../src/sdk/pairing.js';
import { holdInstance } from '../src/mcp/lock.js';
import type { Answers } from './support/answers.js';
import { next, wiretap, world, refusal, type World } from './support/client-world.js';
import { newIdentity } from './support/client.js';
import { ShiftedClock } from './support/clock.js';
import { freePort } from './support/free-port.js';
import { desk, pairingOf, saveIdentity, type Desk } from './support/mcp-desk.js';
import { temporaryFolder } from './support/postgres.js';

const PASSWORD = 'a long password of the test';

/** Six words on the first device's screen; `approve` is its user. */
async function offered(scene: World, approve: (request: JoinApproval) => boolean = () => true) {
  const asked: JoinApproval[] = [];
  const offer = await scene.first.device.offerPairing((request) => {
    asked.push(request);
    return approve(request);
  });
  return { words: offer.words, joined: offer.joined, asked };
}

/** A machine that is paired with the first device. */
async function paired(scene: World, on: Desk, extra: readonly string[] = []): Promise<string> {
  const { words, joined } = await offered(scene);
  const outcome = await on.call(['pair', '--host', scene.url, '--code', words, ...extra]);
  if (outcome.code !== 0) throw new Error(outcome.notes);
  return joined;
}

/** An address where nothing listens. */
const nowhere = async (): Promise<string> => `http://127.0.0.1:${await freePort()}`;

const count = ({ tap }: Desk, path: string): number => tap.calls.filter((call) => call.path === path).length;
const ids = async (scene: World): Promise<string[]> =>
  (await scene.first.device.devices.refresh()).filter(({ revokedAt }) => revokedAt === null).map(({ id }) => id);

t.test('MCP-01: with typed address and words a machine is paired; both screens show the same digits', async (t) => {
  const scene = await world(t);
  await scene.first.device.connect();
  const mac = await desk(t);
  const { words, asked, joined } = await offered(scene);
  const answers: Answers = [
    [/^Address of the server/, scene.url.replace('http://', '')],
    [/^The six words/, words.toUpperCase().replaceAll(' ', '-')],
  ];
  const outcome = await mac.call(['pair', '--name', 'Agent'], { answers });
  t.equal(outcome.code, 0, outcome.notes);
  const digits = /Digits: (\d{3}) (\d{3})/.exec(outcome.notes) ?? [];
  t.equal(`${digits[1]}${digits[2]}`, asked[0]?.digits, 'both screens show the same digits');
  t.match(outcome.progress.join('\n'), /Waiting for the other device, [45]:\d\d left/);
  t.match(outcome.out, new RegExp(`^Paired\\. This machine is "Agent", a device of ${scene.url}\\.`));
  t.same(
    outcome.questions.map(({ hidden }) => hidden),
    [false, false, false],
  );
  const identity = await pairingOf(mac);
  t.match(identity, { deviceId: await joined, name: 'Agent', serverUrl: scene.url });
  t.same(Buffer.from(identity.masterKey), Buffer.from(scene.first.identity().masterKey));
  t.match(await (await scene.open(identity)).device.me(), { server: { deviceCount: 2 } });
});

t.test(
  'MCP-01: a script gives address and words by SERVICE_HOST or --host, --code, or one text with both',
  async (t) => {
    const scene = await world(t);
    await scene.first.device.connect();
    const env = { SERVICE_HOST: scene.url };
    for (const how of [
      (words: string) => ({ argv: ['--code', words], env }),
      (words: string) => ({
        argv: ['--code', words, '--host', scene.url],
        env: { SERVICE_HOST: 'http://127.0.0.1:1' },
      }),
      (words: string) => ({ argv: ['--host', `${scene.url}/#pair=${words.replaceAll(' ', '-')}`], env: {} }),
    ]) {
      const one = await desk(t);
      const { words, joined } = await offered(scene);
      const { argv, env: given } = how(words);
      const outcome = await one.call(['pair', ...argv], { env: given });
      t.equal(outcome.code, 0, outcome.notes);
      t.match(outcome.notes, /Waiting for the other device, five minutes at most/);
      t.equal((await pairingOf(one)).deviceId, await joined);
      t.match((await pairingOf(one)).name, /^.{1,56} \(agent\)$|^agent$/);
      t.notMatch(
        outcome.out + outcome.notes,
        new RegExp(words.split(' ').slice(0, 2).join('.')),
        'words are not repeated',
      );
    }
  },
);

t.test('MCP-10: a machine without an identifier of its own is paired with a warning', async (t) => {
  const scene = await world(t);
  await scene.first.device.connect();
  const bare = await desk(t, { id: 'uninitialized' });
  const { words } = await offered(scene);
  const outcome = await bare.call(['pair', '--host', scene.url, '--code', words]);
  t.match(outcome, { code: 0, notes: /Warning: this machine has no identifier, .*\/etc\/machine-id/ });
  t.match((await bare.call(['status'])).out, /Bound to: +host-name/);
});

t.test('MCP-02: what is missing or mistyped is detected before anything is sent', async (t) => {
  const one = await desk(t);
  const host = ['--host', 'http://127.0.0.1:1'];
  for (const [argv, notes, options] of [
    [['pair'], /address of the server is missing.*SERVICE_HOST/, {}],
    [['pair', '--host', 'ftp://x', '--code', 'x'], /not the address of a server/, {}],
    [['pair', ...host], /six words are missing.*--code/, {}],
    [['pair', ...host, '--code', 'one two three'], /bad_words/, {}],
    [['pair', ...host, '--code', 'a', '--name', 'a\u202eb'], /device name/, {}],
    [
      ['pair', ...host],
      /bad_words/,
      {
        answers: [
          [/six/, 'a b'],
          [/six/, ''],
          [/six/, 'zoo zoo'],
        ] as Answers,
      },
    ],
  ] as const) {
    const outcome = await one.call(argv, options);
    t.equal(outcome.code, 2, argv.join(' '));
    t.match(outcome.notes, notes);
  }
  t.equal(one.tap.calls.length, 0, 'nothing was sent');
  t.same(await readdir(join(one.paths.folder, '..')), [], 'no file is made');
  const words = 'abandon abandon abandon abandon abandon account';
  await writeFile(one.paths.folder, 'a file where the folder should be');
  const full = await one.call(['pair', ...host, '--code', words]);
  t.match(full.notes, /config_unsafe.*ENOTDIR/);
  t.equal(one.tap.calls.length, 0, 'nothing is sent where the pairing could not be kept');
});

t.test('MCP-03: an account password is prompted for without echo, again if mistyped, or read', async (t) => {
  const scene = await world(t);
  await scene.first.device.connect();
  await scene.first.device.setPassword(PASSWORD);
  const one = await desk(t);
  const { words, asked } = await offered(scene);
  const argv = ['pair', '--host', scene.url, '--code', words];
  const nobody = await one.call(argv);
  t.equal(nobody.code, 5);
  t.match(nobody.notes, /password_required/);
  const answers: Answers = [
    [/^Account password/, 'wrong'],
    [/^Account password/, PASSWORD],
  ];
  const outcome = await one.call(argv, { answers });
  t.equal(outcome.code, 0, outcome.notes);
  t.same(
    outcome.questions.map(({ hidden }) => hidden),
    [false, true, true],
  );
  const shown = [...outcome.notes.matchAll(/Digits: (\d{3}) (\d{3})/g)].map(([, a, b]) => `${a}${b}`);
  t.equal(shown.at(-1), asked[0]?.digits, 'the last digits are those on the other screen');
  t.notMatch(outcome.notes + outcome.out, new RegExp(PASSWORD));

  const wrong = await offered(scene);
  const two = await desk(t);
  const secret = join(await temporaryFolder(t), 'password');
  await writeFile(secret, `wrong\n`, { mode: 0o600 });
  const host = ['pair', '--host', scene.url, '--code', wrong.words];
  t.match(await two.call([...host, '--password-file', secret]), { code: 5, notes: /password_invalid/ });
  t.match(await two.call([...host, '--password-file', `${secret}.none`]), {
    code: 2,
    notes: /cannot be read \(ENOENT\)/,
  });
  for (const [line, notes] of [
    [`${'x'.repeat(4_097)}\n`, /the first line of .*password is longer than 4096 bytes/],
    ['\nsecret\n', /the first line of .*password is empty/],
  ] as const) {
    await writeFile(secret, line);
    t.match(await two.call([...host, '--password-file', secret]), { code: 2, notes });
  }
  const read = await two.call([...host, '--password-file', '-'], { input: `${PASSWORD}\nmore` });
  t.equal(read.code, 0, read.notes);
});

t.test('MCP-04: a pairing that fails ends with its own code, and keeps nothing', async (t) => {
  const clock = new ShiftedClock();
  const scene = await world(t, { clock });
  await scene.first.device.connect();
  const one = await desk(t);
  const refused = await offered(scene, () => false);
  refused.joined.catch(() => undefined);
  const argv = (words: string): string[] => ['pair', '--host', scene.url, '--code', words];
  t.match(await one.call(argv(refused.words)), { code: 5, notes: /pairing_rejected.*new words/ });
  t.match(
    await one.call(argv(refused.words)),
    { notes: /unknown_code|pairing_expired|pairing_rejected/ },
    'the words work once',
  );
  const { words } = await offered(scene);
  const down = ['pair', '--host', await nowhere(), '--code', words];
  t.match(await one.call(down), { code: 4, notes: /unreachable.*nothing listens/ });
  one.tap.alterReply = ({ path }, body) => (path === '/devices/pair-fetch-epk' ? { ...body, epk: 7 } : undefined);
  t.match(await one.call(argv(words)), { code: 1, notes: /bad_answer/ });
  one.tap.alterReply = ({ path }, body) =>
    path === '/devices/pair-fetch-npk' ? { ...body, confirmation: 'A'.repeat(43) } : undefined;
  t.match(await one.call(argv(words)), { code: 6, notes: /untrusted.*somebody may be in between/ });
  const late = await offered(scene);
  clock.advance(300_001);
  one.tap.alterReply = () => undefined;
  t.match(await one.call(argv(late.words)), { code: 5, notes: /pairing_expired.*Show new words/ });
  t.match(await refusal(pairingOf(one)), { code: 'not_paired' });
});

t.test('MCP-05: a pairing is replaced only with --force, and then its previous device is revoked', async (t) => {
  const scene = await world(t);
  await scene.first.device.connect();
  const one = await desk(t);
  const first = await paired(scene, one, ['--name', 'One']);
  const { words } = await offered(scene);
  const argv = ['pair', '--host', scene.url, '--code', words, '--name', 'Two'];
  const again = await one.call(argv);
  t.match(again, { code: 5, notes: /already_paired.*"One".*--force.*unpair/ });
  t.equal((await pairingOf(one)).deviceId, first);
  const refused = await offered(scene, () => false);
  refused.joined.catch(() => undefined);
  t.equal((await one.call(['pair', '--force', '--host', scene.url, '--code', refused.words])).code, 5);
  t.equal((await pairingOf(one)).deviceId, first, 'a failed pairing leaves the previous one');
  t.ok((await ids(scene)).includes(first));
  const second = await paired(scene, one, ['--force', '--name', 'Two']);
  t.match(await pairingOf(one), { deviceId: second, name: 'Two' });
  t.same((await ids(scene)).includes(first), false, 'the previous device is revoked');
  await writeFile(one.paths.configPath, '{}');
  t.match(await one.call(argv), { code: 1, notes: /config_damaged.*pair --force/ });
  const third = await paired(scene, one, ['--force']);
  t.equal((await pairingOf(one)).deviceId, third, 'a damaged pairing is replaced too');
});

t.test('MCP-05 MCP-06: of two concurrent pairings the later is revoked again at the server', async (t) => {
  const scene = await world(t);
  await scene.first.device.connect();
  const one = await desk(t);
  const before = await ids(scene);
  const faster = newIdentity();
  const offer = await scene.first.device.offerPairing(async () => {
    await saveIdentity(one.keeper, faster);
    return true;
  });
  const outcome = await one.call(['pair', '--host', scene.url, '--code', offer.words]);
  t.match(outcome, { code: 5, notes: /already_paired.*paired meanwhile.*The new device was revoked/ });
  t.equal((await pairingOf(one)).deviceId, faster.deviceId);
  t.same(await ids(scene), before);
});

t.test('MCP-06: a pairing that cannot be kept is revoked again at the server', async (t) => {
  const scene = await world(t);
  await scene.first.device.connect();
  const tap = wiretap();
  const one = await desk(t, { tap });
  const before = await ids(scene);
  tap.alterReply = ({ path }) => {
    // The disk fails after the other device has released the key.
    if (path === '/devices/pair-fetch-npk') one.paths.machine.best = () => Promise.reject(full);
    return undefined;
  };
  const full = Object.assign(new Error('no room'), { code: 'ENOSPC' });
  const { words } = await offered(scene);
  const outcome = await one.call(['pair', '--host', scene.url, '--code', words]);
  t.match(outcome, { code: 1, notes: /\(disk\): the pairing could not be saved: no room.*The new device was revoked/ });
  t.same(await ids(scene), before);
});

t.test('MCP-17: an interruption ends the waiting with 130, and nothing is kept', async (t) => {
  const scene = await world(t);
  await scene.first.device.connect();
  const one = await desk(t);
  let asked: () => void = () => undefined;
  const there = new Promise<void>((resolve) => {
    asked = resolve;
  });
  const offer = await scene.first.device.offerPairing(() => new Promise<boolean>(() => asked()));
  offer.joined.catch(() => undefined);
  const call = one.start(['pair', '--host', scene.url, '--code', offer.words]);
  await there;
  call.interrupt();
  t.match(await call.result, { code: 130, notes: /interrupted.*If the other device has already said yes/ });
  offer.cancel();
  t.match(await refusal(pairingOf(one)), { code: 'not_paired' });
});

t.test('MCP-14: unpair revokes at the server, then removes the file; it removes nothing if it cannot', async (t) => {
  const scene = await world(t);
  await scene.first.device.connect();
  const one = await desk(t);
  t.match(await one.call(['unpair']), { code: 3, notes: /not_paired/ });
  const id = await paired(scene, one);
  const revoked = next(scene.first, 'devices', ({ devices }) =>
    devices.some((each) => each.id === id && each.revokedAt !== null),
  );
  t.match(await one.call(['unpair']), { code: 0, out: /^Unpaired/ });
  await revoked;
  t.notOk((await ids(scene)).includes(id));
  const left = await readdir(one.paths.folder, { withFileTypes: true });
  // The folder of the lock stays; it reveals nothing.
  t.same(
    left.filter((entry) => entry.isFile()),
    [],
    'no file is left',
  );

  const other = await paired(scene, one);
  const identity = await pairingOf(one);
  await saveIdentity(one.keeper, { ...identity, serverUrl: 'http://127.0.0.1:1' });
  t.match(await one.call(['unpair']), { code: 4, notes: /nothing was removed: the server cannot be reached.*--force/ });
  t.equal((await pairingOf(one)).deviceId, other, 'the pairing is kept');
  t.match(await one.call(['unpair', '--force']), {
    code: 0,
    notes: /could not be revoked.*Revoke it on another device/,
  });
  t.match(await refusal(pairingOf(one)), { code: 'not_paired' });

  await saveIdentity(one.keeper, identity);
  await scene.first.device.revoke(other);
  t.match(await one.call(['unpair']), { code: 0 }, 'a device that is already revoked can be unpaired');
  await saveIdentity(one.keeper, identity);
  await writeFile(one.paths.configPath, 'x');
  t.match(await one.call(['unpair']), { code: 0, notes: /could not be revoked/ }, 'a damaged file is removed');
  t.match(await refusal(pairingOf(one)), { code: 'not_paired' });
});

t.test('MCP-15: status reports the pairing and what is wrong, as lines or as JSON, with an exit code', async (t) => {
  const scene = await world(t);
  await scene.first.device.connect();
  const one = await desk(t);
  const printed: string[] = [];
  const status = async () => {
    const outcome = await one.call(['status', '--json']);
    printed.push(outcome.out, outcome.notes);
    return { code: outcome.code, ...(JSON.parse(outcome.out) as Record<string, unknown>) };
  };
  t.match(await status(), { code: 3, paired: false, running: null, version: '1.2.3', error: { code: 'not_paired' } });
  const id = await paired(scene, one, ['--name', 'Agent']);
  const lock = await holdInstance({ paths: one.paths, note: () => undefined }, () => undefined);
  t.match(await status(), {
    ...{ code: 0, paired: true, server: scene.url, device: { id, name: 'Agent' }, boundTo: 'machine-id' },
    ...{ running: process.pid, account: { items: 0, devices: 2 }, error: null, file: one.paths.configPath },
  });
  lock.release();
  const plain = await one.call(['status']);
  t.match(plain.out, new RegExp(`Server: +${scene.url}\\nDevice: +Agent \\(${id}\\)\\nBound to: +machine-id`));
  const { masterKey, keys, token: issued } = await pairingOf(one);
  for (const secret of [
    issued.text,
    ...[masterKey, keys.secretKey].map((key) => Buffer.from(key).toString('base64url')),
  ])
    for (const text of [plain.out, plain.notes, ...printed]) t.notOk(text.includes(secret));
  await saveIdentity(one.keeper, { ...(await pairingOf(one)), token: { text: 'expired', expiresAt: 5 } });
  t.match(await status(), { code: 0 });
  t.not((await pairingOf(one)).token.text, 'expired', 'an expired token is renewed and kept');
  await scene.first.device.revoke(id);
  t.match(await status(), { code: 5, paired: true, account: null, error: { code: 'revoked', hint: /pair --force/ } });
  await saveIdentity(one.keeper, { ...newIdentity(), serverUrl: scene.url });
  t.match(await status(), { code: 5, error: { code: 'unknown_device' } });
  // Of a server that lies: later than any date.
  const token = { text: 'a-bearer', expiresAt: Number.MAX_SAFE_INTEGER };
  await saveIdentity(one.keeper, { ...newIdentity(), token, serverUrl: 'http://127.0.0.1:1' });
  t.match(await status(), { code: 4, paired: true, error: { code: 'unreachable' } });
  const copy = await desk(t, { id: 'fedcba9876543210fedcba9876543210' });
  await mkdir(copy.paths.folder);
  await writeFile(copy.paths.configPath, await readFile(one.paths.configPath));
  await chmod(copy.paths.configPath, 0o600);
  t.match(await copy.call(['status']), { code: 5, out: /Paired: +no[^]*belongs to another machine/ });
  t.match(await copy.call(['serve']), { code: 5, notes: /other_machine.*copied here.*pair --force/ });
  t.equal(count(copy, '/me'), 0, 'nothing is sent');
});

t.test('MCP-16: an unknown command or option ends with 2, and is not repeated where it may be the words', async (t) => {
  const one = await desk(t);
  for (const [argv, notes] of [
    [[], /a command is missing/],
    [['pear'], /no command pear/],
    [['pair', '--codes', 'secret words'], /no option --codes/],
    [['pair', 'secret', 'words'], /missing or unexpected/],
    [['pair', '--code'], /an argument is missing/],
    [['serve', '--force'], /no option --force/],
    [['status', 'x'], /missing or unexpected/],
  ] as const) {
    const outcome = await one.call(argv);
    t.match(outcome, { code: 2, notes }, argv.join(' '));
    t.notMatch(outcome.notes, /secret/);
    t.equal(outcome.out, '');
  }
  for (const argv of [['--help'], ['-h'], ['help'], ['pair', '--help']]) {
    t.match(await one.call(argv), { code: 0, out: /service-mcp pair[^]*serve[^]*status[^]*unpair/ });
  }
  t.match(await one.call(['--version']), { code: 0, out: '1.2.3 (0123456789ab)' });
  t.same(await readdir(join(one.paths.folder, '..')), []);
});
