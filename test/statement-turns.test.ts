/** Statements of tenants on a pool: the calls of one leave connections to the others (src/server/storage/query.ts). */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { AccountStore } from '../src/server/devices/store.js';
import { openClient, valueOf, type Client } from '../src/server/storage/database.js';
import { STATEMENTS_OF_TENANT_MAX, takeTurns } from '../src/server/storage/query.js';
import { claim, newCode } from './support/devices.js';
import { until } from './support/events.js';
import { billed, hosted, mustDeliver, neighbour, signUp, tenantOf } from './support/hosted.js';
import { postgresLogs } from './support/logs.js';
import { runServer } from './support/server.js';
import { subscriptionIs } from './support/stripe.js';

/** Statements that wait for a lock, in the database of this connection. */
const lockedBy = (watch: Client): Promise<number> =>
  valueOf(
    watch,
    "SELECT count(*)::integer FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
  );

t.test('FAIR-43: calls that wait for the lock of their tenant leave connections to other tenants', async (t) => {
  const { pool, url, newTenant } = await postgresLogs(t);
  takeTurns(pool);
  const [busy, other] = [await newTenant(), await newTenant()];
  const store = new AccountStore(pool);
  const client = (name: string): ReturnType<typeof openClient> => openClient({ url, name, onLost: () => undefined });
  // Within a transaction the activity is always what it was at the first look.
  const [holder, watch] = await Promise.all([client('holder'), client('watch')]);
  t.teardown(async () => Promise.all([holder.end(), watch.end()]));
  await holder.query('BEGIN');
  await holder.query('SELECT 1 FROM tenants WHERE id = $1 FOR UPDATE', [busy]);
  const waiting = Promise.allSettled(Array.from({ length: 100 }, async () => store.restart(busy)));
  await until('its calls wait', async () => (await lockedBy(watch)) === STATEMENTS_OF_TENANT_MAX);
  t.equal(await store.restart(other), true, 'a call of another tenant does not wait for them');
  t.equal(await lockedBy(watch), STATEMENTS_OF_TENANT_MAX, 'and no more of its connections are taken');
  await holder.query('COMMIT');
  const refused = (await waiting).filter(({ status }) => status === 'rejected');
  for (const refusal of refused) t.match(refusal, { reason: { error: 'unavailable' } }, 'only for a late turn');
});

t.test('FAIR-43: several tenants whose calls wait for locks leave a connection to others', async (t) => {
  const { pool, url, newTenant } = await postgresLogs(t);
  takeTurns(pool);
  const busy = await Promise.all(Array.from({ length: 3 }, async () => newTenant()));
  const other = await newTenant();
  const store = new AccountStore(pool);
  const holder = await openClient({ url, name: 'holder', onLost: () => undefined });
  t.teardown(async () => holder.end());
  await holder.query('BEGIN');
  await holder.query('SELECT 1 FROM tenants WHERE id = ANY ($1) FOR UPDATE', [busy]);
  const waiting = Promise.allSettled(
    Array.from({ length: 60 }, async (_, n) => store.restart(busy[n % busy.length] ?? '')),
  );
  t.equal(await store.restart(other), true);
  await holder.query('COMMIT');
  const refused = (await waiting).filter(({ status }) => status === 'rejected');
  for (const refusal of refused) t.match(refusal, { reason: { error: 'unavailable' } }, 'only for a late turn');
});

t.test('FAIR-50: calls that need no token do not keep those of the tenant’s devices waiting', async (t) => {
  const { pool, url, newTenant } = await postgresLogs(t);
  takeTurns(pool);
  const tenantId = await newTenant();
  const holder = await openClient({ url, name: 'holder', onLost: () => undefined });
  t.teardown(async () => holder.end());
  await holder.query('BEGIN');
  await holder.query('SELECT 1 FROM tenants WHERE id = $1 FOR UPDATE', [tenantId]);
  const answered: string[] = [];
  const call = async (line: string): Promise<void> => {
    await new AccountStore(pool, line).restart(tenantId);
    answered.push(line);
  };
  const waiting = Array.from({ length: 100 }, async () => call('unauthenticated'));
  waiting.push(call('devices'));
  await holder.query('COMMIT');
  await Promise.all(waiting);
  const before = answered.indexOf('devices');
  t.ok(before <= 2 * STATEMENTS_OF_TENANT_MAX, `${before} of a hundred that came earlier were answered before`);
});

t.test('FAIR-50: whatever a device calls with its token does not wait behind calls without one', async (t) => {
  const server = await hosted(t);
  const { wire, device } = await neighbour(t, server.port, 'busy');
  const code = newCode();
  const { token } = device;
  const init = { code, epk: randomBytes(32) };
  await wire.post('/devices/pair-init', init, { token });
  const [holder, watch] = await Promise.all(
    ['holder', 'watch'].map(async (name) => openClient({ url: server.databaseUrl, name, onLost: () => undefined })),
  );
  if (holder === undefined || watch === undefined) throw new Error('no connections');
  t.teardown(async () => Promise.all([holder.end(), watch.end()]));
  await holder.query('BEGIN');
  await holder.query('LOCK TABLE tenants, pair_sessions');
  let answered = 0;
  const strangers = Array.from({ length: 100 }, async () => {
    const { status } = await wire.get('/password/exists');
    answered++;
    return status;
  });
  await until('their calls wait', async () => (await lockedBy(watch)) >= STATEMENTS_OF_TENANT_MAX);
  // Each ends with one statement that waits for its turn.
  const calls = [
    wire.post('/devices/pair-init', init, { token }),
    wire.get('/devices/pair-requests', { token }),
    wire.post('/devices/pair-wrap', { code, wrappedMasterKey: randomBytes(80) }, { token }),
    wire.delete('/password', { token, body: { currentPassword: 'none is set' } }),
  ].map(async (call) => [(await call).outcome, answered] as const);
  await wire.get('/health');
  await holder.query('COMMIT');
  const ends = await Promise.all(calls);
  t.same(
    ends.map(([outcome]) => outcome),
    ['409 conflict', '200', '400 pair_invalid', '403 password_invalid'],
  );
  const before = Math.max(...ends.map(([, count]) => count));
  t.ok(before <= 50, `${before} of a hundred that came earlier were answered before`);
  t.same(new Set(await Promise.all(strangers)), new Set([200]));
});

for (const multi of [false, true])
  t.test(
    `FAIR-50: calls of any number of addresses leave connections to devices, ${multi ? 'hosted' : 'alone'}`,
    async (t) => {
      const env = { RATE_PAIR_PER_MIN: '10' };
      const server = await (multi ? hosted(t, { env }) : runServer(t, { env }));
      const { wire, token } = multi
        ? await neighbour(t, server.port, 'busy').then(({ wire, device: { token } }) => ({ wire, token }))
        : { wire: server.wire, token: (await claim(server.wire)).token };
      const holder = await openClient({ url: server.databaseUrl, name: 'holder', onLost: () => undefined });
      const watch = await openClient({ url: server.databaseUrl, name: 'watch', onLost: () => undefined });
      t.teardown(async () => Promise.all([holder.end(), watch.end()]));
      await holder.query('BEGIN');
      await holder.query('LOCK TABLE rate_limits');
      const calls = Array.from({ length: 100 }, async (_, n) => {
        const headers = { 'x-forwarded-for': `198.51.100.${n}` };
        return (await wire.post('/devices/pair-fetch-epk', { code: newCode() }, { headers })).status;
      });
      await until('their calls wait', async () => (await lockedBy(watch)) >= STATEMENTS_OF_TENANT_MAX);
      t.equal((await wire.get('/bins', { token })).status, 200, 'while they wait');
      t.equal(await lockedBy(watch), STATEMENTS_OF_TENANT_MAX);
      await holder.query('COMMIT');
      t.same(new Set(await Promise.all(calls)), new Set([400]), 'no such code');
    },
  );

t.test('FAIR-50: signups of any number of addresses leave connections to devices', async (t) => {
  const server = await hosted(t);
  const { wire, device } = await neighbour(t, server.port, 'busy');
  const holder = await openClient({ url: server.databaseUrl, name: 'holder', onLost: () => undefined });
  const watch = await openClient({ url: server.databaseUrl, name: 'watch', onLost: () => undefined });
  t.teardown(async () => Promise.all([holder.end(), watch.end()]));
  // The lock of all signups, which the nightly job holds too.
  await holder.query('SELECT pg_advisory_lock(7265763011)');
  const signups = Array.from({ length: 50 }, async (_, n) => (await signUp(server.apex, `name-${n}`)).status);
  await until('they wait', async () => (await lockedBy(watch)) >= STATEMENTS_OF_TENANT_MAX);
  t.equal((await wire.get('/bins', { token: device.token })).status, 200, 'while they wait');
  t.equal(await lockedBy(watch), STATEMENTS_OF_TENANT_MAX);
  await holder.query('SELECT pg_advisory_unlock(7265763011)');
  t.same(new Set(await Promise.all(signups)), new Set([200]));
});

t.test('FAIR-50: events of a customer leave connections to devices', async (t) => {
  const server = await billed(t);
  const payer = await tenantOf(server, 'payer', Date.now());
  const other = await tenantOf(server, 'other', Date.now());
  const holder = await openClient({ url: server.databaseUrl, name: 'holder', onLost: () => undefined });
  const watch = await openClient({ url: server.databaseUrl, name: 'watch', onLost: () => undefined });
  t.teardown(async () => Promise.all([holder.end(), watch.end()]));
  await holder.query('BEGIN');
  await holder.query("SELECT 1 FROM tenants WHERE slug = 'payer' FOR UPDATE");
  const events = Array.from({ length: 20 }, async () =>
    mustDeliver(server.apex, subscriptionIs('updated', 'active', payer.payer, Date.now())),
  );
  await until('they wait', async () => (await lockedBy(watch)) >= STATEMENTS_OF_TENANT_MAX);
  t.equal((await other.wire.get('/bins', { token: other.device.token })).status, 200, 'while they wait');
  t.equal(await lockedBy(watch), STATEMENTS_OF_TENANT_MAX);
  await holder.query('ROLLBACK');
  await Promise.all(events);
});

t.test('FAIR-43: calls of a device that are limited leave connections to others', async (t) => {
  const server = await hosted(t, { env: { RATE_PAIR_PER_MIN: '20' } });
  const busy = await neighbour(t, server.port, 'busy');
  const other = await neighbour(t, server.port, 'other');
  const holder = await openClient({ url: server.databaseUrl, name: 'holder', onLost: () => undefined });
  const watch = await openClient({ url: server.databaseUrl, name: 'watch', onLost: () => undefined });
  t.teardown(async () => Promise.all([holder.end(), watch.end()]));
  await holder.query('BEGIN');
  await holder.query('LOCK TABLE rate_limits');
  const wrong = { token: busy.device.token, body: { currentPassword: 'none is set' } };
  const calls = Array.from({ length: 20 }, async () => (await busy.wire.delete('/password', wrong)).outcome);
  await until('they wait', async () => (await lockedBy(watch)) >= STATEMENTS_OF_TENANT_MAX);
  t.equal((await other.wire.get('/bins', { token: other.device.token })).status, 200, 'while they wait');
  t.equal(await lockedBy(watch), STATEMENTS_OF_TENANT_MAX);
  await holder.query('COMMIT');
  t.same(new Set(await Promise.all(calls)), new Set(['403 password_invalid']));
});

t.test('FAIR-43: uploads that one tenant gives up leave connections to others', async (t) => {
  const server = await hosted(t);
  const busy = await neighbour(t, server.port, 'busy');
  const other = await neighbour(t, server.port, 'other');
  const { token } = busy.device;
  const refs = await Promise.all(
    Array.from({ length: 20 }, async () => {
      const reply = await busy.wire.post('/uploads', { contentLength: 1_000, contentType: 'a/b' }, { token });
      return reply.text('blobRef');
    }),
  );
  const holder = await openClient({ url: server.databaseUrl, name: 'holder', onLost: () => undefined });
  const watch = await openClient({ url: server.databaseUrl, name: 'watch', onLost: () => undefined });
  t.teardown(async () => Promise.all([holder.end(), watch.end()]));
  await holder.query('BEGIN');
  await holder.query("SELECT 1 FROM tenants WHERE slug = 'busy' FOR UPDATE");
  const given = refs.map(async (ref) => (await busy.wire.delete(`/uploads/${ref}`, { token })).status);
  await until('they wait', async () => (await lockedBy(watch)) >= STATEMENTS_OF_TENANT_MAX);
  const answer = await other.wire.ask('PATCH', '/bins/inbox', { token: other.device.token, body: { meta: null } });
  t.equal(answer.status, 200, 'while they wait');
  t.equal(await lockedBy(watch), STATEMENTS_OF_TENANT_MAX);
  await holder.query('ROLLBACK');
  t.same(new Set(await Promise.all(given)), new Set([200]));
});

t.test('FAIR-43: a hosted server answers one tenant while calls of another wait for a lock', async (t) => {
  const server = await hosted(t);
  const busy = await neighbour(t, server.port, 'busy');
  const other = await neighbour(t, server.port, 'other');
  const rename = ({ wire, device }: typeof busy): ReturnType<typeof wire.ask> =>
    wire.ask('PATCH', '/bins/inbox', { token: device.token, body: { meta: null } });
  const holder = await openClient({ url: server.databaseUrl, name: 'holder', onLost: () => undefined });
  t.teardown(async () => holder.end());
  await holder.query('BEGIN');
  await holder.query("SELECT 1 FROM tenants WHERE slug = 'busy' FOR UPDATE");
  const held = Array.from({ length: 20 }, async () => rename(busy));
  const locked = async (): Promise<number> =>
    Number(
      (
        await server.sql(
          "SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = 'service' AND wait_event_type = 'Lock'",
        )
      )[0]?.['n'],
    );
  await until('its calls wait', async () => (await locked()) === STATEMENTS_OF_TENANT_MAX);
  t.equal((await rename(other)).status, 200);
  t.equal(await locked(), STATEMENTS_OF_TENANT_MAX);
  await holder.query('ROLLBACK');
  t.same(new Set((await Promise.all(held)).map(({ status }) => status)), new Set([200]));
});
