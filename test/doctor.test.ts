/** `doctor` on a device and its vault: secrets, token, devices, completeness, unverifiable items, pending changes. */
import { chmod, mkdir, readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import { writeAccountCache } from '../src/cli/account-cache.js';
import { runDoctor } from '../src/cli/commands/doctor.js';
import { checkDisk } from '../src/cli/doctor/profile.js';
import { EXIT } from '../src/terminal/terminal.js';
import { fingerprintOfMaster } from '../src/crypto/fingerprint.js';
import { fingerprintOfDevice } from '../src/sdk/device-list.js';
import { MemoryStore } from '../src/sdk/store/store.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { newIdentity, sealedRow } from './support/client.js';
import { note, wiretap, world } from './support/client-world.js';
import { ShiftedClock } from './support/clock.js';
import { examined } from './support/doctor.js';
import { Liar } from './liar/proxy.js';
import { temporaryFolder } from './support/postgres.js';
import { contextOf, fakeTerminal, secretsIn } from './support/vault-context.js';

t.test('DOCTOR-01 DOCTOR-18: doctor finds no problem on a sound device, in text and in JSON', async (t) => {
  const { first, pair } = await world(t);
  await first.device.put(note('one'));
  const second = await pair();
  const json = await examined(t, { identity: first.identity(), idle: 0 });
  t.same(
    json.findings.filter(({ status }) => status !== 'ok'),
    [],
  );
  t.equal(json.exit, EXIT.ok);
  t.same(json.notChecked, []);
  t.match(json.of('completeness'), [{ what: /All items that the server counts are here: 1\./ }]);
  const own = fingerprintOfMaster(nodeSodium, first.identity().masterKey);
  t.match(json.of('fingerprint')[0]?.what, own);
  t.match(
    (await examined(t, { identity: second.identity() })).of('fingerprint')[0]?.what,
    own,
    'the other device shows the same fingerprint',
  );
  t.not(fingerprintOfMaster(nodeSodium, newIdentity().masterKey), own);

  const folder = await temporaryFolder(t);
  const secrets = secretsIn(folder);
  await secrets.keep(first.identity());
  const terminal = fakeTerminal();
  const context = contextOf({ terminal, platform: first.tap.platform, secrets, folder });
  t.equal(await runDoctor(context, { idle: 0 }), EXIT.ok);
  t.match(terminal.printed.at(-1), 'No problem was found.');
  t.equal(terminal.printed.length, json.findings.length + 1, 'one line per finding, and a summary');
});

t.test('DOCTOR-02: no device, and secrets that do not open, are reported with what to type', async (t) => {
  const none = await examined(t, {});
  t.match(none.of('identity'), [
    { status: 'problem', what: /no device/, do: /claim URL.*join URL` with the words that `pair` shows.*recover/ },
  ]);
  t.equal(none.exit, EXIT.notFound);
  const folder = await temporaryFolder(t);
  await secretsIn(folder).keep(newIdentity());
  await writeFile(join(folder, 'default', 'identity'), '{}', { mode: 0o600 });
  const damaged = await examined(t, { folder });
  t.match(damaged.of('identity'), [
    { status: 'problem', what: /damaged/, do: /forget.*join` with the words that `pair` shows.*recover/ },
  ]);
  t.equal(damaged.exit, EXIT.failure);
});

t.test('DOCTOR-03: a file of secrets with mode 0644 is a problem, with the command that fixes it', async (t) => {
  const folder = await temporaryFolder(t);
  await secretsIn(folder).keep(newIdentity({ serverUrl: 'http://127.0.0.1:1' }));
  const names = await readdir(join(folder, 'default'));
  const key = join(folder, 'default', names.find((name) => name.endsWith('.key')) ?? '');
  const sealed = join(folder, 'default', 'identity');
  for (const path of [key, sealed]) await chmod(path, 0o644);
  const found = await examined(t, { folder });
  const problems = found.of('permissions');
  t.equal(problems.length, 2);
  for (const path of [key, sealed]) {
    const problem = problems.find(({ what }) => what.startsWith(`${path} `));
    t.match(problem, { status: 'problem', what: /mode 644/, do: `chmod 600 ${path}.` });
  }
  t.match(found.of('secrets'), [{ status: 'ok', what: /in a file beside them/ }]);
  t.match((await examined(t, { folder })).of('permissions'), [{ status: 'ok' }], 'reading it has fixed its mode');
});

t.test('DOCTOR-04: a full or nearly full disk is reported', async (t) => {
  const folder = await temporaryFolder(t);
  const secrets = secretsIn(folder);
  const context = contextOf({ terminal: fakeTerminal(), platform: wiretap().platform, secrets, folder });
  t.match(await checkDisk(context, async () => 5 * 1024 * 1024), [{ status: 'problem', what: /5 MiB/, do: /space/ }]);
  t.match(await checkDisk(context, async () => 50 * 1024 * 1024), [{ status: 'warning' }]);
  t.match(await checkDisk(context, async () => 5e9), [{ status: 'ok' }]);
});

t.test('DOCTOR-10: an expired token is renewed and kept; a revoked and an unknown device are reported', async (t) => {
  const clock = new ShiftedClock();
  const { first, pair, server } = await world(t, { clock });
  const second = await pair();
  const folder = await temporaryFolder(t);
  clock.advance(31 * 24 * 3_600_000);
  const platform = wiretap(clock).platform;
  const old = second.identity();
  const renewed = await examined(t, {
    identity: { ...old, token: { ...old.token, expiresAt: null } },
    folder,
    platform,
  });
  t.match(renewed.of('token'), [{ status: 'ok', what: /had expired, and was renewed/ }]);
  const kept = await secretsIn(folder).read();
  t.not(kept?.token.text, old.token.text, 'the new token is kept');
  const fresh = await examined(t, { folder, platform });
  t.match(fresh.of('token'), [{ status: 'ok', what: /valid for/ }]);
  await first.device.revoke(second.device.id);
  const revoked = await examined(t, { folder, platform });
  t.match(revoked.of('token'), [
    { status: 'problem', what: /was revoked/, do: /forget`, then `join` with the words that `pair` shows/ },
  ]);
  t.same(revoked.of('devices'), []);
  const stranger = newIdentity({ serverUrl: first.identity().serverUrl, tenantId: server.tenantId });
  const unknown = await examined(t, { identity: stranger });
  t.match(unknown.of('token'), [{ status: 'problem', what: /does not know this device/ }]);
});

t.test('DOCTOR-11 DOCTOR-16: an uncertified device and the change that waits for it are reported', async (t) => {
  const { first, pair, server, open } = await world(t);
  const second = await pair('Stranger');
  const store = new MemoryStore();
  const writer = await open(first.identity(), { store });
  await server.sql('UPDATE devices SET cert = NULL WHERE id = $1', [second.device.id]);
  const { deviceId } = first.identity();
  const row = sealedRow(first.identity(), { version: 0, ts: Date.now() });
  await store.apply({ pending: [{ seq: 1, id: row.id, base: 0, version: null, kind: 'write', row, rewrap: false }] });
  writer.device.close();
  const found = await examined(t, { identity: first.identity(), store });
  const fingerprint = fingerprintOfDevice(nodeSodium, {
    id: second.device.id,
    pubkey: second.identity().keys.publicKey,
  });
  const [listed] = found.of('devices');
  t.match(listed, { status: 'problem', what: /None of your devices vouches/, do: /certify/ });
  t.ok(listed?.what.includes(second.device.id) && listed.what.includes(fingerprint) && !listed.what.includes(deviceId));
  t.match(found.of('pending'), [{ status: 'problem', what: /1 changes wait here.*uncertified_device/, do: /devices/ }]);
  t.equal(found.exit, EXIT.failure);
  t.equal((await store.pending()).length, 1, 'the change stays pending');
});

t.test('DOCTOR-16: a refusal whose code the server made up is reported like any other', async (t) => {
  const { first, server } = await world(t);
  const liar = await Liar.before(t, server.port);
  const body = JSON.stringify({ error: { code: 'constructor', message: 'no' } });
  liar.raw = ({ path, method }) => (method === 'POST' && path.startsWith('/items') ? { status: 403, body } : undefined);
  const identity = { ...first.identity(), serverUrl: liar.url };
  const store = new MemoryStore();
  const row = sealedRow(identity, { version: 0, ts: Date.now() });
  await store.apply({ pending: [{ seq: 1, id: row.id, base: 0, version: null, kind: 'write', row, rewrap: false }] });
  const found = await examined(t, { identity, store });
  t.match(found.of('pending'), [{ status: 'problem', what: /1 changes wait here.*constructor/, do: /They are kept/ }]);
});

t.test('DOCTOR-11: a device that was revoked and is listed as active is reported, as `devices` has it', async (t) => {
  const { first, pair } = await world(t);
  const second = await pair('Other');
  const identity = first.identity();
  const folder = await temporaryFolder(t);
  const listed = await first.device.devices.refresh();
  const before = listed.map((one) => (one.id === second.device.id ? { ...one, wasRevokedAt: 7 } : one));
  await mkdir(join(folder, 'default'), { mode: 0o700 });
  await writeAccountCache(join(folder, 'default'), { devices: before }, { ...identity, sodium: nodeSodium });
  const [found, ...others] = (await examined(t, { identity, folder })).of('devices');
  t.match(found, { status: 'problem', what: /"Other".*was revoked.*lists it as active/, do: /Revoke it again/ });
  t.ok(found?.what.includes(second.device.id));
  t.same(others, []);
});

t.test(
  'DOCTOR-14: an item that the server counts and hides is reported; one that was lost locally is fetched again',
  async (t) => {
    const { first, pair, server } = await world(t);
    const second = await pair();
    const { id } = await first.device.put(note('hidden'));
    await first.device.put(note('shown'));
    const liar = await Liar.before(t, server.port);
    liar.frame = (frame) => (frame['type'] === 'item' && frame['id'] === id ? [] : [frame]);
    liar.answer = ({ path }, truth) =>
      path.startsWith('/items?') && Array.isArray(truth['items'])
        ? { ...truth, items: (truth['items'] as { id: string }[]).filter((item) => item.id !== id) }
        : undefined;
    const identity = { ...second.identity(), serverUrl: liar.url };
    const hidden = await examined(t, { identity });
    t.match(hidden.of('completeness'), [
      { status: 'problem', what: /counts 2 items, here: 1; missing here: 1\./, do: /withholds/ },
    ]);

    const store = new MemoryStore();
    liar.answer = () => undefined;
    await examined(t, { identity, store });
    const repaired = await examined(t, { identity: second.identity(), store });
    t.match([...repaired.of('completeness')], [{ status: 'ok', what: /counts are here: 2\./ }]);
    const lost = await examined(t, { identity });
    t.match(lost.of('completeness'), [{ status: 'warning', what: /fetched again: all 2 are here/ }]);
  },
);

t.test(
  'DOCTOR-08 CLI-14: control characters in the version that a server reports do not reach the terminal',
  async (t) => {
    const { first, server } = await world(t);
    const liar = await Liar.before(t, server.port);
    liar.answer = ({ path }, truth) =>
      path.startsWith('/service/status') ? { ...truth, version: '1\u001b[2J', database: 'up' } : undefined;
    const folder = await temporaryFolder(t);
    const secrets = secretsIn(folder);
    await secrets.keep({ ...first.identity(), serverUrl: liar.url });
    const terminal = fakeTerminal();
    await runDoctor(contextOf({ terminal, platform: first.tap.platform, secrets, folder }), { idle: 0 });
    t.match(terminal.all(), /version 1<U\+001B>\[2J/);
    t.notMatch(terminal.all(), /\u001b/);
  },
);

t.test('DOCTOR-15: items that do not verify are reported by reason', async (t) => {
  const { first, pair } = await world(t);
  const second = await pair();
  const one = await first.device.put(note('one'));
  const two = await first.device.put(note('two'));
  const three = await first.device.put(note('three'));
  await first.device.put(note('four'));
  const tap = wiretap();
  tap.alterFrame = (frame) => {
    if (frame['id'] === one.id || frame['id'] === two.id) return { ...frame, ts: Number(frame['ts']) + 1 };
    return frame['id'] === three.id ? { ...frame, itemType: 'nonsense' } : frame;
  };
  const found = await examined(t, { identity: second.identity(), platform: tap.platform });
  t.match(found.of('unverifiable'), [
    {
      status: 'problem',
      what: /2 items do not verify \(bad_sig; .*The authentication tag does not fit/,
      do: /another device/,
    },
    { status: 'problem', what: /1 item does not verify \(bad_row; .*that is no item/, do: /Read everything again/ },
  ]);
  t.match(found.of('completeness'), [{ status: 'ok' }], 'unverifiable items count as present');
});

t.test(
  'DOCTOR-17: a local copy whose totals disagree with its items is reported, and so is an unreadable one',
  async (t) => {
    const identity = newIdentity({ serverUrl: 'http://127.0.0.1:1' });
    class Damaged extends MemoryStore {
      override held = () => Promise.resolve({ itemCount: 7, versionSum: 28 });
    }
    const damaged = await examined(t, { identity, store: new Damaged() });
    t.match(damaged.of('store'), [{ status: 'problem', what: /damaged/ }]);
    class Unreadable extends MemoryStore {
      override async *entries(): AsyncGenerator<never> {
        await Promise.resolve();
        throw new Error('bad block');
      }
    }
    const unreadable = await examined(t, { identity, store: new Unreadable() });
    t.match(unreadable.of('store'), [{ status: 'problem', what: /cannot be read/, do: /rebuilt/ }]);
  },
);
