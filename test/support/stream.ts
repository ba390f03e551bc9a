/** What a socket sent, read as a client reads it, and writers that keep a server busy. */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Socket, Json, Reply, Shape, Wire } from './wire.js';
import { edited, newItem, write, type TestDevice, type TestItem } from './devices.js';
import { Notifier } from './events.js';

/** An `item`, `delete` or `ack` frame of either shape. */
export interface Seen {
  readonly kind: 'item' | 'delete' | 'ack';
  readonly id: string;
  readonly version: number;
  readonly frame: Json;
}

/** The changes among frames, in the order they came. */
export function changesOf(frames: readonly Json[]): Seen[] {
  return frames.flatMap((frame): Seen[] => {
    const { type } = frame;
    if (type !== 'item' && type !== 'delete' && type !== 'ack') return [];
    const row = (type === 'item' && 'item' in frame ? frame['item'] : frame) as Json;
    return [{ kind: type, id: String(row['id']), version: Number(row['version']), frame }];
  });
}

export const versionsOf = (frames: readonly Json[]): number[] => changesOf(frames).map(({ version }) => version);

/** The places where numbers do not strictly rise, as 'before -> after'. */
export function notRising(versions: readonly number[]): string[] {
  return versions.flatMap((version, at) => {
    const before = versions[at - 1] ?? 0;
    return version > before ? [] : [`${before} -> ${version}`];
  });
}

/** Where two lists part, as text; '' when they are the same. For long lists, of which a whole diff helps nobody. */
export function difference(found: readonly unknown[], wanted: readonly unknown[]): string {
  const at = range(0, Math.max(found.length, wanted.length) - 1).find(
    (index) => JSON.stringify(found[index]) !== JSON.stringify(wanted[index]),
  );
  if (at === undefined) return '';
  const around = (list: readonly unknown[]): string => JSON.stringify(list.slice(Math.max(0, at - 2), at + 3));
  return `at ${at} of ${found.length} and ${wanted.length}: found ${around(found)}, wanted ${around(wanted)}`;
}

/** Numbers from `from` to `to`, both included. */
export const range = (from: number, to: number): number[] =>
  Array.from({ length: Math.max(0, to - from + 1) }, (_, at) => from + at);

/** Waits until a change of at least this version has come; answers all changes that the socket has brought. */
export async function untilVersion(socket: Socket, version: number): Promise<Seen[]> {
  for (let looked = 0; !changesOf(socket.frames.slice(looked)).some((seen) => seen.version >= version);) {
    looked = socket.frames.length;
    await socket.next();
  }
  return changesOf(socket.frames);
}

/** Asks and waits for the answer: every frame that the server sent before it is here then. */
export async function barrier(socket: Socket): Promise<void> {
  const answers = (): number => socket.of('pong').length;
  const before = answers();
  socket.send({ type: 'ping' });
  while (answers() === before) await socket.next('pong');
}

/** The state that frames or rows lead to: live items and deletes by id. */
export class Mirror {
  readonly live = new Map<string, number>();
  readonly deleted = new Map<string, number>();

  apply(changes: readonly Pick<Seen, 'kind' | 'id' | 'version'>[]): this {
    for (const { kind, id, version } of changes) {
      if (kind === 'delete') this.live.delete(id);
      (kind === 'delete' ? this.deleted : this.live).set(id, version);
    }
    return this;
  }

  get summary(): { readonly itemCount: number; readonly versionSum: number } {
    return { itemCount: this.live.size, versionSum: [...this.live.values()].reduce((sum, one) => sum + one, 0) };
  }

  /** Every item and delete, by version. */
  get state(): [kind: 'item' | 'delete', id: string, version: number][] {
    const of = (kind: 'item' | 'delete', map: Map<string, number>) =>
      [...map].map(([id, version]): [typeof kind, string, number] => [kind, id, version]);
    return [...of('item', this.live), ...of('delete', this.deleted)].sort((one, other) => one[2] - other[2]);
  }
}

export interface Listing {
  readonly rows: Json[];
  /** Head of the last page's snapshot. */
  readonly head: number;
  readonly changes: Pick<Seen, 'kind' | 'id' | 'version'>[];
}

/** Pages through `GET /items` from `since` to the head. */
export async function listAll(
  wire: Wire,
  token: string,
  from: { readonly since?: number; readonly limit?: number; readonly shape?: Shape } = {},
): Promise<Listing> {
  const { limit = 1_000, shape = 'a' } = from;
  const rows: Json[] = [];
  for (let since = from.since ?? 0; ;) {
    const reply = await wire.get(`/items?since=${since}&limit=${limit}`, { token, shape });
    if (reply.status !== 200) throw new Error(`listing: ${reply.status} ${reply.raw}`);
    rows.push(...reply.list('items'));
    const next = shape === 'a' ? reply.number('nextSince') : reply.number('head_version');
    if (reply.at(shape === 'a' ? 'hasMore' : 'has_more') !== true) {
      return { rows, head: next, changes: rows.map(changeOfRow) };
    }
    since = Number(rows.at(-1)?.['version']);
  }
}

const changeOfRow = (row: Json): Pick<Seen, 'kind' | 'id' | 'version'> => ({
  kind: typeof (row['deletedAt'] ?? row['deleted_at']) === 'number' ? 'delete' : 'item',
  id: String(row['id']),
  version: Number(row['version']),
});

/** A change that the server acknowledged. */
export interface Acked {
  readonly kind: 'item' | 'delete';
  readonly id: string;
  readonly version: number;
  readonly device: string;
}

/** What a writer does in a turn: a new item; instead of each third an edit, of each seventh a delete, of its last one. */
export function nextWrite(
  turn: number,
  last: TestItem | undefined,
  { fresh, changed }: { readonly fresh: () => TestItem; readonly changed: (last: TestItem) => TestItem },
): { readonly item: TestItem; readonly remove: boolean } {
  if (last !== undefined && turn % 7 === 0) return { item: last, remove: true };
  return { item: last !== undefined && turn % 3 === 0 ? changed(last) : fresh(), remove: false };
}

interface WriterOptions {
  /** A writer takes the wire and the device of its number, in turn. */
  readonly wires: readonly Wire[];
  readonly devices: readonly TestDevice[];
  readonly writers: number;
  /** Ids of all devices of the tenant; those of `devices` by default. */
  readonly sealFor?: readonly string[];
  /** Bytes of ciphertext; 48 by default. */
  readonly bytes?: number;
  /** New items only, so that every version stays a row. */
  readonly insertsOnly?: boolean;
  /** Given: stops by itself after so many acknowledgements. */
  readonly limit?: number;
}

/** A writer that is only refused would go on for ever. */
const REFUSALS_MAX = 1_000;
/** Before a writer asks again that was refused, ms: while a database is away each answer comes at once. */
const REFUSED_MS = 20;

/**
 * Writes, edits and deletes at full speed until stopped. A writer ends at its first error, which is kept. `acked`: in the
 * order the answers came; `open`: sent and not acknowledged, since it was refused, or the answer was lost.
 */
export function startWriters(options: WriterOptions) {
  const { wires, devices, writers, limit = Infinity } = options;
  const names = options.sealFor ?? devices.map((device) => device.id);
  const writing = { acked: [] as Acked[], open: [] as TestItem[], refusals: [] as Reply[], errors: [] as Error[] };
  const changed = new Notifier();
  let stopped = false;
  const one = async (number: number): Promise<void> => {
    const wire = wires[number % wires.length];
    const device = devices[number % devices.length];
    if (wire === undefined || device === undefined) throw new Error('no wire or no device');
    const bytes = (value: number): Buffer => Buffer.alloc(options.bytes ?? 48, value);
    let last: TestItem | undefined;
    for (let turn = 1; !stopped && writing.acked.length < limit; turn++) {
      const { item, remove } = nextWrite(turn, options.insertsOnly === true ? undefined : last, {
        fresh: () => newItem(names, { ct: bytes(number) }),
        changed: (before) => edited(before, { ct: bytes(turn % 256) }),
      });
      writing.open.push(item);
      const reply = remove
        ? await wire.delete(`/items/${item.id}`, { token: device.token, shape: 'a' })
        : await write(wire, device, item);
      if (reply.status !== 200) {
        if (writing.refusals.push(reply) > REFUSALS_MAX) throw new Error(`refused again and again: ${reply.raw}`);
        await sleep(REFUSED_MS);
        continue;
      }
      writing.open.splice(writing.open.indexOf(item), 1);
      const kind = remove ? 'delete' : 'item';
      writing.acked.push({ kind, id: item.id, version: reply.number('version'), device: device.id });
      last = remove ? undefined : item;
      changed.notify();
    }
  };
  const all = range(1, writers).map(async (number) =>
    one(number).catch((error: unknown) => {
      writing.errors.push(error instanceof Error ? error : new Error(String(error)));
    }),
  );
  const done = Promise.all(all).then(() => {
    stopped = true;
    changed.notify();
  });
  return {
    ...writing,
    /** Resolves once `count` changes are acknowledged, or the writers are done. */
    until: (count: number) => changed.until(() => stopped || writing.acked.length >= count),
    /** Ends after the requests under way. */
    async stop() {
      stopped = true;
      await done;
    },
  };
}

/** What was live at a version, from everything that was ever acknowledged. */
export function summaryAt(
  acked: readonly Acked[],
  version: number,
): { readonly itemCount: number; readonly versionSum: number } {
  const until = acked.filter((change) => change.version <= version).sort((one, other) => one.version - other.version);
  return new Mirror().apply(until).summary;
}
