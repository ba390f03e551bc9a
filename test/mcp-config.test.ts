/** The stored pairing of the companion: its place, its content, copies, damage and concurrent instances. */
import { userInfo } from 'node:os';
import { execFileSync } from 'node:child_process';
import { chmod, mkdir, readdir, readFile, rm, stat, symlink, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import type { Identity } from '../src/sdk/identity.js';
import { tryLock } from '../src/files/lock.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { profileOf } from '../src/cli/profile.js';
import {
  forgetIdentity,
  loadIdentity,
  loadPairing,
  renewIdentity,
  savePairing,
  savePasswords,
  type Keeper,
} from '../src/mcp/config-file.js';
import { holdInstance, runningInstance } from '../src/mcp/lock.js';
import { machineOf, type Machine, type SystemCalls } from '../src/mcp/machine.js';
import { pathsOf, type Paths } from '../src/mcp/context.js';
import { newIdentity } from './support/client.js';
import { refusal } from './support/client-world.js';
import { TestClock } from './support/clock.js';
import { until } from './support/events.js';
import { saveIdentity } from './support/mcp-desk.js';
import { temporaryFolder, type WithTeardown } from './support/postgres.js';

const ID = '0123456789abcdef0123456789abcdee';
const OTHER_ID = '0123456789abcdef0123456789abcdef';
const UUID = '4C4C4544-0031-3010-8039-B9C04F4E3533';

/** A machine of the test, of which nothing is known but what is given. */
const machine = (known: Partial<SystemCalls> = {}): Machine =>
  machineOf({
    platform: 'linux',
    read: () => Promise.reject(new Error('ENOENT')),
    run: () => Promise.reject(new Error('ENOENT')),
    hostName: () => 'desk',
    userName: () => 'me',
    systemRoot: 'C:\\Windows',
    ...known,
  });

const linux = (id: string): Machine => machine({ read: () => Promise.resolve(`${id}\n`) });

interface Kept extends Keeper {
  readonly notes: string[];
}

async function keeper(t: WithTeardown, on: Machine = linux(ID)): Promise<Kept> {
  const notes: string[] = [];
  const paths = pathsOf({ XDG_CONFIG_HOME: await temporaryFolder(t) }, on);
  return { paths, notes, note: (text) => void notes.push(text), platform: { sodium: nodeSodium } };
}

const elsewhere = (kept: Keeper, on: Machine): Keeper => ({ ...kept, paths: { ...kept.paths, machine: on } });

const identity = newIdentity({
  name: 'Agent',
  token: { text: 'bearer-of-the-test', expiresAt: 1_900_000_000_000, issuedAt: 5 },
});

const plain = ({ keys, masterKey, ...rest }: Identity): unknown => ({
  ...rest,
  keys: [Buffer.from(keys.publicKey).toString('hex'), Buffer.from(keys.secretKey).toString('hex')],
  masterKey: Buffer.from(masterKey).toString('hex'),
});

t.test('MCP-07: a saved pairing is loaded again, from a private file with no secret in the clear', async (t) => {
  const kept = await keeper(t);
  t.match(await refusal(loadIdentity(kept)), { code: 'not_paired', hint: /service-mcp pair/ });
  t.equal(await saveIdentity(kept, identity), 'machine-id');
  t.same(plain(await loadIdentity(kept)), plain(identity));
  t.equal((await stat(kept.paths.configPath)).mode & 0o777, 0o600);
  t.equal((await stat(kept.paths.folder)).mode & 0o777, 0o700);
  const content = await readFile(kept.paths.configPath, 'latin1');
  const bytes = [identity.masterKey, identity.keys.secretKey].map((key) => Buffer.from(key));
  const forms = bytes.flatMap((key) => [key.toString('base64url'), key.toString('hex'), key.toString('latin1')]);
  for (const secret of [...forms, identity.token.text, ID])
    t.notOk(content.includes(secret), 'no secret is in the file');
  t.match(JSON.parse(content), { server: identity.serverUrl, deviceId: identity.deviceId, machine: 'machine-id' });
  await saveIdentity(kept, identity);
  t.not(await readFile(kept.paths.configPath, 'latin1'), content, 'each save uses another salt');
  await forgetIdentity(kept.paths);
  t.match(await refusal(loadIdentity(kept)), { code: 'not_paired' });
  t.same(kept.notes, []);
});

t.test('MCP-07 CLI-66: the folder is the one that the system has for such files, for both programs', (t) => {
  const base = (env: Record<string, string>): string => pathsOf(env, linux(ID)).configPath;
  t.equal(base({ HOME: '/home/me' }), '/home/me/.config/service/mcp.json');
  t.equal(base({ HOME: '/home/me', XDG_CONFIG_HOME: '/cfg' }), '/cfg/service/mcp.json');
  t.equal(
    base({ HOME: '/home/me', XDG_CONFIG_HOME: 'cfg' }),
    '/home/me/.config/service/mcp.json',
    'a relative XDG_CONFIG_HOME is ignored',
  );
  t.equal(base({ HOME: '/home/me', XDG_CONFIG_HOME: '' }), '/home/me/.config/service/mcp.json');
  for (const HOME of ['', 'me'])
    t.equal(base({ HOME }), `${userInfo().homedir}/.config/service/mcp.json`, `HOME "${HOME}" is ignored`);
  const profile = (env: Record<string, string>): string =>
    profileOf('default', { sodium: nodeSodium, clock: new TestClock() }, { env, note: () => undefined }).folder;
  for (const [set, folder] of [
    ['/cfg', '/cfg'],
    ['cfg', '/home/me/.config'],
    ['', '/home/me/.config'],
  ] as const)
    t.equal(profile({ HOME: '/home/me', XDG_CONFIG_HOME: set }), `${folder}/service/device/default`, `"${set}"`);
  const windows = pathsOf({ APPDATA: '/Users/me/AppData/Roaming', XDG_CONFIG_HOME: '/cfg' }, linux(ID), 'win32');
  t.equal(windows.configPath, '/Users/me/AppData/Roaming/service/mcp.json');
  t.end();
});

t.test('MCP-08: a copy on another machine is refused with other_machine', async (t) => {
  const kept = await keeper(t);
  await saveIdentity(kept, identity);
  const mac = machine({ platform: 'darwin', run: () => Promise.resolve(`"IOPlatformUUID" = "${UUID}"`) });
  for (const other of [linux(OTHER_ID), machine(), mac]) {
    t.match(await refusal(loadIdentity(elsewhere(kept, other))), {
      code: 'other_machine',
      message: /belongs to another machine: it was copied here/,
      hint: /pair --force/,
    });
  }
  const edited = JSON.parse(await readFile(kept.paths.configPath, 'utf8')) as Record<string, unknown>;
  await writeFile(kept.paths.configPath, JSON.stringify({ ...edited, machine: 'host-name' }));
  t.match(
    await refusal(loadIdentity(elsewhere(kept, machine()))),
    { code: 'other_machine' },
    'claiming a weaker binding does not help',
  );
});

t.test('MCP-09: a file that was changed, truncated or replaced is refused, and quoted nowhere', async (t) => {
  const kept = await keeper(t);
  await saveIdentity(kept, identity);
  const sound = await readFile(kept.paths.configPath, 'utf8');
  const fields = JSON.parse(sound) as Record<string, string | number>;
  const flipped = (value: string): string => `${value.startsWith('A') ? 'B' : 'A'}${value.slice(1)}`;
  const damaged: (readonly [string, string])[] = [
    ['empty', ''],
    ['cut off', sound.slice(0, -30)],
    ['no object', '[]'],
    ['another format', JSON.stringify({ ...fields, format: 'other' })],
    ['older version', JSON.stringify({ ...fields, version: 0 })],
    ['unknown source', JSON.stringify({ ...fields, machine: 'constructor' })],
    ['long', `${sound}${' '.repeat(70_000)}`],
    ...['server', 'deviceId', 'name', 'nonce', 'ct', 'salt', 'binding'].map(
      (name) => [name, JSON.stringify({ ...fields, [name]: flipped(String(fields[name])) })] as const,
    ),
    ...['server', 'salt', 'ct'].map(
      (name) => [`no ${name}`, JSON.stringify({ ...fields, [name]: undefined })] as const,
    ),
  ];
  for (const [what, content] of damaged) {
    await writeFile(kept.paths.configPath, content);
    const error = await refusal(loadIdentity(kept));
    // These two fields identify the machine: changed, they name another one.
    const code =
      what === 'salt' || what === 'binding' ? 'other_machine' : what === 'long' ? 'config_unsafe' : 'config_damaged';
    t.equal(error.code, code, what);
    t.notMatch(error.message, /bearer|[A-Za-z0-9_-]{30}/, `${what}: nothing of the file is quoted`);
  }
  await writeFile(kept.paths.configPath, JSON.stringify({ ...fields, version: 2 }));
  t.match(await refusal(loadIdentity(kept)), { code: 'config_newer', hint: /newest/ });
  await saveIdentity(kept, identity);
  t.same(plain(await loadIdentity(kept)), plain(identity), 'pairing again repairs it');
});

t.test('MCP-07: the permissions of a folder that is open to others are tightened, with a warning', async (t) => {
  const kept = await keeper(t);
  await saveIdentity(kept, identity);
  await chmod(kept.paths.folder, 0o755);
  t.equal(await renewIdentity(kept, identity), true);
  t.match(kept.notes, [/was open to other users \(mode 755\)/]);
  t.equal((await stat(kept.paths.folder)).mode & 0o777, 0o700);
});

t.test('MCP-07: a folder behind a link is judged by its own permissions, not by those of the link', async (t) => {
  const kept = await keeper(t);
  const folder = await temporaryFolder(t);
  await chmod(folder, 0o700);
  await symlink(folder, kept.paths.folder);
  await saveIdentity(kept, identity);
  t.same(kept.notes, []);
  await chmod(folder, 0o755);
  t.equal(await renewIdentity(kept, identity), true);
  t.match(kept.notes, [/was open to other users \(mode 755\)/]);
  t.equal((await stat(folder)).mode & 0o777, 0o700);
});

t.test('MCP-09: permissions of a file that is open to others are tightened; a link is refused', async (t) => {
  const kept = await keeper(t);
  await saveIdentity(kept, identity);
  await chmod(kept.paths.configPath, 0o644);
  await loadIdentity(kept);
  t.match(kept.notes, [/was open to other users \(mode 644\)/]);
  t.equal((await stat(kept.paths.configPath)).mode & 0o777, 0o600);
  const linked = await keeper(t);
  await mkdir(linked.paths.folder);
  await symlink(kept.paths.configPath, linked.paths.configPath);
  t.match(await refusal(loadIdentity(linked)), { code: 'config_unsafe', message: /symbolic link/ });
  const piped = await keeper(t);
  await mkdir(piped.paths.folder);
  execFileSync('mkfifo', ['-m', '600', piped.paths.configPath]);
  t.match(
    await refusal(loadIdentity(piped)),
    { code: 'config_unsafe', message: /not a file/ },
    'a pipe is refused at once',
  );
});

t.test('MCP-10: each system has its identifier, shared ones are rejected, and the fallback comes last', async (t) => {
  const id = async (on: Machine): Promise<string> => {
    const { source, bytes } = await on.best();
    return `${source} ${source === 'host-name' ? '' : Buffer.from(bytes).toString()}`.trim();
  };
  const uuid = UUID.replaceAll('-', '').toLowerCase();
  const ioreg = `+-o J316sAP\n    {\n      "IOPlatformUUID" = "${UUID}"\n      "other" = "x"\n    }`;
  const reg = `\r\nHKEY_LOCAL_MACHINE\\SOFTWARE\r\n    MachineGuid    REG_SZ    ${UUID.toLowerCase()}\r\n\r\n`;
  t.equal(await id(linux(ID)), `machine-id ${ID}`);
  const dbus = machine({ read: (path) => Promise.resolve(path.includes('dbus') ? ID : 'uninitialized\n') });
  t.equal(await id(dbus), `machine-id ${ID}`, 'the second file is read');
  t.equal(await id(machine({ platform: 'darwin', run: () => Promise.resolve(ioreg) })), `platform-uuid ${uuid}`);
  t.equal(await id(machine({ platform: 'win32', run: () => Promise.resolve(reg) })), `machine-guid ${uuid}`);
  for (const shared of ['', '0'.repeat(32), 'f'.repeat(32), 'uninitialized', `${ID} ${ID}`]) {
    t.equal(await id(linux(shared)), 'host-name', JSON.stringify(shared.slice(0, 14)));
  }
  for (const platform of ['darwin', 'win32', 'linux'] as const) t.equal(await id(machine({ platform })), 'host-name');
  const one = await machine().best();
  const two = await machine({ hostName: () => 'deskm', userName: () => 'e' }).best();
  t.notSame(one.bytes, two.bytes, 'host and user name are kept apart');
  const kept = await keeper(t, machine());
  t.equal(await saveIdentity(kept, identity), 'host-name', 'the caller learns that the fallback is used');
  const later = machine({ read: () => Promise.resolve(ID), userName: () => 'me' });
  t.same(
    plain(await loadIdentity(elsewhere(kept, later))),
    plain(identity),
    'the pairing opens although an identifier was added later',
  );
});

t.test('MCP-11: a renewed token is kept, but never over another pairing, a damaged or a missing one', async (t) => {
  const kept = await keeper(t);
  const renewed = { ...identity, token: { text: 'the-next-bearer', expiresAt: null } };
  t.equal(await renewIdentity(kept, renewed), false);
  t.match(await refusal(loadIdentity(kept)), { code: 'not_paired' }, 'an unpaired machine stays unpaired');
  await saveIdentity(kept, identity);
  t.equal(await renewIdentity(kept, renewed), true);
  t.equal((await loadIdentity(kept)).token.text, 'the-next-bearer');
  const other = newIdentity();
  await saveIdentity(kept, other);
  t.equal(await renewIdentity(kept, renewed), false);
  t.equal((await loadIdentity(kept)).deviceId, other.deviceId);
  const all = await Promise.all([1, 2, 3, 4].map((n) => saveIdentity(kept, { ...other, name: `Agent ${n}` })));
  t.equal(all.length, 4);
  t.match((await loadIdentity(kept)).name, /^Agent \d$/, 'concurrent writers leave one whole file');
  const path = kept.paths.configPath;
  const whole = await readFile(path, 'utf8');
  const altered = whole.replace(/(?<="ct": ").(?=.)/, (first) => (first === 'A' ? 'B' : 'A'));
  for (const damaged of ['', whole.slice(0, -40), altered]) {
    await writeFile(path, damaged);
    t.match(await refusal(renewIdentity(kept, { ...other, token: renewed.token })), { code: 'config_damaged' });
    t.equal(await readFile(path, 'utf8'), damaged, 'a damaged file stays as it is');
  }
});

t.test('MCP-81: a change to the pairing stays bound to the same identifier, and changes nothing else', async (t) => {
  const kept = await keeper(t);
  await savePairing(kept, { identity, passwords: true });
  const before = await readFile(kept.paths.configPath, 'utf8');
  const renewed = { ...identity, name: 'older name', token: { text: 'the-next-bearer', expiresAt: null } };
  // The system's identifier cannot be read for a while: the names of host and user are no substitute.
  const away = elsewhere(kept, machine());
  t.match(await refusal(renewIdentity(away, renewed)), { code: 'other_machine' });
  t.match(await refusal(savePasswords(away, false)), { code: 'other_machine' });
  t.equal(await readFile(kept.paths.configPath, 'utf8'), before, 'nothing is written');
  t.equal(await renewIdentity(kept, renewed), true);
  t.match(await loadPairing(kept), {
    passwords: true,
    identity: { name: 'Agent', token: { text: 'the-next-bearer' } },
  });
  const weak = await keeper(t, machine());
  await savePairing(weak, { identity, passwords: false });
  await renewIdentity(elsewhere(weak, machine({ read: () => Promise.resolve(ID) })), renewed);
  t.match(JSON.parse(await readFile(weak.paths.configPath, 'utf8')), { machine: 'host-name' });
  await writeFile(kept.paths.configPath, '{');
  t.match(await refusal(renewIdentity(kept, renewed)), { code: 'config_damaged' });
  t.equal(await readFile(kept.paths.configPath, 'utf8'), '{', 'a damaged file is not overwritten');
});

t.test(
  'MCP-82: whether agents may read passwords is sealed with the pairing; without the field they may not',
  async (t) => {
    const kept = await keeper(t);
    t.match(await refusal(savePasswords(kept, true)), { code: 'not_paired' });
    await saveIdentity(kept, identity);
    const withheld = JSON.parse(await readFile(kept.paths.configPath, 'utf8')) as Record<string, unknown>;
    t.equal((await loadPairing(kept)).passwords, false);
    await savePasswords(kept, true);
    t.equal((await loadPairing(kept)).passwords, true);
    const allowed = JSON.parse(await readFile(kept.paths.configPath, 'utf8')) as Record<string, unknown>;
    await writeFile(kept.paths.configPath, JSON.stringify({ ...withheld, passwords: true }));
    t.equal((await loadPairing(kept)).passwords, false, 'a field in the clear has no effect');
    await writeFile(kept.paths.configPath, JSON.stringify({ ...withheld, ct: allowed['ct'] }));
    t.match(await refusal(loadPairing(kept)), { code: 'config_damaged' });
    // As a program without this setting wrote it.
    const { aeadEncrypt } = nodeSodium;
    const dropping: Keeper = {
      ...kept,
      platform: {
        sodium: {
          ...nodeSodium,
          aeadEncrypt: (input) => {
            const fields = JSON.parse(Buffer.from(input.message).toString()) as Record<string, unknown>;
            delete fields['passwords'];
            return aeadEncrypt({ ...input, message: Buffer.from(JSON.stringify(fields)) });
          },
        },
      },
    };
    await savePairing(dropping, { identity, passwords: true });
    t.match(await loadPairing(kept), { passwords: false, identity: { deviceId: identity.deviceId } });
  },
);

const PATIENCE = { clock: new TestClock(), timeoutMs: 0 };
const hold = (paths: Paths) => holdInstance({ paths, note: () => undefined }, () => undefined, PATIENCE);

t.test('MCP-12: one instance runs; a second names it, waits for one that ends, replaces one that died', async (t) => {
  const { paths } = await keeper(t);
  const lock = await hold(paths);
  t.equal(runningInstance(paths), process.pid);
  const message = `another instance (process ${process.pid}) is running on this machine`;
  t.match(await refusal(hold(paths)), { code: 'already_running', message });
  const clock = new TestClock();
  const waiting = holdInstance({ paths, note: () => undefined }, () => undefined, { clock, timeoutMs: 6_000 });
  await until('it waits', () => clock.waiting > 0);
  lock.release();
  clock.advance(100);
  (await waiting).release();
  t.equal(runningInstance(paths), undefined, 'the second waits for an instance that is ending');
  // No process has this number.
  const path = join(paths.folder, 'mcp.lock');
  /** Makes the next lock file as another holder would; gives its path. */
  const taken = async (by: number): Promise<string> => {
    const before = await readdir(path);
    const file = join(path, String(Math.max(0, ...before.map(Number)) + 1));
    await writeFile(file, `${by} 0123456789abcdef`);
    for (const name of before) await rm(join(path, name));
    return file;
  };
  await taken(4_194_999);
  t.equal(runningInstance(paths), undefined);
  const outcomes = await Promise.allSettled(Array.from({ length: 8 }, () => hold(paths)));
  const held = outcomes.flatMap((each) => (each.status === 'fulfilled' ? [each.value] : []));
  t.equal(held.length, 1, 'of eight concurrent instances exactly one takes over');
  for (const each of held) each.release();
  // In a restarted container every program has the process id that it had before.
  await taken(process.pid);
  t.match(await refusal(hold(paths)), { code: 'already_running' }, 'the holder may live in another container');
  for (const ms of [-6_000, 60_000]) {
    const file = await taken(ms < 0 ? process.pid : process.ppid);
    const touched = new Date(Date.now() + ms);
    await utimes(file, touched, touched);
    // The other one may be alive, and is watched for some seconds.
    const wait = ms < 0 ? PATIENCE : { timeoutMs: 6_000 };
    (await holdInstance({ paths, note: () => undefined }, () => undefined, wait)).release();
  }
});

t.test('MCP-13: an instance that another took over from notices it, and leaves the other’s lock alone', async (t) => {
  const { paths } = await keeper(t);
  await mkdir(paths.folder);
  const path = join(paths.folder, 'mcp.lock');
  let told = 0;
  const attempt = tryLock(path, { onLost: () => told++, touchEveryMs: 1 });
  const other = join(path, String(1 + Number((await readdir(path))[0])));
  await writeFile(other, `${process.ppid} fedcba9876543210`);
  // The lock's own timer keeps no process alive.
  await until('it is told', () => told > 0);
  if ('lock' in attempt) attempt.lock.release();
  t.equal(await readFile(other, 'utf8'), `${process.ppid} fedcba9876543210`);
  t.equal(runningInstance(paths), process.ppid);
});
