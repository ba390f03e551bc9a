/**
 * Property tests of the client library: any order of changes, requests, replies, frames, failures and deaths of its
 * programs, with clocks that are set and stores that fail, drawn by fast-check, against an honest server. At the end
 * everything is connected and quiet; then nothing that was promised may be lost, all devices show what the server has,
 * and nobody has accused it (support/simulated-device.ts).
 */
import fc from 'fast-check';
import { asError, errorCode } from '../../src/protocol/error-code.js';
import type { Item } from '../../src/protocol/item.js';
import { bytesSource } from '../../src/sdk/blobs/source.js';
import type { Device } from '../../src/sdk/device.js';
import { itemId } from './changes.js';
import { ClientWorld, titleOf, type Asked, type SimulatedDevice } from './simulated-device.js';

const ITEMS = 4;
/** The last one is missing at first. */
const BINS = ['inbox', 'other', 'third'];
const DEVICES_MAX = 4;
const MINUTE = 60_000;
/** Minutes. */
const DAY = 1_440;
const SKEWS = [0, 2, -2, 90, -90, 3 * DAY, -3 * DAY];

/** Numbers that choose among what exists at that moment. */
export interface Numbers {
  readonly a: number;
  readonly b: number;
  readonly c: number;
}

/** One event. */
export interface Happening<N extends string = keyof typeof HAPPENINGS> extends Numbers {
  readonly what: N;
}

/** A fixed script; numbers that are left out are 0. */
export type Script<N extends string = keyof typeof HAPPENINGS> = readonly (Pick<Happening<N>, 'what'> &
  Partial<Numbers>)[];

/** What an event does. */
type Happenings<N extends string> = Readonly<Record<N, (world: ClientWorld, numbers: Numbers) => unknown>>;

export const pick = <T>(from: readonly T[], n: number): T | undefined =>
  from.length === 0 ? undefined : from[n % from.length];

const deviceOf = (world: ClientWorld, n: number): SimulatedDevice | undefined => pick(world.devices, n);
/** A device whose program runs. */
function runningOf(world: ClientWorld, n: number) {
  const device = deviceOf(world, n);
  const run = device?.device;
  return device?.program === undefined || run === undefined ? undefined : { device, program: device.program, run };
}

/** Work whose failure is a right answer to what happens meanwhile. */
export const attempt = (work: () => Promise<unknown>): void => void work().catch(() => undefined);

export const idOf = (n: number): string => itemId(n % ITEMS);

export const binOf = (n: number): string => pick(BINS, n % 8 === 0 ? 1 : n % 8 === 4 ? 2 : 0) ?? '';

/** Several parts of an upload. */
export const contentOf = (name: string): Uint8Array => Buffer.from(name.repeat(12));

async function emptied({ program, run }: NonNullable<ReturnType<typeof runningOf>>, id: string): Promise<void> {
  program.emptying++;
  await run.bins.remove(id).finally(() => program.emptying--);
}

export const HAPPENINGS = {
  put: (world: ClientWorld, { a, b, c }: Numbers) => {
    const of = runningOf(world, a);
    if (of === undefined) return;
    const [id, text] = [idOf(b), world.nextText()];
    const onConflict = c % 3 === 0 ? 'overwrite' : 'fail';
    // Some programs take a while to keep what was refused.
    const slow = c % 5 === 4 ? { onRefused: () => of.device.later(of.program) } : {};
    const put = of.run.put({ id, binId: binOf(c), type: 'text', payload: { text }, onConflict, ...slow });
    world.ask({ ...of, kind: 'put', id, what: text }, put);
  },
  /** Its content is its name. */
  file: async (world: ClientWorld, { a, b, c }: Numbers) => {
    const of = runningOf(world, a);
    if (of === undefined) return;
    const [id, name] = [idOf(b), world.nextText()];
    // It would have a later time than a change that waits; that is made earlier by the server's refusal, a file is not.
    const ahead = world.clock.now() + DAY * MINUTE;
    const waiting = await of.device.store.pending();
    if (waiting.some((change) => change.id === id && change.kind !== 'delete' && change.row.ts > ahead)) return;
    const onConflict = c % 3 === 0 ? 'overwrite' : 'fail';
    const content = bytesSource(contentOf(name));
    const put = of.run.put({ id, binId: binOf(c), type: 'file', payload: { name }, content, onConflict });
    world.ask({ ...of, kind: 'file', id, what: name }, put);
  },
  /** The server removes blobs that no item names. */
  reap: (world: ClientWorld) => world.server.reap(),
  delete: (world: ClientWorld, { a, b }: Numbers) => {
    const of = runningOf(world, a);
    if (of !== undefined) world.ask({ ...of, kind: 'delete', id: idOf(b), what: '' }, of.run.delete(idOf(b)));
  },
  move: (world: ClientWorld, { a, b, c }: Numbers) => {
    const of = runningOf(world, a);
    const what = pick(BINS, c) ?? '';
    if (of !== undefined) world.ask({ ...of, kind: 'move', id: idOf(b), what }, of.run.move(idOf(b), what));
  },
  withdraw: (world: ClientWorld, { a, b }: Numbers) => {
    const of = deviceOf(world, a);
    attempt(async () => {
      if ((await of?.device?.withdraw(idOf(b))) === true) of?.rejected.add(`delete ${idOf(b)}`);
    });
  },
  deliver: async (world: ClientWorld, { a }: Numbers) => {
    const call = pick(world.calls, a);
    if (call !== undefined) await world.deliver(call);
  },
  finish: async (world: ClientWorld, { a }: Numbers) => {
    const call = pick(world.calls, a);
    if (call !== undefined) await world.finish(call);
  },
  lose: (world: ClientWorld, { a }: Numbers) => {
    const call = pick(world.calls, a);
    if (call !== undefined) world.lose(call);
  },
  refuse: (world: ClientWorld, { a, b }: Numbers) => {
    const call = pick(world.calls, a);
    if (call !== undefined) world.refuse(call, b);
  },
  frames: async (world: ClientWorld, { a, b }: Numbers) => {
    const link = deviceOf(world, a)?.link;
    for (let left = 1 + (b % 4); left > 0; left--) await link?.arrive(world.server);
  },
  flow: (world: ClientWorld, { a, b }: Numbers) => {
    const of = deviceOf(world, a);
    return world.flow(b % 2 === 0 || of === undefined ? world.devices : [of]);
  },
  pass: (world: ClientWorld, { a, b }: Numbers) =>
    world.pass([100, 1_500, 6_000, 20_000, MINUTE, 95_000, 12 * MINUTE][a % 7] ?? 0, b % 2 === 0),
  cut: (world: ClientWorld, { a, b }: Numbers) => {
    const link = deviceOf(world, a)?.link;
    if (link === undefined) return;
    if (b % 3 === 0) link.mute = true;
    else link.end(1006, 'cut');
  },
  offline: (world: ClientWorld, { a }: Numbers) => deviceOf(world, a)?.goOffline(),
  online: (world: ClientWorld, { a, b }: Numbers) => {
    const of = deviceOf(world, a);
    if (of === undefined) return;
    of.offline = false;
    attempt(async () => b % 2 === 0 && of.device?.reconnect());
  },
  kill: (world: ClientWorld, { a, b }: Numbers) => {
    const of = deviceOf(world, a);
    if (b % 2 === 0) of?.kill();
    else if (of?.program !== undefined) of.program.batches = b % 5;
  },
  start: (world: ClientWorld, { a }: Numbers) => deviceOf(world, a)?.start(),
  pull: (world: ClientWorld, { a, b }: Numbers) => {
    attempt(async () => {
      const device = deviceOf(world, a)?.device;
      await (b % 4 === 0 ? device?.resync() : b % 4 === 1 ? device?.check() : device?.pull());
    });
  },
  disconnect: (world: ClientWorld, { a, b }: Numbers) => {
    const device = deviceOf(world, a)?.device;
    attempt(async () => {
      device?.disconnect();
      if (b % 2 === 0) await device?.connect();
    });
  },
  /** One of its live queries shows another part. */
  window: (world: ClientWorld, { a, b, c }: Numbers) =>
    attempt(async () => deviceOf(world, a)?.program?.queries?.move(b, { offset: c % 3, limit: 1 + (c % 4) })),
  rewrap: (world: ClientWorld, { a }: Numbers) => attempt(async () => deviceOf(world, a)?.device?.rewrap()),
  restart: (world: ClientWorld) => world.server.restart(),
  tokens: (world: ClientWorld) => world.server.voidTokens(),
  /** Its clock is set. */
  clock: (world: ClientWorld, { a, b }: Numbers) => {
    const of = deviceOf(world, a);
    if (of !== undefined) of.skew = (SKEWS[b % SKEWS.length] ?? 0) * MINUTE;
  },
  /** Its disk fails for a moment, at once or as items are read later. */
  storage: (world: ClientWorld, { a, b, c }: Numbers) => {
    const program = deviceOf(world, a)?.program;
    const failing = 1 + (b % 3);
    if (program !== undefined)
      Object.assign(program, c % 3 === 0 ? { refusals: failing } : { reads: { left: c % 7, failing } });
  },
  /** A bin is created, or deleted with its items. */
  bin: (world: ClientWorld, { a, b, c }: Numbers) => {
    const of = runningOf(world, a);
    const id = pick(BINS.slice(1), b) ?? '';
    if (of !== undefined) attempt(() => (c % 2 === 0 ? of.run.bins.create(id, { name: id }) : emptied(of, id)));
  },
  join: async (world: ClientWorld) => {
    if (world.devices.length < DEVICES_MAX) await world.join();
  },
  /** A second program with a device's identity. */
  twin: async (world: ClientWorld, { a }: Numbers) => {
    const of = deviceOf(world, a);
    if (of !== undefined && world.devices.length < DEVICES_MAX) await world.twin(of);
  },
  revoke: (world: ClientWorld, { a, b }: Numbers) => {
    // The first device stays: it has the keys of all items.
    const gone = world.devices[1 + (b % 3)];
    if (gone !== undefined && a % 3 === 0) attempt(async () => deviceOf(world, a)?.device?.revoke(gone.id));
  },
  backup: (world: ClientWorld) => world.server.takeBackup(),
  restore: (world: ClientWorld) => world.server.restore(),
};

/** Events that make progress are drawn more often than those that end or break something. */
const OFTEN: Readonly<Record<string, number>> = {
  put: 8,
  file: 2,
  delete: 2,
  move: 3,
  deliver: 4,
  finish: 8,
  frames: 8,
  flow: 4,
  pass: 3,
  start: 2,
  online: 2,
  // Of a browser (browser-script.ts).
  save: 6,
  upload: 6,
  remove: 6,
};
export const NAMES = Object.keys(HAPPENINGS) as (keyof typeof HAPPENINGS)[];

const number = fc.nat({ max: 997 });
export const scriptOf = <N extends string>(names: readonly N[]): fc.Arbitrary<Happening<N>[]> => {
  const what = fc.constantFrom(...names.flatMap((name) => new Array<N>(OFTEN[name] ?? 1).fill(name)));
  const happening = fc.record({ what, a: number, b: number, c: number });
  // Not biased towards short scripts.
  return fc.noBias(fc.array(happening, { minLength: 1, maxLength: 80, size: 'max' }));
};

/** Everything works again, and time passes until nothing is left to do. */
async function settle(world: ClientWorld): Promise<void> {
  for (const device of world.devices) {
    device.offline = false;
    if (device.program !== undefined)
      Object.assign(device.program, { batches: Infinity, refusals: 0, reads: { left: 0, failing: 0 } });
    await device.start();
    if (device.link?.mute === true) device.link.end(1006, 'cut');
    attempt(async () => device.device?.connect());
  }
  for (let rounds = 0; rounds < 4; rounds++) {
    await world.flow();
    await world.pass(70_000, true);
  }
  for (const device of world.devices.filter(({ revoked }) => !revoked)) {
    device.device?.rewrap().catch((error: unknown) => world.findings.push(`a re-wrap failed: ${String(error)}`));
    await world.flow();
    await world.pass(5_000, true);
  }
  // A list that was read while a bin was deleted may lack one whose items were not yet gone here.
  for (const { device } of world.devices) attempt(async () => device?.bins.refresh('changed'));
  await world.flow();
}

/** A file may have to be uploaded again: the server that was restored does not have it. */
const republished = (device: Device, id: string): Promise<unknown> =>
  device.republish(id).catch((error: unknown) => {
    if (errorCode(error) !== 'blob_not_found') throw asError(error);
    return again(device, id);
  });

/** Writes again what the device has of an item. */
async function again(device: Device, id: string): Promise<void> {
  const kept = (await device.kept(id)) ?? (await device.get(id));
  if (kept?.payload == null) return;
  const { type, payload } = kept;
  const content = type === 'file' ? { content: bytesSource(contentOf(titleOf(payload))) } : {};
  await device.put({ ...kept, payload, ...content });
}

/**
 * After a restore the user decides: what the new history lacks is written again, and so is what was newer than the state
 * that the server shows now.
 */
async function recover(world: ClientWorld): Promise<void> {
  const creator = world.devices.find(({ revoked }) => !revoked)?.device;
  for (const id of BINS.filter((bin) => !world.server.openBins.includes(bin))) {
    creator?.bins.create(id, { name: id }).catch((error: unknown) => world.findings.push(`no bin: ${String(error)}`));
    await world.flow();
  }
  for (const { device } of world.devices.filter(({ revoked }) => !revoked)) {
    if (device === undefined) continue;
    const work = async (): Promise<void> => {
      for (const id of await device.orphaned()) await republished(device, id);
      for (const { id } of await device.hidden()) await again(device, id);
    };
    work().catch((error: unknown) => world.findings.push(`not recovered: ${String(error)}`));
    await world.flow();
    await world.pass(5_000, true);
  }
}

/** What a call may be refused with: no honest server refuses what an honest client sends for another reason. */
const REFUSALS = [
  'bin_not_found',
  // Of a file on which another change is based.
  'blob_not_found',
  // The tokens have become invalid twice within one request.
  'unauthorized',
  'conflict',
  'queued',
  'unknown_item',
  'deleted_item',
  'cancelled',
  'revoked',
  'device_revoked',
  'reset',
  'io',
  'storage_cap_exceeded',
];

/** An upload is not queued: its caller learns what fails. */
const UPLOAD_FAILURES = [
  'network',
  'timeout',
  'aborted',
  'rate_limited',
  'unavailable',
  'blob_not_found',
  'superseded',
];

/** A device's change was refused to its caller, who knows. */
const refusedTo = (world: ClientWorld, of: SimulatedDevice, name: string): boolean =>
  world.asked.some(({ device, kind, id, what, outcome }) => {
    if (device !== of || !(outcome instanceof Error) || outcome.name === 'QueuedError') return false;
    if (kind === 'delete') return name === `delete ${id}`;
    return kind === 'move' ? name.endsWith(` in ${what}`) : name.startsWith(`${what} in `);
  });

/**
 * The version that a call resolved with is what it asked for; or of a delete above it, where the reply was lost and the
 * retry came after the delete (RETRY-01).
 */
function fits(world: ClientWorld, { kind, what }: Asked, made: Item): boolean {
  if (made.deletedAt !== null) return kind !== 'move';
  if (kind === 'delete') return false;
  return kind === 'move' ? made.binId === what : world.nameOf(made).startsWith(`${what} in `);
}

/** What the server has, and has had, of each item. */
function history(world: ClientWorld) {
  const { database, epoch, former } = world.server;
  return [...former, { epoch, history: database.history }];
}

/** Acknowledged contents of which the server has an older state, and no device said so. */
function setBack(world: ClientWorld): readonly string[] {
  const rows = history(world).flatMap(({ history }) => history.map(({ row: { item } }) => item));
  return world.asked.flatMap(({ kind, id, what, outcome, device }) => {
    if ((kind !== 'put' && kind !== 'file') || outcome === undefined || outcome instanceof Error || device.revoked)
      return [];
    const of = rows.filter((item) => item.id === id);
    if (of.some(({ deletedAt }) => deletedAt !== null)) return [];
    if ([...device.rejected].some((name) => name.startsWith(`${what} in `))) return [];
    const made = of.find((item) => item.deletedAt === null && world.nameOf(item).startsWith(`${what} in `));
    const now = world.server.database.items.get(id)?.row.item;
    return (now?.ts ?? 0) >= (made?.ts ?? Infinity) ? [] : [`${id} was set back behind ${what}`];
  });
}

/** What is wrong with the answer to a call. */
function unkept(world: ClientWorld, asked: Asked): readonly string[] {
  const { outcome, device, kind, id, what } = asked;
  const is = `${kind} ${id} ${what} of ${device.id.slice(-2)}`;
  if (outcome === undefined) return [`${is} never settled`];
  if (outcome instanceof Error) {
    const right = [
      ...REFUSALS,
      ...(world.server.former.length > 0 ? ['item_not_found'] : []),
      ...(kind === 'file' ? UPLOAD_FAILURES : []),
    ];
    return right.includes(errorCode(outcome)) ? [] : [`${is}: ${outcome.stack}`];
  }
  // A reply may come after a restore.
  const made = history(world).map(({ history }) => history[outcome.version - 1]?.row.item);
  return made.some((item) => item?.id === id && fits(world, asked, item)) ? [] : [`${is} is not ${outcome.version}`];
}

/** The content of a file. */
async function read(world: ClientWorld, device: Device, id: string): Promise<string> {
  const content = (async () => {
    const chunks: Uint8Array[] = [];
    for await (const chunk of device.blob(id)) chunks.push(chunk);
    return Buffer.concat(chunks).toString();
  })();
  content.catch(() => undefined);
  await world.flow();
  return content;
}

/** What is wrong in a world that has settled. */
async function faultsOf(world: ClientWorld): Promise<readonly string[]> {
  const faults = [...world.findings, ...world.server.faults.map(String)];
  const truth = [...world.server.database.items.values()]
    .map(({ row }) => row.item)
    .flatMap((item) => (item.deletedAt === null ? `${item.id} ${item.version} ${world.nameOf(item)}` : []))
    .sort();
  const happened = new Set(
    history(world).flatMap(({ history }) =>
      history.map(({ row: { item } }) => (item.deletedAt === null ? world.nameOf(item) : `delete ${item.id}`)),
    ),
  );
  for (const of of world.devices) {
    const { device, program } = of;
    if (of.revoked || device === undefined || program === undefined) continue;
    const say = (what: string): unknown => faults.push(`${of.id.slice(-2)}: ${what}`);
    const seen = (views: Awaited<ReturnType<typeof device.list>>): string[] =>
      views.map(({ id, version, payload, binId }) => `${id} ${version} ${titleOf(payload)} in ${binId}`).sort();
    const shown = seen(await device.list());
    if (shown.join() !== truth.join()) say(`shows ${shown.join()}, the server has ${truth.join()}`);
    if (seen(program.shown).join() !== shown.join()) say(`its live query shows ${seen(program.shown).join()}`);
    for (const { id, type, payload } of await device.list())
      if (type === 'file')
        await read(world, device, id).then(
          (content) =>
            content === contentOf(titleOf(payload)).toString() || say(`reads ${content} for ${titleOf(payload)}`),
          (error: unknown) => say(`cannot read ${titleOf(payload)}: ${String(error)}`),
        );
    for (const fault of (await program.queries?.faults()) ?? []) say(fault);
    const waiting = await of.store.pending();
    if (waiting.length > 0) say(`${waiting.length} changes wait`);
    if (program.unlisted.length > 0) say(`has items in ${program.unlisted.join()}, which no list has`);
    const bins = [...world.server.openBins].sort().join();
    if ([...program.bins].sort().join() !== bins) say(`shows the bins ${program.bins.join()}, the server has ${bins}`);
    const hidden = await device.hidden();
    if (hidden.length > 0) say(`hides ${JSON.stringify(hidden)}`);
    const { since, epoch } = await of.store.cursor();
    if (since !== world.server.database.head || epoch !== world.server.epoch) say(`is at ${since} of ${epoch}`);
    for (const name of of.kept)
      if (!happened.has(name) && !of.reported(name) && !refusedTo(world, of, name)) say(`lost ${name}`);
  }
  faults.push(...setBack(world));
  for (const asked of world.asked) if (asked.program.alive) faults.push(...unkept(world, asked));
  for (const device of world.devices) {
    const { program, id } = device;
    device.close();
    await world.idle();
    if (program !== undefined && program.timers.size > 0) faults.push(`${id} left ${program.timers.size} timers`);
  }
  return faults;
}

const unhandled: unknown[] = [];
process.on('unhandledRejection', (error) => unhandled.push(error));

/**
 * Plays a script in a world with its first devices. Throws if something is wrong in the end. `last`: what happens when
 * everything has settled.
 */
export async function played<N extends string>(
  world: ClientWorld,
  happenings: Happenings<N>,
  script: readonly Happening<N>[],
  last: () => Promise<void> = () => Promise.resolve(),
): Promise<void> {
  await world.flow();
  for (let n = 0; n < 2; n++) HAPPENINGS.put(world, { a: n, b: n, c: n });
  await world.flow();
  for (const one of script) {
    await happenings[one.what](world, one);
    await world.idle();
  }
  await settle(world);
  if (world.server.former.length > 0) await recover(world);
  await last();
  const faults = [...(await faultsOf(world)), ...unhandled.splice(0).map(String)];
  if (faults.length > 0) throw new Error(faults.join('\n'));
}

/** Plays a script of two devices, and those that join. Throws if something is wrong in the end. */
export async function play(seed: number, script: readonly Happening[]): Promise<ClientWorld> {
  const world = new ClientWorld(seed);
  for (let n = 0; n < 2; n++) await world.join();
  await played(world, HAPPENINGS, script);
  return world;
}
