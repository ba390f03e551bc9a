/** Targets of S1 to S4, and the loads that appear in their names. */
import { atLeast, atMost, ratio, type Book, type Series, type Target } from '../stats.js';

export type WriteId = 'S1' | 'S2' | 'S3' | 'S4';
export type WriteBooks = Readonly<Record<WriteId, Book>>;

export const FEW_WRITERS = 64;
export const MANY_WRITERS = 256;
/** Arrivals per second: half of a server's maximum when this was chosen; fixed, so that results stay comparable. */
export const S3_RATE = 2_400;
export const FEW_TENANTS = 32;
export const FEW_TENANTS_RATE = 200;

const overRaw = (book: Book, name: string, as = name): Series =>
  book.ratio(name, 'raw PostgreSQL, the better', `${as} / raw PostgreSQL`);

function s1({ S1 }: WriteBooks): Target[] {
  const few = `${FEW_WRITERS} writers`;
  const many = `${MANY_WRITERS} writers`;
  return [
    atLeast(overRaw(S1, many), 0.25, 0.35),
    atLeast(overRaw(S1, few), 0.18, 0.25),
    atMost(S1.one(`${many}: server for a write`), 75, 55),
    atMost(S1.one(`${few}: server for a write`), 110, 80),
  ];
}

function s2({ S2 }: WriteBooks): Target[] {
  return [
    atLeast(overRaw(S2, 'writes with pushes', 'writes'), 0.15, 0.2),
    atLeast(S2.ratio('writes with pushes', 'fastify + pg + socket.io', 'writes / fastify reference'), 6, 7),
    atMost(S2.one('writes with pushes: server for a write'), 150, 120),
    atMost(S2.one('writes with pushes: garbage of a write'), 12_000, 8_000),
    atLeast(S2.one(`${FEW_TENANTS} tenants, closed loop: per CPU-second of server and database`), 4_000, 6_000),
  ];
}

function s3({ S3 }: WriteBooks): Target[] {
  const all = `${S3_RATE}/s`;
  const few = `${FEW_TENANTS_RATE}/s over ${FEW_TENANTS} tenants`;
  return [
    atMost(S3.one(`${all}: send to push, p50`), 2.5, 1.7),
    atMost(S3.one(`${all}: send to push, p99`), 15, 8),
    atMost(S3.one(`${few}: send to push, p50`), 2, 1.2),
    atMost(S3.one(`${few}: send to push, p99`), 6, 3),
    atMost(S3.one(`${all}: major collection, median`), 9, 5),
  ];
}

function s4({ S1, S2, S4 }: WriteBooks): Target[] {
  const kept = (name: string, book: Book): Target =>
    atLeast(ratio(`${name}: slow disk / fast disk`, S4.values(name), book.values(name)), 0.8, 0.95);
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
