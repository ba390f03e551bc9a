/** A device's secrets while their key is unavailable: nothing is written then, and no key replaces another. */
import { chmod, mkdir, readdir, readFile, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import { contextOf as realContext } from '../src/cli/open-device.js';
import type { Secrets } from '../src/cli/secrets.js';
import { EXIT } from '../src/terminal/terminal.js';
import type { Identity } from '../src/sdk/identity.js';
import { Saver } from '../src/device/saver.js';
import { systemClock, type Clock } from '../src/protocol/clock.js';
import { newIdentity, settle } from './support/client.js';
import { note, refusal, wiretap, world } from './support/client-world.js';
import { TestClock } from './support/clock.js';
import { until } from './support/events.js';
import { temporaryFolder } from './support/postgres.js';
import { fakeKeychain, fakeTerminal, secretsIn } from './support/vault-context.js';

const identity = newIdentity({ token: { text: 'first', expiresAt: 1_900_000_000_000, issuedAt: 5 } });
const renewed: Identity = { ...identity, token: { text: 'second', expiresAt: 1_900_000_000_001, issuedAt: 6 } };

/** Files of the profile. Its lock is a folder, which stays. */
const filesOf = async (folder: string): Promise<string[]> =>
  (await readdir(join(folder, 'default'), { withFileTypes: true }))
    .filter((entry) => entry.isFile())
    .map(({ name }) => name);

/** Every file of a profile, by name and content. */
async function profile(folder: string): Promise<Record<string, string>> {
  const names = await filesOf(folder);
  const read = names.map(async (name) => [name, await readFile(join(folder, 'default', name), 'latin1')] as const);
  return Object.fromEntries(await Promise.all(read));
}

const tokenIn = async (secrets: Secrets): Promise<string | undefined> => (await secrets.read())?.token.text;

t.test('SECRET-08: while the keychain is unavailable nothing is written, and no key goes into a file', async (t) => {
  for (const fails of ['absent', 'silent'] as const) {
    const folder = await temporaryFolder(t);
    const keychain = fakeKeychain();
    const secrets = secretsIn(folder, { keychain });
    await secrets.keep(identity);
    const [before, entries] = [await profile(folder), new Map(keychain.entries)];
    keychain.fails = fails;
    const away = { name: 'CommandError', exitCode: EXIT.unavailable, code: 'keychain', hint: /Unlock it/ };
    for (const work of [() => secrets.keep(renewed), () => secrets.renew(renewed), () => secrets.read()])
      t.match(await refusal(work()), away, fails);
    t.match(await refusal(secretsIn(folder, { keychain, setting: 'on' }).renew(renewed)), away);
    t.match(await refusal(secretsIn(folder, { keychain, setting: 'off' }).renew(renewed)), { message: /off disables/ });
    t.same(await profile(folder), before, 'the folder is unchanged');
    keychain.fails = undefined;
    t.equal(await tokenIn(secrets), 'first');
    t.equal(await secrets.renew(renewed), true, 'a retry saves the token');
    t.equal(await tokenIn(secretsIn(folder, { keychain })), 'second');
    t.same(Object.keys(await profile(folder)), ['identity']);
    t.same(keychain.entries, entries, 'under the same key');
  }
});

t.test('SECRET-09: a wrong, empty, damaged or missing key is refused, and nothing is written', async (t) => {
  const other = Buffer.alloc(32, 7).toString('base64url');
  for (const given of [other, '', 'garbage', '\0'.repeat(43), undefined]) {
    const folder = await temporaryFolder(t);
    const keychain = fakeKeychain();
    const secrets = secretsIn(folder, { keychain });
    await secrets.keep(identity);
    const before = await profile(folder);
    const [[name = '', key = ''] = []] = keychain.entries;
    if (given === undefined) keychain.entries.delete(name);
    else keychain.entries.set(name, given);
    const refused = { name: 'CommandError', exitCode: EXIT.failure, hint: /the keychain that you always use.*forget/s };
    for (const work of [() => secrets.keep(renewed), () => secrets.renew(renewed), () => secrets.read()])
      t.match(await refusal(work()), refused, JSON.stringify(given));
    t.same(await profile(folder), before);
    keychain.entries.set(name, key);
    t.equal(await tokenIn(secrets), 'first', 'with the right key everything is available again');
  }
});

t.test('SECRET-10: an unusable key file, and secrets of a newer version, are not overwritten', async (t) => {
  const folder = await temporaryFolder(t);
  const secrets = secretsIn(folder);
  await secrets.keep(identity);
  const before = await profile(folder);
  const [key = ''] = Object.keys(before).filter((name) => name.endsWith('.key'));
  const path = join(folder, 'default', key);
  await rename(path, join(folder, 'elsewhere'));
  await symlink(join(folder, 'elsewhere'), path);
  t.match(await refusal(secrets.renew(renewed)), { message: /symbolic link/ });
  await rm(path);
  await mkdir(path);
  t.match(await refusal(secrets.keep(renewed)), { name: 'CommandError' });
  await rm(path, { recursive: true });
  t.match(await refusal(secrets.keep(renewed)), { message: /is not there/, hint: /forget/ });
  await rename(join(folder, 'elsewhere'), path);
  t.same(await profile(folder), before, 'nothing was written, not even through the link');
  await chmod(path, 0o644);
  t.equal(await secrets.renew(renewed), true);
  t.same(Object.keys(await profile(folder)), Object.keys(before), 'the same key');
  const newer = JSON.stringify({ ...(JSON.parse(before['identity'] ?? '') as object), version: 2 });
  await writeFile(secrets.path, newer);
  t.match(await refusal(secrets.keep(renewed)), { message: /newer version/ });
  t.equal(await readFile(secrets.path, 'utf8'), newer);
});

t.test('SECRET-11: several first writers at once leave secrets whose key exists', async (t) => {
  for (const keychain of [fakeKeychain(), fakeKeychain('absent')]) {
    const folder = await temporaryFolder(t);
    const writers = Array.from({ length: 5 }, () => secretsIn(folder, { keychain }));
    await Promise.all(writers.map((each) => each.keep(identity)));
    t.equal(await tokenIn(secretsIn(folder, { keychain })), 'first');
    t.equal(keychain.entries.size, keychain.fails === undefined ? 1 : 0, 'no entry is left over');
    t.equal((await filesOf(folder)).length, keychain.fails === undefined ? 1 : 2);
    await Promise.all(writers.map((each, at) => (at === 2 ? each.forget() : each.renew(renewed))));
    t.equal(await secretsIn(folder, { keychain }).read(), undefined, 'no renewal restores forgotten secrets');
    t.same(await filesOf(folder), []);
  }
});

t.test('SECRET-11: secrets that another process forgets while they are read are none', async (t) => {
  const folder = await temporaryFolder(t);
  const keychain = fakeKeychain();
  await secretsIn(folder, { keychain }).keep(identity);
  const slow: typeof keychain = {
    ...keychain,
    get: async (name) => {
      await secretsIn(folder, { keychain }).forget();
      return keychain.get(name);
    },
  };
  t.equal(await secretsIn(folder, { keychain: slow }).renew(renewed), false);
  await secretsIn(folder, { keychain }).keep(identity);
  t.equal(await secretsIn(folder, { keychain: slow }).read(), undefined);
});

t.test('SECRET-12: a renewal writes only the token, and only where the profile is of this device', async (t) => {
  const folder = await temporaryFolder(t);
  const secrets = secretsIn(folder);
  t.equal(await secrets.renew(identity), false, 'there is nothing to renew');
  await secrets.keep({ ...identity, name: 'renamed meanwhile' });
  t.equal(await secrets.renew(renewed), true);
  t.match(await secrets.read(), { name: 'renamed meanwhile', token: { text: 'second' } });
  const before = await profile(folder);
  t.equal(await secrets.renew(newIdentity()), false, 'the renewal is for another device');
  t.same(await profile(folder), before);
});

t.test('SECRET-13: saving is retried until it succeeds, for the newest value only', async (t) => {
  const clock = new TestClock();
  const [saved, told]: [string[], string[]] = [[], []];
  let fails = true;
  let calls = 0;
  const withToken = (text: string): Identity => ({ ...identity, token: { text, expiresAt: null } });
  const saver = new Saver<Identity>({
    clock,
    save: ({ token }) => {
      calls++;
      if (fails) throw new Error('away');
      saved.push(token.text);
      return Promise.resolve();
    },
    failed: () => 'failed',
    saved: 'saved now',
    note: (text) => void told.push(text),
  });
  saver.offer(withToken('one'));
  await settle();
  t.same([calls, clock.waiting], [1, 1], 'it failed, and a retry is scheduled');
  clock.advance(5_000);
  await settle();
  t.equal(calls, 2);
  saver.offer(withToken('two'));
  await settle();
  t.same([calls, clock.waiting], [3, 1], 'a newer value is tried at once, and one timer runs');
  for (let tries = 0; tries < 20; tries++) {
    clock.advance(5 * 60_000);
    await settle();
  }
  t.equal(calls, 23, 'at least every five minutes');
  fails = false;
  clock.advance(5 * 60_000);
  await settle();
  t.same(saved, ['two']);
  t.same(told, ['failed', 'saved now'], 'the same failure is reported once');
  t.equal(clock.waiting, 0);
  saver.offer(withToken('three'));
  await saver.end();
  t.same(saved, ['two', 'three'], 'an attempt under way is finished');
  fails = true;
  const ending = new Saver<Identity>({
    clock,
    save: () => Promise.reject(new Error('away')),
    failed: () => '',
    saved: '',
    note: () => undefined,
  });
  ending.offer(withToken('one'));
  await ending.end();
  t.equal(clock.waiting, 0, 'no attempt is begun after the end');
});

t.test(
  'SECRET-14: a token that cannot be saved fails no command: it is reported once, and saved when possible',
  async (t) => {
    const { first } = await world(t);
    first.device.close();
    const folder = await temporaryFolder(t);
    const keychain = fakeKeychain();
    const secrets = secretsIn(folder, { keychain });
    // A token that the server refuses: the first call renews it by the device's key.
    await secrets.keep({ ...first.identity(), token: { text: 'refused', expiresAt: null } });
    const again: (() => void)[] = [];
    const clock: Clock = {
      now: systemClock.now,
      setTimer: (ms, fn) => {
        // The wait before the next attempt to save. Other waits of the same length begin before the keychain fails.
        if (ms !== 5_000 || keychain.fails === undefined) return systemClock.setTimer(ms, fn);
        again.push(fn);
        return { cancel: () => undefined };
      },
    };
    const terminal = fakeTerminal();
    // The keychain fails from the first renewal on, when the command has read its secrets.
    let reads = 0;
    const own = {
      ...{ name: 'default', folder: join(folder, 'default'), identity: () => secrets.read().finally(() => reads++) },
      keep: (next: Identity) => secrets.keep(next),
      renew: (next: Identity) => {
        if (again.length === 0) keychain.fails = 'silent';
        return secrets.renew(next);
      },
      forget: () => secrets.forget(),
    };
    const context = realContext({ terminal, platform: { ...wiretap().platform, clock }, profile: own });
    const stored = await context.withDevice(async ({ device }) => {
      const put = await device.put(note('written while it is away'));
      await until('the failure', () => again.length === 1);
      t.match(terminal.notes.join('\n'), /renewed token is not saved: The keychain, which holds .* does not answer/);
      t.equal(terminal.notes.filter((text) => text.includes('not saved')).length, 1);
      keychain.fails = undefined;
      again[0]?.();
      await until('the saving', () => terminal.notes.includes('The renewed token is saved now.'));
      return put;
    });
    t.ok(stored.version > 0, 'the command did its work');
    t.not(await tokenIn(secrets), 'refused');
    t.same(
      (await filesOf(folder)).filter((name) => name.startsWith('identity')),
      ['identity'],
    );
    t.ok(reads > 0);
  },
);
