/** MIX: the load of real users, with all kinds of changes concurrently, lists and blobs. */
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { AuditError } from '../audit.js';
import { Child, nodeScript, numberIn } from '../child.js';
import type { Context } from '../context.js';
import { SLACK_MS } from '../leg.js';
import { MixAudit } from '../mix/audit.js';
import { BINS, SHARES, type KindResult } from '../mix/kinds.js';
import { Book, median, type Outcome } from '../stats.js';
import { arrived, cpuFrom, World, type Listening } from '../world.js';

const TENANTS = 200;
const PER_TENANT = 5;
const CONNECTIONS = 64;
/** Load of the single-threaded driver, in cores, above which the driver is the bottleneck. */
const DRIVER_MOST = 0.9;

interface Party extends Listening {
  readonly audit: MixAudit;
}

async function open(context: Context): Promise<Party> {
  const size = { tenants: context.scaled(TENANTS), perTenant: PER_TENANT };
  const world = await World.open(context, { name: 'mix', size });
  const { population, cluster } = world;
  // No tenant is loaded yet.
  await cluster.with(world.database, async (client) =>
    client.query(
      `INSERT INTO bins (tenant_id, id, slug, created_at, updated_at, changed_at_generation)
       SELECT t, $2, $2, $3, $3, 1 FROM unnest($1::text[]) t`,
      [population.tenants, BINS[1], Date.now()],
    ),
  );
  return { target: world, receivers: await world.receivers(), audit: new MixAudit(population) };
}

function startDriver({ options }: Context, { port, plan, population }: World, out: string): Child {
  const load = { tenants: population.tenants.length, connections: CONNECTIONS, seconds: options.seconds };
  return new Child('mix', nodeScript('mix/driver', { port, plan, ...load, out }, ['--enable-source-maps']));
}

/** Runs a round, whose figures count only if the audit holds. Returns the numbers of audited changes and frames. */
async function round(context: Context, { target: world, receivers, audit }: Party, book: Book) {
  const { seconds } = context.options;
  const [out, received] = [join(context.folder, 'mix.acked'), join(context.folder, 'mix.received')];
  await world.cluster.checkpoint();
  const driver = startDriver(context, world, out);
  await driver.next('window');
  const used = cpuFrom(world, [driver.pid]);
  await driver.next('end', seconds * 1_000 + SLACK_MS);
  const cpu = used();
  const result = await driver.result();
  const [wrong] = result['wrong'] as readonly string[];
  if (wrong !== undefined) throw new AuditError(wrong);
  await arrived(receivers, numberIn(result, 'changes') * (PER_TENANT - 1));
  await receivers.dump(received);
  const audited = await world.cluster.with(world.database, async (client) =>
    audit.run(client, { acked: out, received }),
  );
  for (const file of [out, received]) rmSync(file);
  const kinds = result['kinds'] as readonly KindResult[];
  const done = kinds.reduce((sum, { count }) => sum + count, 0);
  book.add('all', 'ops/s', done / seconds);
  for (const party of ['server', 'database'] as const) {
    book.add(`${party} for one of them, mean`, 'us', (cpu[party] / done) * 1e6);
  }
  book.add('driver', 'cores', cpu.client / seconds);
  for (const { kind, count, p50, p99 } of kinds) {
    book.add(kind, 'ops/s', count / seconds);
    if (count === 0) continue;
    book.add(`${kind}, p50`, 'ms', p50);
    book.add(`${kind}, p99`, 'ms', p99);
  }
  context.tell(`  mix: ${Math.round(done / seconds)} ops/s, audited`);
  return audited;
}

export async function mixed(context: Context): Promise<Outcome> {
  const { options } = context;
  context.tell('mix: setting up');
  const party = await open(context);
  const book = new Book();
  let [acked, received] = [0, 0];
  for (let number = 1; number <= options.rounds; number++) {
    context.tell(`mix: round ${number} of ${options.rounds}`);
    const audited = await round(context, party, book);
    acked += audited.acked;
    received += audited.received;
  }
  await party.receivers.stop();
  await party.target.stop();
  const shares = Object.entries(SHARES).map(([kind, share]) => `${share} ${kind}`);
  const limit = median(book.values('driver')) >= DRIVER_MOST;
  return {
    id: 'MIX',
    title: `what people do, in shares of a hundred: ${shares.join(', ')}; ${CONNECTIONS} connections, each change pushed to 4`,
    targets: [],
    figures: book.without([]),
    notes: limit ? ['the driver has no core left: it is the limit, and these figures mean little'] : [],
    audits: [
      `${acked} acknowledged changes: versions 1 to head without a gap, every item stored as its last change left it; ${received} frames received: exactly the others' versions, in order`,
      'every page of a list held what its reader had been acknowledged before; every blob came back as it was put',
    ],
  };
}
