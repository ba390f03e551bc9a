/** `service-admin` on real databases and servers: tenants, epoch, password, jobs, schema. */
import { existsSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import { EXIT } from '../src/terminal/terminal.js';
import { openClient } from '../src/server/storage/database.js';
import { RELEASE, SERVER_VERSION } from '../src/root.js';
import { admin, builtAdmin, type Admin } from './support/admin.js';
import { claim, mustWrite, newItem, write } from './support/devices.js';
import { untilIs } from './support/events.js';
import { hosted, MULTI, signUp, type Hosted } from './support/hosted.js';
import { temporaryFolder, testDatabase, type WithTeardown } from './support/postgres.js';
import { Scene } from './support/scene.js';
import { runSql } from './support/server.js';

interface Called extends Hosted {
  readonly call: Admin;
  /** Signs up and returns the claim token. */
  readonly signUp: (subdomain: string) => Promise<string>;
}

async function called(t: WithTeardown): Promise<Called> {
  const env = { ...MULTI, PUBLIC_URL: 'https://sync.test:8443' };
  const server = await hosted(t, { env });
  const call = await admin(t, { DATABASE_URL: server.databaseUrl, ...env });
  return { ...server, call, signUp: async (subdomain) => (await signUp(server.apex, subdomain)).text('claimToken') };
}

t.test(
  'OPER-09: wrong calls, a wrong configuration and an unreachable database end with their exit codes',
  async (t) => {
    const { url } = await testDatabase(t);
    const call = await builtAdmin(t, { DATABASE_URL: url });
    t.match(await call.plain('--version'), { code: EXIT.ok, stdout: `${SERVER_VERSION} (${RELEASE.commit})\n` });
    t.match(await call.plain(), { code: EXIT.usage, stdout: /Usage: service-admin/ });
    t.match(await call.json('nonsense'), { code: EXIT.usage, stdout: '', error: { code: 'usage' } });
    t.match(await call.json('tenants', 'list', '--limit', '0'), { code: EXIT.usage, error: { code: 'usage' } });
    const wrong = await (await admin(t, { DATABASE_URL: 'nonsense' })).plain('verify');
    t.match(wrong, { code: EXIT.usage, stderr: /DATABASE_URL/ });
    const away = new URL(url);
    away.port = '1';
    away.password = 'do-not-show-this';
    const down = await (await admin(t, { DATABASE_URL: away.href })).json('tenants', 'list');
    t.match(down, { code: EXIT.unavailable, error: { code: 'unavailable', hint: /DATABASE_URL/ } });
    t.notMatch(down.stderr, /do-not-show-this|\n {4}at /, 'neither password nor stack is shown');
    const dataDir = join(await temporaryFolder(t), 'data');
    const nowhere = await (await admin(t, { DATA_DIR: dataDir })).json('tenants', 'list');
    t.match(nowhere, { code: EXIT.notFound, error: { code: 'no_database' } });
    t.notOk(existsSync(dataDir), 'no new database is made');
    // As a folder of another user, whose contents cannot be looked up either; the tests' user may be root, who can.
    await writeFile(dataDir, '');
    const unreadable = await (await admin(t, { DATA_DIR: dataDir })).json('tenants', 'list');
    t.match(unreadable, { code: EXIT.failure, error: { code: 'unreadable', hint: /the user of the server/ } });
  },
);

t.test('OPER-10: tenants are listed in pages, suspended, activated, and deleted by repeating the name', async (t) => {
  const { at, call, signUp } = await called(t);
  const anna = at('anna');
  const device = await claim(anna, { claimToken: await signUp('anna') });
  await signUp('berta');
  await mustWrite(anna, device, newItem([device.id]));
  const list = await call.json('tenants', 'list');
  t.match(list.data, {
    more: false,
    tenants: [
      { slug: 'anna', state: 'active', devices: 1, items: 1, email: 'anna@example.com' },
      { slug: 'berta', claimedAt: null },
    ],
  });
  t.match((await call.json('tenants', 'list', '--limit', '1')).data, { more: true, tenants: { length: 1 } });
  t.match((await call.json('tenants', 'list', '--after', 'anna')).data, { tenants: [{ slug: 'berta' }] });
  const shown = await call.plain('tenants', 'list');
  t.match(shown.stdout, /^Name +State[^]*\nanna +active +just now +1 +1 /);
  const writing = async (): Promise<string> => (await write(anna, device, newItem([device.id]))).outcome;
  t.match(await call.json('tenants', 'suspend', 'anna'), { code: EXIT.ok, data: { state: 'suspended' } });
  await untilIs(writing, '403 tenant_suspended');
  t.match(await call.json('tenants', 'activate', 'anna'), { code: EXIT.ok, data: { state: 'active' } });
  await untilIs(writing, '200');
  for (const command of ['suspend', 'activate'])
    t.match(await call.json('tenants', command, 'nobody'), {
      code: EXIT.notFound,
      error: { code: 'tenant_not_found' },
    });
  t.match(await call.json('tenants', 'suspend'), { code: EXIT.notFound }, 'in multi mode a tenant must be named');

  t.match(await call.json('tenants', 'delete', 'nobody', '--confirm', 'nobody'), { code: EXIT.notFound });
  t.match(await call.json('tenants', 'delete', 'anna'), { code: EXIT.usage }, 'no terminal to confirm at');
  t.match(await call.json('tenants', 'delete', 'anna', '--confirm', 'berta'), { error: { code: 'declined' } });
  t.match(await call.answering(/Type its name/, 'yes', 'tenants', 'delete', 'anna'), { code: EXIT.failure });
  t.equal(await writing(), '200', 'the tenant is unchanged');
  t.match(await call.answering(/Type its name/, 'anna', 'tenants', 'delete', 'anna'), { code: EXIT.ok });
  await untilIs(async () => (await anna.get('/service/status')).outcome, '404 tenant_not_found');
  t.match(await call.json('tenants', 'delete', 'berta', '--confirm', 'berta'), { data: { deleted: true } });
  t.match((await call.plain('tenants', 'list')).stdout, 'No tenants.');
});

t.test('OPER-11: a new claim link replaces the one before; a claimed tenant gets none', async (t) => {
  const { at, call, signUp } = await called(t);
  const lost = await signUp('anna');
  const printed = await call.plain('claim-token', 'anna');
  const [, token = ''] = /^https:\/\/anna\.sync\.test:8443\/#claim=([\w-]{43})\n$/.exec(printed.stdout) ?? [];
  t.equal(token.length, 43);
  t.notMatch(printed.stderr, token, 'the token is on standard output only');
  const knock = { name: 'x', glyph: 'globe', pubkey: Buffer.alloc(32, 9), claimToken: lost };
  t.equal((await at('anna').post('/devices/bootstrap', knock)).outcome, '403 forbidden');
  await claim(at('anna'), { claimToken: token });
  t.match(await call.json('claim-token', 'anna'), { code: EXIT.refused, error: { code: 'bootstrap_already_done' } });
  t.match(await call.json('claim-token', 'nobody'), { code: EXIT.notFound });
  t.match(await call.json('bootstrap-restart', '--yes'), { code: EXIT.refused, error: { code: 'multi_mode' } });
});

t.test('OPER-12: password-reset, bootstrap-restart and a new epoch work beside a running server', async (t) => {
  const scene = await Scene.start(t);
  const { wire, server } = scene;
  const call = await admin(t, { DATABASE_URL: server.databaseUrl });
  t.match(await call.json('claim-token', 'anna'), { code: EXIT.usage }, 'claim links exist in multi mode only');
  await wire.post('/password/set', { password: 'a-long-password' }, scene.as('a'));
  t.match(await call.json('password-reset'), { code: EXIT.ok, data: { tenant: null, password: false } });
  t.equal((await wire.get('/password/exists')).at('exists'), false);
  t.match(await call.json('password-reset', 'anna'), { code: EXIT.notFound, error: { code: 'tenant_not_found' } });

  const socket = await scene.watch();
  const { data } = await call.json('epoch', 'new');
  t.equal((await socket.closed).code, 1012, 'sockets are closed with 1012');
  await untilIs(async () => {
    const reply = await wire.get('/service/status');
    return reply.status === 200 ? reply.text('epoch') : '';
  }, String(data['epoch']));

  t.match(await call.json('bootstrap-restart'), { code: EXIT.usage }, 'no terminal to confirm at');
  t.match(await call.answering(/unclaimed\? \[y\/N\]/, 'no', 'bootstrap-restart'), { code: EXIT.failure });
  t.equal((await wire.get('/me', scene.as('a'))).status, 200);
  t.match(await call.answering(/unclaimed\? \[y\/N\]/, 'yes', 'bootstrap-restart'), { code: EXIT.ok });
  await untilIs(async () => String((await wire.get('/me', scene.as('a'))).status), '401');
  const again = await claim(wire);
  t.equal((await wire.get('/me', { token: again.token })).status, 200);
});

t.test('OPER-13: purge runs the nightly jobs under the same lock as the nightly run', async (t) => {
  const scene = await Scene.start(t);
  const { wire, server } = scene;
  const item = await scene.written();
  await wire.delete(`/items/${item.id}`, scene.as('a'));
  const call = await admin(t, { DATABASE_URL: server.databaseUrl, SOFT_DELETE_DAYS: '0' });
  const holder = await openClient({ url: server.databaseUrl, name: 'tests', onLost: () => undefined });
  await holder.query('SELECT pg_advisory_lock(7265763012)');
  t.match(await call.json('purge'), { code: EXIT.unavailable, error: { code: 'busy' } });
  await holder.end();
  const done = await call.json('purge');
  t.equal(done.code, EXIT.ok, done.stderr);
  t.match(done.data, { jobs: [{ name: 'empty deleted items', rows: 1 }, {}, {}, {}, {}, {}, {}, {}] });
  t.equal((await server.sql('SELECT 1 FROM job_runs')).length, 1, 'the nightly run is recorded as done');
  await server.sql('ALTER FUNCTION clear_expired RENAME TO gone');
  const failed = await call.json('purge');
  t.equal(failed.code, EXIT.failure);
  t.match(failed.data, { jobs: { length: 8 } }, 'the other jobs ran all the same');
  t.match((await call.plain('purge')).stdout, /empty deleted items +0/);
});

t.test('OPER-14: verify reports figures that do not match, and migrate --dry-run what it would apply', async (t) => {
  const scene = await Scene.start(t);
  await scene.written();
  const call = await admin(t, { DATABASE_URL: scene.server.databaseUrl });
  t.match(await call.json('verify'), { code: EXIT.ok, data: { tenants: 1, devices: 2, items: 1, discrepancies: [] } });
  await scene.server.sql('UPDATE tenants SET item_count = 7');
  t.match(await call.json('verify'), {
    code: EXIT.untrusted,
    data: { discrepancies: [{ what: 'items', stored: 7, counted: 1 }] },
  });
  t.match((await call.plain('verify')).stdout, /items +7 +1\n/);
  await scene.server.sql(`CREATE OR REPLACE FUNCTION discrepancies()
    RETURNS TABLE (tenant_id text, what text, stored bigint, counted bigint) LANGUAGE sql STABLE AS $$
      SELECT 'x', current_setting('statement_timeout'), 0::bigint, 0::bigint $$`);
  t.match(
    await call.json('verify'),
    { data: { discrepancies: [{ what: '0' }] } },
    'to count all rows may take longer than any statement of a server',
  );
  t.match(await call.json('migrate'), { code: EXIT.ok, data: { applied: [] } });

  const { url } = await testDatabase(t, 'empty');
  const empty = await admin(t, { DATABASE_URL: url });
  t.match(await empty.json('tenants', 'list'), {
    code: EXIT.refused,
    error: { code: 'schema_old', hint: /run `service-admin migrate` or start the server/ },
  });
  const would = await empty.json('migrate', '--dry-run');
  t.match(would.data, { dryRun: true, applied: { 0: '0001_tables' } });
  t.same(await runSql(url, `SELECT 1 FROM pg_class WHERE relname = 'migrations'`), []);
  t.same((await empty.json('migrate')).data['applied'], would.data['applied']);
  t.match(await empty.json('tenants', 'list'), { code: EXIT.ok });
  await runSql(url, `INSERT INTO migrations (number, name, sha256) VALUES (9999, '9999_later', '')`);
  const newer = { code: EXIT.refused, error: { code: 'schema', message: /Update the server/ } };
  for (const command of [['migrate'], ['migrate', '--dry-run'], ['verify'], ['tenants', 'list']])
    t.match(await empty.json(...command), newer, command.join(' '));
});
