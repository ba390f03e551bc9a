/** A change that is stored is answered as done, whatever fails afterwards. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { signRecovery } from '../src/crypto/recovery.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import {
  base64,
  bootstrapBody,
  joinBody,
  newCode,
  newDevice,
  newWorld,
  outcomes,
  valueOf,
  wrapBody,
  type World,
} from './support/accounts.js';
import { until } from './support/events.js';
import { stays } from './support/pairing.js';

/** A world whose first instance cannot read a tenant anew after a change. */
async function unreadable(t: Parameters<typeof newWorld>[0]): Promise<World> {
  const world = await newWorld(t);
  world.a.unreadable = new Error('the database went away after the commit');
  return world;
}

t.test('ERR-16 BOOT-01 BOOT-07: a claim and a restart are answered as done though the reload fails', async (t) => {
  const world = await unreadable(t);
  const { a, tenantId, clock } = world;
  const device = newDevice();
  const { token } = await a.bootstrap.claim(tenantId, bootstrapBody(device));
  t.ok(await a.admits(tenantId, token, clock.now()));
  t.same(a.faults, [a.unreadable]);
  t.same(await a.bootstrap.restart(tenantId), { ok: true });
  t.equal(a.faults.length, 2);
});

t.test('ERR-16 DEV-04 DEV-05 BIN-04 BIN-05 BIN-12: changes are answered as done though the reload fails', async (t) => {
  const { a, tenantId } = await unreadable(t);
  const device = newDevice();
  await a.bootstrap.claim(tenantId, bootstrapBody(device));
  const other = newDevice();
  await a.pool.query("SELECT add_device($1, $2, 'Other', 'phone', $3, NULL, 100, 1)", [
    tenantId,
    other.id,
    other.publicKey,
  ]);
  a.faults.length = 0;
  t.equal((await a.devices.patch(tenantId, device.id, { name: 'Desk' })).device.name, 'Desk');
  t.type((await a.devices.revoke(tenantId, other.id)).device.revokedAt, 'number');
  t.match((await a.bins.create(tenantId, { id: 'work' })).bin, { id: 'work', itemCount: 0 });
  t.match((await a.bins.patch(tenantId, 'work', { slug: 'w' })).bin, { id: 'work', slug: 'w' });
  t.same(await a.bins.remove(tenantId, 'work', {}), { ok: true });
  t.equal(a.faults.length, 5, 'each failure is reported as a fault');
});

t.test('ERR-16: the answer shows what was stored, without another query', async (t) => {
  const { a, tenantId } = await newWorld(t);
  const device = newDevice();
  await a.bootstrap.claim(tenantId, bootstrapBody(device));
  let away = false;
  const query = a.pool.query.bind(a.pool) as (...args: unknown[]) => unknown;
  const gone = (): Promise<never> => Promise.reject(Object.assign(new Error('gone'), { code: 'ECONNRESET' }));
  Object.assign(a.pool, { query: (...args: unknown[]) => (away ? gone() : query(...args)) });
  a.onChanged = () => {
    away = true;
  };
  const back = async <T>(call: Promise<T>): Promise<T> => {
    const [answer] = await Promise.allSettled([call]);
    away = false;
    if (answer.status === 'rejected') throw answer.reason;
    return answer.value;
  };
  t.match((await back(a.bins.create(tenantId, { id: 'work' }))).bin, { id: 'work', slug: 'work', itemCount: 0 });
  t.match((await back(a.bins.patch(tenantId, 'work', { slug: 'w' }))).bin, { slug: 'w', itemCount: 0 });
  t.match((await back(a.devices.patch(tenantId, device.id, { name: 'Desk' }))).device, { name: 'Desk' });
});

t.test('ERR-16 PAIR-08: every call of a pairing is answered as done though the reload fails', async (t) => {
  const { a, tenantId } = await unreadable(t);
  const first = newDevice();
  await a.bootstrap.claim(tenantId, bootstrapBody(first));
  const code = newCode();
  await a.pairing.init(tenantId, first.id, { code, epk: base64(newDevice().publicKey) });
  const joining = a.pairing.fetchNpk(tenantId, joinBody(code, newDevice()), stays());
  await until('the request', async () => (await a.pairing.requests(tenantId, first.id)).requests.length > 0);
  t.same(await a.pairing.wrap(tenantId, first.id, wrapBody(code)), { ok: true });
  t.match(await joining, { token: String });
  t.equal(a.faults.length, 4, 'faults of the claim, pair-init, the request to join and pair-wrap');
});

t.test('ERR-16 RECOV-02: a recovery is answered as done though the reload fails', async (t) => {
  const { a, tenantId } = await unreadable(t);
  const keys = nodeSodium.signKeyPair(randomBytes(32));
  await a.bootstrap.claim(tenantId, bootstrapBody(newDevice(), { recoveryPubkey: base64(keys.publicKey) }));
  const { challengeId, challenge } = await a.recovery.challenge(tenantId);
  const device = newDevice();
  const deviceCert = randomBytes(32);
  const claim = {
    ...{ host: 'sync.example', tenantId, challengeId, challenge, deviceCert },
    ...{ deviceId: device.id, publicKey: device.publicKey },
  };
  const body = {
    ...{ challengeId, deviceId: device.id, host: claim.host, name: 'Back', glyph: 'globe' as const },
    pubkey: base64(device.publicKey),
    deviceCert: base64(deviceCert),
    signature: base64(signRecovery(nodeSodium, keys, claim)),
  };
  t.same(await outcomes([a.recovery.recover(tenantId, body)]), ['ok']);
  t.equal(await valueOf(a.pool, 'SELECT count(*) AS value FROM devices'), 2);
});
