/** S6: very many devices reconnect at head, to several instances on one port. */
import { AuditError } from '../audit.js';
import type { Context } from '../context.js';
import { Crowd, PER_TENANT } from '../crowd.js';
import { atMost, Book, type Outcome } from '../stats.js';
import { cpuFrom } from '../world.js';

const DEVICES = 100_000;
/** Sockets of one client process that have not caught up yet: with 128 the client would be the bottleneck. */
const OPENING = 256;

/** `cpu`: of all instances, and of the database; `kinds`: the most frequent statements. */
async function storm(crowd: Crowd) {
  const { world } = crowd;
  const before = await world.statements();
  const used = cpuFrom(world);
  const seconds = await crowd.connect({ port: world.port, opening: OPENING });
  const cpu = used();
  const sent = [...(await world.statements())].map(([kind, times]) => [kind, times - (before.get(kind) ?? 0)] as const);
  const statements = sent.reduce((sum, [, times]) => sum + times, 0);
  const frequent = sent.sort(([, one], [, other]) => other - one).slice(0, 3);
  const kinds = frequent.map(([kind, times]) => `${times} ${kind}`).join(', ');
  const { live } = await crowd.count();
  if (live !== crowd.size) throw new AuditError(`${live} of ${crowd.size} devices have caught up`);
  return { seconds, cpu, statements, kinds };
}

export async function reconnects(context: Context): Promise<Outcome> {
  const { options } = context;
  const devices = context.scaled(DEVICES);
  const crowd = await Crowd.open(context, { name: 'storm', text: 'reconnects', devices, spare: 0 });
  const { world, size: count } = crowd;
  const book = new Book();
  for (let round = 1; round <= options.rounds; round++) {
    context.tell(`reconnects: round ${round} of ${options.rounds}`);
    await crowd.onBare(OPENING, (_servers, seconds) => book.add('bare uWS', 's', seconds));
    await world.stop();
    await world.start();
    const first = await storm(crowd);
    book.add('after a restart of the servers', 's', first.seconds);
    book.add('after a restart of the servers: statements of SQL', 'count', first.statements);
    await crowd.disconnect(world.servers);
    const again = await storm(crowd);
    book.add('reconnects', 's', again.seconds);
    book.add('reconnects: statements of SQL', 'count', again.statements);
    book.add("reconnects: the servers' CPU for a device", 'us', (again.cpu.server * 1e6) / count);
    book.add("reconnects: the database's CPU for a device", 'us', (again.cpu.database * 1e6) / count);
    await crowd.disconnect(world.servers);
    context.tell(`  ${again.seconds.toFixed(1)} s, all caught up; ${again.statements} statements: ${again.kinds}`);
  }
  const processes = world.servers.length;
  await crowd.close();
  const statements = book.one('reconnects: statements of SQL');
  return {
    id: 'S6',
    title: `${count} devices reconnect at head, ${PER_TENANT} a tenant, ${processes} instances on one port, over bare uWS in as many processes`,
    targets: [
      atMost(book.ratio('reconnects', 'bare uWS'), 2, 1.5),
      atMost({ ...statements, name: 'reconnects: statements' }, 1_000, 500),
    ],
    figures: book.without([statements]),
    audits: ['every device was let in by its own token and got caught_up each time, and none was closed afterwards'],
  };
}
