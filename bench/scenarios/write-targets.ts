/** Targets of S1 to S4, and the loads that appear in their names. */
import { ratio, type Book, type Target } from '../stats.js';

export type WriteId = 'S1' | 'S2' | 'S3' | 'S4';
export type WriteBooks = Readonly<Record<WriteId, Book>>;

export const FEW_WRITERS = 64;
export const MANY_WRITERS = 256;
/** Arrivals per second: half of a server's maximum when this was chosen; fixed, so that results stay comparable. */
export const S3_RATE = 2_400;
export const FEW_TENANTS = 32;
export const FEW_TENANTS_RATE = 200;

type Bounds = Pick<Target, 'floor' | 'goal'>;

/** An upper bound for a recorded figure. */
const atMost = (book: Book, name: string, unit: string, bounds: Bounds): Target => ({
  name,
  unit,
  values: book.values(name),
  atLeast: false,
  ...bounds,
});

const atLeast = (name: string, values: readonly number[], bounds: Bounds): Target => ({
  name,
  unit: 'ratio',
  values,
  atLeast: true,
  ...bounds,
});

const overRaw = (book: Book, name: string): number[] =>
  ratio(book.values(name), book.values('raw PostgreSQL, the better'));

function s1({ S1 }: WriteBooks): Target[] {
  const few = `${FEW_WRITERS} writers`;
  const many = `${MANY_WRITERS} writers`;
  return [
    atLeast(`${many} / raw PostgreSQL`, overRaw(S1, many), { floor: 0.25, goal: 0.35 }),
    atLeast(`${few} / raw PostgreSQL`, overRaw(S1, few), { floor: 0.18, goal: 0.25 }),
    atMost(S1, `${many}: server for a write`, 'us', { floor: 75, goal: 55 }),
    atMost(S1, `${few}: server for a write`, 'us', { floor: 110, goal: 80 }),
  ];
}

function s2({ S2 }: WriteBooks): Target[] {
  const reference = ratio(S2.values('writes with pushes'), S2.values('fastify + pg + socket.io'));
  const both = `${FEW_TENANTS} tenants, closed loop: per CPU-second of server and database`;
  return [
    atLeast('writes / raw PostgreSQL', overRaw(S2, 'writes with pushes'), { floor: 0.15, goal: 0.2 }),
    atLeast('writes / fastify reference', reference, { floor: 6, goal: 7 }),
    atMost(S2, 'writes with pushes: server for a write', 'us', { floor: 150, goal: 120 }),
    atMost(S2, 'writes with pushes: garbage of a write', 'bytes', { floor: 12_000, goal: 8_000 }),
    { ...atLeast(both, S2.values(both), { floor: 4_000, goal: 6_000 }), unit: 'writes' },
  ];
}

function s3({ S3 }: WriteBooks): Target[] {
  const all = `${S3_RATE}/s`;
  const few = `${FEW_TENANTS_RATE}/s over ${FEW_TENANTS} tenants`;
  return [
    atMost(S3, `${all}: send to push, p50`, 'ms', { floor: 2.5, goal: 1.7 }),
    atMost(S3, `${all}: send to push, p99`, 'ms', { floor: 15, goal: 8 }),
    atMost(S3, `${few}: send to push, p50`, 'ms', { floor: 2, goal: 1.2 }),
    atMost(S3, `${few}: send to push, p99`, 'ms', { floor: 6, goal: 3 }),
    atMost(S3, `${all}: major collection, median`, 'ms', { floor: 9, goal: 5 }),
  ];
}

function s4({ S1, S2, S4 }: WriteBooks): Target[] {
  const kept = (name: string, book: Book): Target =>
    atLeast(`${name}: slow disk / fast disk`, ratio(S4.values(name), book.values(name)), { floor: 0.8, goal: 0.95 });
  return [kept(`${FEW_WRITERS} writers`, S1), kept(`${MANY_WRITERS} writers`, S1), kept('writes with pushes', S2)];
}

/** Title and targets of a scenario that ran. */
export function described(id: WriteId, books: WriteBooks): { readonly title: string; readonly targets: Target[] } {
  switch (id) {
    case 'S1':
      return { title: 'writes over raw batched PostgreSQL', targets: s1(books) };
    case 'S2':
      return { title: 'writes, each pushed to 4 other devices, over raw batched PostgreSQL', targets: s2(books) };
    case 'S3':
      return { title: 'latency from send to push at fixed rates, arrivals by schedule', targets: s3(books) };
    case 'S4':
      return { title: 'S1 to S3 with 1 ms added to each flush', targets: s4(books) };
  }
}
