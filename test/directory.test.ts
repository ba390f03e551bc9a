/** Tenants as the actors read them, on a real database (contract 13). */
import t from 'tap';
import { ulid } from 'ulid';
import { ServiceError } from '../src/protocol/errors.js';
import { claimedWorld, Instance, newWorld, quickHasher, random, refusal } from './support/accounts.js';
import { TestClock } from './support/clock.js';

t.test('the directory reads many tenants at once', async (t) => {
  const world = await newWorld(t);
  const { a, tenantId } = world;
  await claimedWorld(world);
  await a.bins.create(tenantId, { id: 'meta', meta: random(4_096) });
  const others = Array.from({ length: 700 }, () => ulid());
  await a.pool.query('INSERT INTO tenants (id, created_at, head) SELECT id, 1, 3 FROM unnest($1::text[]) AS u(id)', [
    others,
  ]);
  let statements = 0;
  const query = a.pool.query.bind(a.pool) as (...args: unknown[]) => unknown;
  Object.assign(a.pool, { query: (...args: unknown[]) => (statements++, query(...args)) });
  const ids = [tenantId, ...others, ulid(), tenantId];
  const loaded = await Promise.all(ids.map((id) => a.directory.load(id)));
  t.equal(statements, 2);
  t.same(
    loaded.map((snapshot) => snapshot?.tenantId),
    [...ids.slice(0, -2), undefined, tenantId],
  );
  const heads = await Promise.all(others.map((id) => a.directory.head(id)));
  t.equal(statements, 4);
  t.ok(heads.every(({ version }) => version === 3));
  t.equal(await refusal(a.directory.head(ulid())), 'tenant_not_found');
  const [snapshot] = loaded;
  t.match(snapshot, { state: 'active', claimed: true, pairRequests: [] });
  t.equal((snapshot?.bins[1]?.view?.['meta'] as Uint8Array).length, 4_096);
  t.same(await a.directory.standings([others[0] ?? '', ulid()]), [{ tenantId: others[0], head: 3, generation: 1 }]);
});

t.test('ERR-14: a database that is away is unavailable, with the cause for the log', async (t) => {
  const instance = new Instance({
    url: 'postgres://nobody@127.0.0.1:1/none',
    clock: new TestClock(),
    hasher: quickHasher,
  });
  t.teardown(() => instance.close());
  const error = await instance.bins.list(ulid()).catch((thrown: unknown) => thrown);
  t.ok(error instanceof ServiceError);
  t.match(error, { error: 'unavailable', retryAfter: 2, cause: { code: 'ECONNREFUSED' } });
});
