/** A device's secrets at rest: encrypted, closed to others, and recoverable when they are damaged. */
import { chmod, link, mkdir, readdir, readFile, rename, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import t from 'tap';
import { KeychainError, systemKeychain } from '../src/cli/keychain.js';
import { keychainSetting, Secrets } from '../src/cli/secrets.js';
import { CommandError, EXIT } from '../src/terminal/terminal.js';
import type { Identity } from '../src/sdk/identity.js';
import { drawPhrase, keysOfPhrase, phraseSeed } from '../src/crypto/master-key.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { systemClock } from '../src/protocol/clock.js';
import { newIdentity } from './support/client.js';
import { refusal } from './support/client-world.js';
import { TestClock } from './support/clock.js';
import { temporaryFolder } from './support/postgres.js';
import { fakeKeychain, secretsIn } from './support/vault-context.js';

/** Every file below a folder, as one text. */
async function everything(folder: string): Promise<string> {
  const names = await readdir(folder, { recursive: true, withFileTypes: true });
  const files = names.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name));
  return (await Promise.all(files.map((file) => readFile(file, 'latin1')))).join('\n');
}

const forms = (bytes: Uint8Array): string[] => {
  const buffer = Buffer.from(bytes);
  return (['base64url', 'base64', 'hex', 'latin1'] as const).map((form) => buffer.toString(form).replace(/=+$/, ''));
};

const secretsOf = (identity: Identity): string[] => [
  identity.token.text,
  ...forms(identity.masterKey),
  ...forms(identity.keys.secretKey),
];

const keyFiles = async (folder: string): Promise<string[]> =>
  (await readdir(join(folder, 'default'))).filter((name) => name.endsWith('.key'));

/** Where the key is, as the file records it. */
const placeIn = async ({ path }: Secrets): Promise<unknown> =>
  (JSON.parse(await readFile(path, 'utf8').catch(() => '{}')) as { readonly place?: unknown }).place;

const mode = async (path: string): Promise<number> => (await stat(path)).mode & 0o777;

const identity = newIdentity({ token: { text: 'bearer-of-the-test', expiresAt: 1_900_000_000_000, issuedAt: 5 } });

t.test('SECRET-01: saved secrets are read back unchanged, and no file has any of them in the clear', async (t) => {
  for (const keychain of [fakeKeychain(), fakeKeychain('absent')]) {
    const folder = await temporaryFolder(t);
    t.equal(await secretsIn(folder, { keychain }).read(), undefined, 'nothing is here yet');
    await secretsIn(folder, { keychain }).keep(identity);
    const back = await secretsIn(folder, { keychain }).read();
    t.same(
      JSON.stringify(back),
      JSON.stringify({ ...back, ...identity, keys: back?.keys, masterKey: back?.masterKey }),
    );
    t.same(Buffer.from(back?.masterKey ?? []), Buffer.from(identity.masterKey));
    t.same(Buffer.from(back?.keys.secretKey ?? []), Buffer.from(identity.keys.secretKey));
    const kept = await everything(folder);
    for (const secret of secretsOf(identity)) t.notOk(kept.includes(secret), 'not in the clear');
    t.equal(await mode(join(folder, 'default', 'identity')), 0o600);
    t.equal(await mode(join(folder, 'default')), 0o700);
    await secretsIn(folder, { keychain }).forget();
    t.same(await readdir(join(folder, 'default')), ['identity.lock'], 'nothing but the lock, which has no secret');
    t.equal(keychain.entries.size, 0);
  }
});

t.test(
  'SECRET-02: the key is in the keychain where one works, else in a 0600 file; the choice is recorded',
  async (t) => {
    const folder = await temporaryFolder(t);
    const keychain = fakeKeychain();
    await secretsIn(folder, { keychain }).keep(identity);
    t.equal(await placeIn(secretsIn(folder, { keychain })), 'keychain');
    t.same(await keyFiles(folder), []);
    t.equal(keychain.entries.size, 1, 'the probe was removed');

    const off = secretsIn(folder, { keychain, setting: 'off' });
    t.match(await refusal(off.read()), { message: /SERVICE_KEYCHAIN=off/ }, 'off never queries the keychain');
    const other = await temporaryFolder(t);
    await secretsIn(other, { keychain, setting: 'off' }).keep(identity);
    t.equal(await placeIn(secretsIn(other, { keychain, setting: 'off' })), 'file');
    const [name = ''] = await keyFiles(other);
    t.equal(await mode(join(other, 'default', name)), 0o600);

    await secretsIn(other, { keychain, setting: 'on' }).keep(identity);
    t.equal(await placeIn(secretsIn(other, { keychain })), 'keychain', 'on moves the key');
    t.same(await keyFiles(other), []);
    t.ok(await secretsIn(other, { keychain }).read());

    const none = await temporaryFolder(t);
    const insisting = secretsIn(none, { keychain: fakeKeychain('absent'), setting: 'on' });
    t.match(await refusal(insisting.keep(identity)), { exitCode: EXIT.unavailable });
    t.equal(await placeIn(insisting), undefined, 'nothing was written');
    t.equal(keychainSetting({ SERVICE_KEYCHAIN: 'off' }), 'off');
    t.equal(keychainSetting({}), 'auto');
    t.throws(() => keychainSetting({ SERVICE_KEYCHAIN: 'no' }), CommandError);
  },
);

t.test('SECRET-02: a keychain that loses what it stores is not used for the key', async (t) => {
  const folder = await temporaryFolder(t);
  const keychain = { ...fakeKeychain(), get: async () => undefined };
  await secretsIn(folder, { keychain }).keep(identity);
  t.equal(await placeIn(secretsIn(folder, { keychain })), 'file');
});

t.test('SECRET-02: a keychain that keeps a key and does not return it is left without it', async (t) => {
  const folder = await temporaryFolder(t);
  const keychain = fakeKeychain();
  const { get } = keychain;
  keychain.get = (account) =>
    account.startsWith('probe-') ? get(account) : Promise.reject(new KeychainError('absent', 'locked by now'));
  await secretsIn(folder, { keychain }).keep(identity);
  t.equal((await keyFiles(folder)).length, 1, 'the key is in a file');
  t.same([...keychain.entries.keys()], []);
});

t.test('SECRET-03: a keychain that hangs is given up after a minute', async (t) => {
  const clock = new TestClock();
  let waits = 0;
  const child = fileURLToPath(new URL('./fixtures/hanging-child.js', import.meta.url));
  const keychain = systemKeychain({ clock, onWait: () => waits++, child });
  const asking = refusal(keychain.get('any'));
  clock.advance(2_000);
  t.equal(waits, 1, 'the user is notified of the long wait');
  clock.advance(58_000);
  t.match(await asking, { name: 'KeychainError', code: 'silent' });

  const folder = await temporaryFolder(t);
  const warnings: string[] = [];
  await secretsIn(folder, { keychain: fakeKeychain('silent'), warnings }).keep(identity);
  t.match(warnings, [/does not answer/]);
  t.equal(await placeIn(secretsIn(folder)), 'file');
});

t.test('SECRET-03: what is not an answer of the keychain means that there is none', async (t) => {
  const folder = await temporaryFolder(t);
  for (const [at, answer] of ['', 'null', '{}', '{"ok":true,"secret":7}', '{"ok":false}', '{"ok":"yes"}'].entries()) {
    const child = join(folder, `${at}.js`);
    await writeFile(child, `process.stdout.write(${JSON.stringify(answer)})`);
    const keychain = systemKeychain({ clock: systemClock, onWait: () => undefined, child });
    t.match(await refusal(keychain.get('any')), { code: 'absent', message: /no keychain/ }, answer);
  }
});

t.test('SECRET-03: without a keychain the error says that there is none', async (t) => {
  const missing = systemKeychain({ clock: systemClock, onWait: () => undefined, child: '/nowhere/at-all.js' });
  t.match(await refusal(missing.set('any', 'secret-of-the-test')), { code: 'absent', message: /no keychain/ });
  const real = systemKeychain({ clock: systemClock, onWait: () => undefined });
  // On a machine with a keychain the value comes back; on one without, the refusal says so. Neither hangs.
  const account = `test-${identity.deviceId}`;
  const outcome = await real.set(account, 'value').then(
    async () => (await real.get(account)) === 'value',
    (error: unknown) => error instanceof Error && error.name === 'KeychainError',
  );
  t.ok(outcome);
  await real.delete(account).catch(() => undefined);
});

t.test('SECRET-04: a file or folder that others may read has its permissions tightened, with a warning', async (t) => {
  const folder = await temporaryFolder(t);
  await mkdir(join(folder, 'default'), { mode: 0o755 });
  await chmod(join(folder, 'default'), 0o755);
  const warnings: string[] = [];
  const secrets = secretsIn(folder, { warnings });
  await secrets.keep(identity);
  t.match(warnings, [/mode 755/]);
  t.equal(await mode(join(folder, 'default')), 0o700);
  const [name = ''] = await keyFiles(folder);
  await chmod(join(folder, 'default', name), 0o644);
  t.ok(await secrets.read());
  t.match(warnings.at(-1), /\.key was open to other users \(mode 644\)/);
  t.equal(await mode(join(folder, 'default', name)), 0o600);
});

t.test('SECRET-04: a link or a folder in place of the file is refused', async (t) => {
  const folder = await temporaryFolder(t);
  const secrets = secretsIn(folder);
  await secrets.keep(identity);
  await rename(secrets.path, join(folder, 'elsewhere'));
  await symlink(join(folder, 'elsewhere'), secrets.path);
  t.match(await refusal(secrets.read()), { name: 'CommandError', message: /symbolic link/ });
  await rm(secrets.path);
  await mkdir(secrets.path);
  t.match(await refusal(secrets.read()), { name: 'CommandError' });
});

t.test('SECRET-05: damaged secrets, and secrets without their key, are refused with the way to recover', async (t) => {
  const folder = await temporaryFolder(t);
  const secrets = secretsIn(folder);
  await secrets.keep(identity);
  const whole = await readFile(secrets.path);
  const [name = ''] = await keyFiles(folder);
  const key = await readFile(join(folder, 'default', name));
  const back = { name: 'CommandError', exitCode: EXIT.failure, hint: /pair.*recover/s };
  const flipped = JSON.parse(whole.toString()) as { ct: string };
  flipped.ct = `${flipped.ct.startsWith('A') ? 'B' : 'A'}${flipped.ct.slice(1)}`;
  for (const damage of [whole.subarray(0, 100), Buffer.alloc(0), Buffer.from(JSON.stringify(flipped))]) {
    await writeFile(secrets.path, damage);
    const refused = await refusal(secrets.read());
    t.match(refused, back);
    t.notOk(refused.message.includes('bearer'));
  }
  const renamed = { ...(JSON.parse(whole.toString()) as object), place: 'keychain' };
  await writeFile(secrets.path, JSON.stringify(renamed));
  t.match(
    await refusal(secretsIn(folder, { keychain: fakeKeychain() }).read()),
    back,
    'the place is authenticated as well',
  );
  await writeFile(secrets.path, JSON.stringify({ ...(JSON.parse(whole.toString()) as object), version: 2 }));
  t.match(await refusal(secrets.read()), { message: /newer version/ });
  await writeFile(secrets.path, whole);
  await writeFile(join(folder, 'default', name), 'short');
  t.match(await refusal(secrets.read()), back);
  await rm(join(folder, 'default', name));
  t.match(await refusal(secrets.read()), { ...back, message: /was copied without it/ });
  await writeFile(join(folder, 'default', name), key);
  t.ok(await secrets.read(), 'with the key back the secrets open');
  await writeFile(secrets.path, '{');
  t.match(await refusal(secrets.keep(identity)), back, 'damaged secrets are not replaced by themselves');
  await secrets.forget();
  await secrets.keep(identity);
  t.ok(await secrets.read(), 'after `forget` a new identity is kept');
});

t.test('SECRET-06: no word of the phrase is in any file', async (t) => {
  const other = await temporaryFolder(t);
  await secretsIn(other, { keychain: fakeKeychain('absent') }).keep(identity);
  const fields = await everything(other);
  // Short words occur in any base64, and some others are names of fields.
  const found = (word: string): boolean => word.length < 5 || fields.includes(word);
  let phrase = drawPhrase(nodeSodium);
  while (phrase.split(' ').some(found)) phrase = drawPhrase(nodeSodium);
  const { masterKey, recovery } = await keysOfPhrase(nodeSodium, phrase);
  const folder = await temporaryFolder(t);
  const keychain = fakeKeychain('absent');
  await secretsIn(folder, { keychain }).keep(newIdentity({ masterKey }));
  const kept = await everything(folder);
  for (const word of phrase.split(' ')) t.notOk(kept.includes(word));
  const seed = await phraseSeed(nodeSodium, phrase);
  for (const text of [...forms(seed), ...forms(recovery.secretKey)]) t.notOk(kept.includes(text));
});

t.test('SECRET-07: a crash in the middle of a replacement leaves secrets that open', async (t) => {
  const folder = await temporaryFolder(t);
  const keychain = fakeKeychain();
  await secretsIn(folder, { keychain, setting: 'off' }).keep(identity);
  // The move into the keychain draws a new key; the process ends before the file that names it is replaced.
  const crashing = new Secrets({
    sodium: {
      ...nodeSodium,
      aeadEncrypt: () => {
        throw new Error('crash');
      },
    },
    folder: join(folder, 'default'),
    keychain,
    setting: 'on',
    warn: () => undefined,
  });
  t.match(await refusal(crashing.keep(identity)), { message: 'crash' });
  t.ok(await secretsIn(folder, { keychain }).read(), 'the old key is still there');
  const both = secretsIn(folder, { keychain });
  const newer = { ...identity, token: { text: 'newer', expiresAt: null } };
  // Another name of the file that is replaced: what is written in place would show under it.
  const [file, old] = [join(folder, 'default', 'identity'), join(folder, 'old')];
  await link(file, old);
  const before = await readFile(old);
  await Promise.all([both.keep(identity), both.keep(newer)]);
  t.ok((await readFile(old)).equals(before), 'the file is never written in place');
  t.notOk((await readFile(file)).equals(before));
  t.equal((await both.read())?.token.text, 'newer', 'the later call wins');
  t.same(
    (await readdir(join(folder, 'default'))).filter((name) => name.endsWith('.tmp')),
    [],
  );
});
