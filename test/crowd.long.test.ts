/** Many requests while the database is frozen: what waits is bounded, and every request is answered. */
import t from 'tap';
import { claim, newItem, write, writeBody, type TestItem } from './support/devices.js';
import { soon, until } from './support/events.js';
import { KeepAlive, type RawAnswer, type RawRequest } from './support/keep-alive.js';
import { OwnPostgres } from './support/own-postgres.js';
import { spawnServer, type Child } from './support/server.js';
import { residentBytes } from './support/memory.js';
import { listAll, range } from './support/stream.js';
import { spelled } from './support/wire.js';

t.setTimeout(600_000);

/** More changes than the 5,000 that a tenant may have waiting (FAIR-44); then fewer, but large ones. */
const SMALL = { batches: 260, items: 100, bytes: 48 } as const;
const LARGE = { batches: 100, items: 10, bytes: 60_000 } as const;
const READERS = 600;
/** Memory that may be held: the changes, the bodies they came in, and what the collector has not freed yet. */
const GROWTH_MAX = 500 * 1024 * 1024;
const ANSWERS_MAX_MS = 60_000;

interface Crowd {
  readonly answers: readonly RawAnswer[];
  readonly peak: number;
}

/** Sends all requests at once, each on a connection of its own. */
async function crowd(server: Child, requests: readonly RawRequest[]): Promise<Crowd> {
  const connections = await Promise.all(requests.map(async () => KeepAlive.open(server.port)));
  let peak = 0;
  let over = false;
  const watch = async (): Promise<void> => {
    while (!over) peak = Math.max(peak, await residentBytes(server.process.pid ?? 0));
  };
  const watching = watch();
  const waiting = requests.map(async (request, at) => connections[at]?.ask(request));
  const answers = await soon(Promise.all(waiting), 'an answer to everybody', ANSWERS_MAX_MS);
  over = true;
  await watching;
  connections.forEach((connection) => connection.end());
  return { answers: answers.filter((answer) => answer !== undefined), peak };
}

t.test('DUR-10 DUR-07 ERR-15 HTTP-14 FAIR-13 FAIR-44: a frozen database leaves no call unanswered', async (t) => {
  const postgres = await OwnPostgres.start(t);
  const server = await spawnServer(t, { database: postgres, env: { LOG_LEVEL: 'error' } });
  const { token, id } = await claim(server.wire);
  const items: TestItem[] = [];
  const batchesOf = ({ batches, items: count, bytes }: typeof SMALL | typeof LARGE): RawRequest[] =>
    range(1, batches).map(() => {
      const some = range(1, count).map(() => newItem([id], { ct: Buffer.alloc(bytes) }));
      items.push(...some);
      return { token, path: '/items/batch', body: spelled('a', { items: some.map((item) => writeBody('a', item)) }) };
    });
  /** The outcomes of all writes: an error code, or 'stored'. */
  const codes = ({ answers }: Crowd): Set<string> =>
    new Set(
      answers.flatMap(({ status, body }) => {
        if (status !== 200) return [`${status} ${(JSON.parse(body) as { error: { code: string } }).error.code}`];
        const { results } = JSON.parse(body) as { results: { error?: { code: string } }[] };
        return results.map(({ error }) => error?.code ?? 'stored');
      }),
    );
  // Loads the tenant into memory, which a frozen database could not.
  t.equal((await write(server.wire, { token }, newItem([id]))).status, 200);
  const before = await residentBytes(server.process.pid ?? 0);

  for (const size of [SMALL, LARGE]) {
    const requests = batchesOf(size);
    await postgres.freeze();
    const single: RawRequest = { token, path: '/items', body: spelled('a', writeBody('a', newItem([id]))) };
    const found = await crowd(server, [...requests, single]);
    t.equal(found.answers.length, size.batches + 1, 'every request is answered');
    // rate_limited: beyond its share of the calls under way (FAIR-13), or the tenant's of waiting writes (FAIR-44).
    t.same(
      [...codes(found)].filter((code) => !/^((503 )?unavailable|(429 )?rate_limited)$/.test(code)),
      [],
      'nothing is acknowledged',
    );
    t.ok(
      found.answers.every(({ status, retryAfter }) => status === 200 || Number(retryAfter) >= 1),
      'every refusal has Retry-After',
    );
    const shed = found.answers.some(({ body }) => body.includes('too many writes of the tenant wait'));
    t.ok(shed || size === LARGE, 'the small writes reach the bound; of the large ones few are under way');
    const last = found.answers.at(-1);
    // 503 where the server had noticed that the database is away before this one came.
    t.match(last?.status, /^(429|503)$/);
    t.match(last?.retryAfter, /^[1-9]\d*$/);
    t.ok(found.peak - before < GROWTH_MAX, `memory grew by ${Math.round((found.peak - before) / 2 ** 20)} MiB`);
    postgres.thaw();
    await until('the database', async () => (await server.wire.get('/service/status')).status === 200);
  }

  await postgres.freeze();
  const reads = range(1, READERS).map((n) => ({ token, path: n % 2 === 0 ? '/items?since=0' : '/me' }));
  const found = await crowd(server, reads);
  const heard = new Set(found.answers.map(({ status, retryAfter }) => `${status} ${Number(retryAfter) >= 1}`));
  t.ok(heard.delete('503 true'), 'readers get 503 with Retry-After');
  t.same(
    [...heard].filter((answer) => answer !== '429 true'),
    [],
    'or 429 beyond the share of their device',
  );
  t.equal(found.answers.length, READERS);
  postgres.thaw();
  await until('the database', async () => (await server.wire.get('/service/status')).status === 200);

  const known = new Set(items.map((item) => item.id));
  const { changes, head } = await listAll(server.wire, token);
  t.equal(changes.length, head, 'the writes that were stored all the same have versions without a gap');
  t.ok(changes.filter((change) => known.has(change.id)).length >= changes.length - 2);
});
