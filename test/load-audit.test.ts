/** What audits of `service-load` find and do not find, against servers that answer as the test says. */
import t from 'tap';
import { sealItem } from '../src/crypto/item.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { sumOf, TenantAudit, type Audited } from '../src/load/audit.js';
import type { FleetDevice, FleetTenant } from '../src/load/fleet.js';
import { Ledger, nowUs } from '../src/load/ledger.js';
import { Meter } from '../src/load/meter.js';
import { SealedPool } from '../src/load/pool.js';
import { reportOf, Timeline } from '../src/load/report.js';
import { Writer } from '../src/load/writer.js';
import { writeBody } from '../src/sdk/wire.js';
import { newId } from './support/client.js';
import { fleetTenant, PLAN } from './support/load-plan.js';
import { answering } from './support/load-program.js';
import type { WithTeardown } from './support/postgres.js';

const device = (): FleetDevice => fleetTenant().devices[0] as FleetDevice;

/** An item as a server lists it. */
function rowOf(tenant: FleetTenant, id: string, version: number, more: object = {}): object {
  const head = { id, binId: tenant.binId, type: 'text', ts: 1_700_000_000_000 } as const;
  const sealed = sealItem(nodeSodium, { ...head, payload: { text: 'x' } }, tenant);
  const stored = { version, senderDevice: tenant.devices[0]?.id, deletedAt: null };
  return { ...writeBody({ ...head, ...sealed, ifVersion: null }), ...stored, ...more };
}

/** Audits a tenant of which the server lists `items`, up to `head`; `versions` and `entries` are what each socket received. */
async function audited(
  t: WithTeardown,
  {
    tenant,
    ledger,
    items,
    head,
    sockets,
  }: {
    readonly tenant: FleetTenant;
    readonly ledger: Ledger;
    readonly items: readonly object[];
    readonly head: number;
    readonly sockets: readonly { readonly versions: readonly number[]; readonly entries: readonly number[] }[];
  },
): Promise<Audited> {
  const { target } = await answering(t, (request, reply) => {
    const me = request.url === '/api/me';
    reply.end(JSON.stringify(me ? { headVersion: head } : { items, nextSince: head, hasMore: false }));
  });
  const receivers = sockets.map(({ versions, entries }) => {
    return { versions: [...versions], entries: [...entries], unexpected: [], live: true };
  });
  return new TenantAudit({ sodium: nodeSodium, target, tenant, ledger, receivers }).run();
}

t.test('LOAD-03: an item of nobody that a socket got is reported, in a tenant of the run', async (t) => {
  const id = newId();
  for (const slug of ['load-a', undefined]) {
    const tenant = fleetTenant({ slug });
    const ledger = new Ledger(0);
    ledger.acknowledge(ledger.begin(id, 1, nowUs()), 1, { device: 0, deletes: false });
    const items = [rowOf(tenant, id, 1)];
    const sockets = [{ versions: [2], entries: [-1] }];
    // As the socket does on an item that is not of the run.
    ledger.foreign.add(2);
    const { examples } = await audited(t, { tenant, ledger, items, head: 2, sockets });
    const expected =
      slug === undefined ? [] : [/^load-a: socket of device 1 got version 2 of an item that nobody wrote$/];
    t.match(examples, expected);
    t.equal(examples.length, expected.length);
  }
});

t.test('LOAD-02: changes of others in a tenant of a list are no differences, also those that nobody saw', async (t) => {
  for (const [foreign, faults] of [
    [1, 0],
    [0, 1],
  ] as const) {
    const tenant = fleetTenant({ slug: undefined });
    const ledger = new Ledger(0);
    const id = newId();
    ledger.acknowledge(ledger.begin(id, 1, nowUs()), 1, { device: 0, deletes: false });
    // Another device wrote an item as version 2, and as version 3 before anyone looked.
    const items = [rowOf(tenant, id, 1), rowOf(tenant, newId(), 3)].slice(0, 1 + foreign);
    const found = await audited(t, { tenant, ledger, items, head: 3, sockets: [{ versions: [], entries: [] }] });
    t.match(found, { faults, foreign }, 'versions of nobody are a difference where nobody else writes');
  }
});

t.test(
  'LOAD-03: a delete that was not answered and is stored is not missed by the socket of its own device',
  async (t) => {
    const tenant = fleetTenant({ devices: [device(), device()] });
    const ledger = new Ledger(0);
    const entry = ledger.begin(newId(), 1, nowUs());
    ledger.acknowledge(entry, 1, { device: 0, deletes: false });
    t.equal(ledger.take(), entry);
    ledger.fail(entry, 'unknown');
    // The second device deleted it: its socket gets no frame, and the tombstone has the device of the content.
    const tombstone = { id: entry.id, version: 2, deletedAt: 5, senderDevice: tenant.devices[0]?.id };
    const sockets = [
      { versions: [2], entries: [0] },
      { versions: [1], entries: [0] },
    ];
    const { examples, unanswered } = await audited(t, { tenant, ledger, items: [tombstone], head: 2, sockets });
    t.same(examples, []);
    t.equal(unanswered, 1);
  },
);

t.test('LOAD-14: a blob whose item the server does not list is a difference of the audit', async (t) => {
  const { url } = await answering(t, (_, reply) => void reply.end('bytes'));
  const tenant = fleetTenant();
  const other = rowOf(tenant, newId(), 7);
  const { target } = await answering(t, (request, reply) => {
    const list = request.url?.startsWith('/api/items') ?? false;
    reply.end(JSON.stringify(list ? { items: [other] } : { url: `${url}/b` }));
  });
  const ledger = new Ledger(0);
  const entry = ledger.begin(newId(), 1, nowUs());
  entry.blob = { ref: 'R.bin', hash: '' };
  ledger.acknowledge(entry, 7, { device: 0, deletes: false });
  const pool = new SealedPool([tenant], PLAN, 1);
  t.teardown(() => pool.end());
  const stopped = new AbortController().signal;
  const plan = { ...PLAN, url, mix: { 'blob-get': 1 } };
  const shared = { plan, sodium: nodeSodium, target, meter: new Meter(), measured: () => true, stopped };
  const writer = new Writer({ ...shared, pool, places: [{ tenant, ledger }] });
  writer.begin(nowUs());
  await writer.done();
  t.same([...ledger.faults], [`the item of the blob ${entry.id} is not listed under its version`]);
});

t.test('LOAD-15: operations that failed in the program itself are no figures of a server', (t) => {
  const { totals } = new Meter();
  const part = {
    ...{ part: 0, tenants: 1, sockets: 1, storms: [], audit: sumOf([]) },
    totals: { ...totals, errors: { client_fault: 3 } },
    client: { rate: PLAN.rate, cpu: 0, loopDelayP99Ms: 0, starved: 0 },
  };
  const load = { version: '1', commit: 'unknown' };
  const sources = { plan: PLAN, at: 0, load, server: null, timeline: new Timeline(), lostParts: [], left: [] };
  const { doubts, trusted } = reportOf({ ...sources, results: [part] });
  t.match({ doubts, trusted }, { doubts: [/^3 operations failed in this program/], trusted: false });
  t.end();
});
