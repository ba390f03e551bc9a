/**
 * A world around one tenant's `step`: it carries effects out against an in-memory log, but when the database reads and
 * when the answer comes are two moments that the test chooses. So every interleaving can be written down or drawn.
 */
import type { ServiceError } from '../../src/protocol/errors.js';
import type { Shape } from '../../src/protocol/shape.js';
import type { ItemWrite } from '../../src/protocol/item.js';
import { HIGH_WATER_BYTES } from '../../src/server/tenant/actor.js';
import type { Change } from '../../src/server/tenant/change.js';
import type { Effect, Message } from '../../src/server/tenant/messages.js';
import type { BinChange, PairRequest, TenantUpdate } from '../../src/server/tenant/ports.js';
import { FrameRing, NOWHERE } from '../../src/server/tenant/deliver.js';
import type { Session } from '../../src/server/tenant/session.js';
import { TenantState } from '../../src/server/tenant/state.js';
import { admit, step } from '../../src/server/tenant/step.js';
import { arena, BIN, deleteChange, deviceId, moveChange, OTHER_BIN, TS, writeChange } from './changes.js';
import { rowOf } from './rows.js';
import { MemoryLog, type MemoryTenant } from './memory-log.js';
import { Witness, type HelloFrame } from './witness.js';

export const TENANT = 'tenant';
export const EPOCH = 'epoch';
const RING_BYTES = 8 * 1024 * 1024;
/** `hello` may come once in 5 s. */
const HELLO_MS = 5_000;
/** More rounds than this to come to rest means that the actor runs in circles. */
const ROUNDS_MAX = 20_000;

/** Something asked of the database. First it is read, then the answer comes. */
interface Operation {
  readonly name: 'reload' | 'gap' | 'head' | 'page' | 'commit' | 'closed';
  readonly read: () => Message;
  readonly failed: (away: boolean) => Message;
  answer?: Message;
}

/** A change as a device asks for it. */
type Ask =
  | { readonly kind: 'write'; readonly write: ItemWrite; readonly deviceId: string }
  | { readonly kind: 'delete'; readonly id: string; readonly sig: Uint8Array | null; readonly deviceId: string }
  | {
      readonly kind: 'move';
      readonly id: string;
      readonly binId: string;
      readonly version: number;
      readonly sig: Uint8Array;
      readonly deviceId: string;
    };

function changeOf(ask: Ask): Change {
  const context = { tenantId: TENANT, deviceId: ask.deviceId };
  if (ask.kind === 'write') return writeChange(ask.write, context);
  return ask.kind === 'delete' ? deleteChange(ask.id, ask.sig, context) : moveChange(ask, context);
}

/** A change that was asked for, and how it was answered. */
export interface Asked {
  readonly ask: Ask;
  replies: number;
  version?: number;
  error?: Error;
}

/** The code of a refusal. */
export const errorOf = ({ error }: Asked): string => (error as ServiceError | undefined)?.error ?? String(error);

/** A change's context: asked for by the device of this number. */
export const by = (device: number) => ({ tenantId: TENANT, deviceId: deviceId(device) });

export interface OpenSocket {
  readonly session: Session;
  readonly witness: Witness;
}

interface WorldDevice {
  readonly id: string;
  /** What its tokens say, which it keeps after a revocation. */
  readonly issued: number;
  tokenEpoch: number;
  revoked: boolean;
}

interface WorldOptions {
  readonly devices?: number;
  /** Rows of a replay page and of a gap page; small ones make many pages out of little. */
  readonly pageRows?: number;
  readonly gapRows?: number;
  readonly cap?: number;
  readonly ringBytes?: number;
  /** Changes that are in the log before the actor is loaded. */
  readonly before?: (world: World) => void;
}

export class World {
  now = TS;
  readonly log: MemoryLog;
  readonly database: MemoryTenant;
  /** Other tenants take it over when it is full. */
  readonly ring: FrameRing;
  readonly state: TenantState;
  readonly sockets: OpenSocket[] = [];
  readonly asked: Asked[] = [];
  readonly underWay: Operation[] = [];
  /** What other instances were told, and what they told: may be handed to the actor late, twice, never. */
  readonly hints: { readonly head: number; readonly generation: number }[] = [];
  readonly purged: string[] = [];
  readonly devices: WorldDevice[] = [];
  bins: BinChange[] = [BIN, OTHER_BIN].map((id) => openBin(id));
  standing = 'active';
  pairs: PairRequest[] = [];
  private queue: Change[] = [];
  private readonly mailbox: Message[] = [];
  private running = false;

  constructor(private readonly options: WorldOptions = {}) {
    this.log = new MemoryLog({ cap: options.cap ?? 0, now: () => this.now });
    this.database = this.log.addTenant(TENANT);
    this.ring = new FrameRing(options.ringBytes ?? RING_BYTES);
    for (let n = 1; n <= (options.devices ?? 2); n++) this.devices.push(newDevice(n, 1));
    options.before?.(this);
    this.state = new TenantState(this.snapshot(), EPOCH, this.ring);
  }

  /** Other tenants' changes take the place of whatever memory holds, or of nothing yet. */
  crowdOut(): void {
    const frame = Buffer.alloc(200_000);
    const row = { id: '', version: 0, changedBy: null };
    const first = { head: 0, newest: NOWHERE };
    for (let bytes = 0; bytes <= 2 * RING_BYTES; bytes += frame.length) {
      this.ring.beginStep();
      // Of many tenants, and of one that has used up its share.
      this.ring.add(frame, row, { ...first, since: NOWHERE, bytes: 0 });
      this.ring.add(frame, row, { ...first, since: Infinity, bytes: Infinity });
    }
  }

  get head(): number {
    return this.database.head;
  }

  /** The tenant as it is in the database now. */
  snapshot(): TenantUpdate {
    return {
      tenantId: TENANT,
      state: this.standing,
      generation: this.database.generation,
      summary: this.log.summary(TENANT),
      devices: this.devices.map(({ id, tokenEpoch, revoked }) => ({
        id,
        tokenEpoch,
        revoked,
        keysPurged: !revoked,
        view: { id, name: id, glyph: 'phone', pubkey: new Uint8Array(32), pairedAt: 1, cert: null },
      })),
      bins: [...this.bins],
      pairRequests: [...this.pairs],
    };
  }

  /** The mailbox loop, as the actor has it. */
  post(message: Message): void {
    this.mailbox.push(message);
    if (this.running) return;
    this.running = true;
    for (let next = this.mailbox.shift(); next !== undefined; next = this.mailbox.shift()) {
      for (const effect of step(this.state, next, this.now)) this.carryOut(effect);
    }
    this.running = false;
  }

  private carryOut(effect: Effect): void {
    switch (effect.kind) {
      case 'stored':
        arena.unpin(effect.change.segment);
        return effect.change.reply.stored(effect.change);
      case 'refused':
        arena.unpin(effect.change.segment);
        return effect.change.reply.refused(effect.error);
      case 'commit':
        return void this.queue.push(effect.change);
      case 'send':
        return this.send(effect);
      case 'push':
        for (const session of effect.sessions) this.send({ kind: 'send', session, frames: effect.frames });
        return;
      case 'close':
        effect.session.port.close(effect.code, effect.reason);
        return this.begin('closed', () => ({ kind: 'closed', session: effect.session }));
      case 'publish': {
        const { summary, generation } = effect.position;
        return void this.hints.push({ head: summary.version, generation });
      }
      case 'purge-keys':
        return void this.purged.push(effect.deviceId);
      default:
        return this.ask(effect);
    }
  }

  private send({ session, frames, phase }: Extract<Effect, { kind: 'send' }>): void {
    const congested = session.port.send(frames) > HIGH_WATER_BYTES;
    if (phase !== undefined) this.post({ kind: 'sent', session, phase, congested });
    else if (congested) this.post({ kind: 'congested', session });
  }

  private ask(effect: Extract<Effect, { kind: 'reload' | 'read-gap' | 'read-head' | 'read-page' }>): void {
    const page = (since: number, limit: number) => this.log.read({ tenantId: TENANT, since, limit });
    if (effect.kind === 'reload') {
      const failed = (): Message => ({ kind: 'reload-failed', error: new Error('no database') });
      return this.begin('reload', () => ({ kind: 'reloaded', update: this.snapshot() }), failed);
    }
    if (effect.kind === 'read-gap') {
      const { since } = effect;
      const read = (): Message => ({ kind: 'gap', page: page(since, this.options.gapRows ?? 4) });
      return this.begin('gap', read, () => ({ kind: 'gap-failed' }));
    }
    const { session, phase } = effect;
    const failed = (away: boolean): Message => ({ kind: 'replay-failed', session, phase, away });
    if (effect.kind === 'read-head') {
      return this.begin('head', () => ({ kind: 'head', session, phase, summary: this.log.summary(TENANT) }), failed);
    }
    const { cursor } = phase;
    const read = (): Message => ({ kind: 'page', session, phase, page: page(cursor, this.options.pageRows ?? 3) });
    return this.begin('page', read, failed);
  }

  private begin(name: Operation['name'], read: () => Message, failed: Operation['failed'] = read): void {
    this.underWay.push({ name, read, failed });
  }

  /** The next half of an operation: it is read, or its answer comes. */
  advance(operation: Operation): void {
    if (operation.answer === undefined) operation.answer = operation.read();
    else this.finish(operation, operation.answer);
  }

  /** It fails: before it was read, or with the answer lost on the way; because the database is away, or for a fault. */
  fail(operation: Operation, away = false): void {
    this.finish(operation, operation.failed(away));
  }

  private finish(operation: Operation, message: Message): void {
    this.underWay.splice(this.underWay.indexOf(operation), 1);
    this.post(message);
  }

  /** The oldest operation of this name that is under way. */
  find(name: Operation['name']): Operation {
    const operation = this.underWay.find((candidate) => candidate.name === name);
    if (operation === undefined) throw new Error(`nothing called ${name} is under way`);
    return operation;
  }

  /** Reads and answers the oldest operation of this name. */
  serve(name: Operation['name']): void {
    const operation = this.find(name);
    if (operation.answer === undefined) this.advance(operation);
    this.advance(operation);
  }

  /** Puts waiting changes, at most one of an item, into one transaction. One is under way at a time, as in a lane. */
  startBatch(size: number): void {
    if (this.queue.length === 0 || this.underWay.some(({ name }) => name === 'commit')) return;
    const changes: Change[] = [];
    for (const change of this.queue.slice(0, size)) {
      if (changes.some(({ id }) => id === change.id)) break;
      changes.push(change);
    }
    this.queue = this.queue.slice(changes.length);
    const failed = (): Message => ({ kind: 'failed', changes, error: new Error('outcome unknown') });
    this.begin('commit', () => ({ kind: 'committed', ...this.log.apply(changes) }), failed);
  }

  /** A device asks for a change. */
  request(ask: Ask): Asked {
    const asked: Asked = { ask, replies: 0 };
    this.asked.push(asked);
    const change = changeOf(ask);
    change.reply = {
      stored: ({ version }): void => {
        asked.replies++;
        asked.version = version;
      },
      refused: (error): void => {
        asked.replies++;
        asked.error = error;
      },
    };
    this.post({ kind: 'change', change });
    return asked;
  }

  write(write: ItemWrite, by = 1): Asked {
    return this.request({ kind: 'write', write, deviceId: deviceId(by) });
  }

  /** Everything waiting is committed, in one transaction where ids allow, and answered. */
  commitAll(): void {
    while (this.queue.length > 0) {
      this.startBatch(Infinity);
      this.serve('commit');
    }
  }

  /** Another instance commits changes in one transaction, as far as they are right. Its hint is not delivered yet. */
  remote(...changes: readonly Change[]): void {
    const { generation } = this.database;
    this.log.apply(changes.map((change) => Object.assign(change, { generation })));
    this.hints.push({ head: this.head, generation: this.database.generation });
  }

  /** What it made of the tenant comes from another instance: late, twice, or never. */
  published(from: number, to: number, summed = true): void {
    const entries = this.database.history.slice(from - 1, to);
    const last = entries.at(-1);
    if (last === undefined) return;
    const rows = entries.map(({ row }) => rowOf(row.item, row.changedBy));
    const { generation } = this.database;
    this.post({ kind: 'published', rows, generation, summary: summed ? last.summary : null });
  }

  open(device: number, shape: Shape = 'a'): OpenSocket | string {
    const known = this.devices[device - 1];
    const truth = { history: this.database.history, epoch: EPOCH };
    const witness = new Witness(deviceId(device), shape, known?.issued ?? 0, truth);
    const session = admit(this.state, witness);
    if (typeof session === 'string') return session;
    const socket = { session, witness };
    this.sockets.push(socket);
    return socket;
  }

  /** Opens a socket that is sure to be let in. */
  enter(device: number, shape: Shape = 'a'): OpenSocket {
    const socket = this.open(device, shape);
    if (typeof socket === 'string') throw new Error(socket);
    return socket;
  }

  hello({ session, witness }: OpenSocket, given: Partial<HelloFrame> = {}): void {
    this.now += HELLO_MS;
    const frame: HelloFrame = { since: 0, epoch: null, acks: false, ...given };
    witness.expectHello(frame);
    this.post({ kind: 'hello', session, ...frame });
  }

  /** Opens a socket, says hello and serves what it asks until it is caught up. */
  connect(device: number, hello: Partial<HelloFrame> & { readonly shape?: Shape } = {}): OpenSocket {
    const socket = this.enter(device, hello.shape);
    this.hello(socket, hello);
    this.drainOperations();
    return socket;
  }

  drain({ session, witness }: OpenSocket): void {
    const { unsent } = witness;
    witness.stalled = false;
    witness.unsent = 0;
    if (unsent > 0) this.post({ kind: 'drained', session });
  }

  /** The client is gone. */
  close(socket: OpenSocket): void {
    this.sockets.splice(this.sockets.indexOf(socket), 1);
    this.post({ kind: 'closed', session: socket.session });
  }

  /** Devices, bins or pairings change in the database; the actor hears of it by the hint, or later. */
  changeTenant(change: (generation: number) => void): void {
    change(++this.database.generation);
    this.hints.push({ head: this.head, generation: this.database.generation });
  }

  join(): void {
    this.changeTenant((generation) => this.devices.push(newDevice(this.devices.length + 1, generation)));
  }

  revoke(device: number): void {
    const known = this.devices[device - 1];
    if (known === undefined || known.revoked) return;
    this.changeTenant((generation) => Object.assign(known, { revoked: true, tokenEpoch: generation }));
  }

  /** The comparison of heads. */
  compare(): void {
    this.post({ kind: 'head-hint', head: this.head, generation: this.database.generation });
  }

  drainOperations(): void {
    for (let rounds = 0; this.underWay.length > 0; rounds++) {
      if (rounds > ROUNDS_MAX) throw new Error(`no rest: ${this.underWay.map(({ name }) => name).join()}`);
      const next = this.underWay[0];
      if (next !== undefined) this.advance(next);
    }
  }

  /** Lets everything come to rest: answers come, buffers empty, heads are compared. Then nothing may be owed. */
  settle(): void {
    for (let round = 0; round < 3; round++) {
      for (const socket of this.sockets) this.drain(socket);
      this.drainOperations();
      this.commitAll();
      this.drainOperations();
      this.compare();
      this.drainOperations();
    }
    for (const { witness } of this.sockets) witness.checkSettled();
    const wrong = this.asked.filter(({ replies }) => replies !== 1);
    if (wrong.length > 0)
      throw new Error(`${wrong.length} asks without exactly one reply: ${JSON.stringify(wrong[0])}`);
  }
}

const newDevice = (n: number, generation: number): WorldDevice => ({
  id: deviceId(n),
  issued: generation,
  tokenEpoch: generation,
  revoked: false,
});

export const openBin = (id: string, changedAtGeneration = 1): BinChange => ({
  id,
  deletedAt: null,
  view: { id, slug: id, meta: null, createdAt: 1, updatedAt: 1 },
  changedAtGeneration,
  open: true,
});
