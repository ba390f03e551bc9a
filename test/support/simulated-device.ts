/**
 * Devices of one user, whose every request and frame waits until a test moves it: on, astray, or back as a refusal. The
 * library, its crypto and the server (`HonestServer`) are the real ones; clock, random numbers and network are the
 * test's own, so the same script always gives the same run.
 */
import { certifyDevice } from '../../src/crypto/device.js';
import { openItem } from '../../src/crypto/item.js';
import { CryptoRefusal, orRefusal } from '../../src/crypto/refusal.js';
import { nodeSodium } from '../../src/crypto/sodium-node.js';
import type { KeyPair, Sodium } from '../../src/crypto/sodium.js';
import { delay, type Clock, type Timer } from '../../src/protocol/clock.js';
import { asError, errorCode } from '../../src/protocol/error-code.js';
import { rateLimited, ServiceError, unavailable } from '../../src/protocol/errors.js';
import type { JsonObject } from '../../src/crypto/payload.js';
import type { LiveItem } from '../../src/protocol/item.js';
import { Device, type DeviceOptions } from '../../src/sdk/device.js';
import { ApiError, ProtocolError } from '../../src/sdk/errors.js';
import type { Identity, Token } from '../../src/sdk/identity.js';
import type { OpenSocket, SocketEvents } from '../../src/sdk/platform.js';
import type { DeviceEntry } from '../../src/sdk/replies.js';
import { MemoryStore, type Batch, type Pending } from '../../src/sdk/store/store.js';
import type { Actor } from '../../src/server/tenant/actor.js';
import type { Session } from '../../src/server/tenant/session.js';
import { deviceId } from './changes.js';
import { TestClock } from './clock.js';
import { HonestServer, refusalOf, type Reply, type Request } from './honest-server.js';
import { RefusedChanges } from './refused-changes.js';
import { OpenQueries } from './open-queries.js';
import { never, Program, SlowStore } from './simulated-program.js';
import { TENANT } from './world.js';

/** Turns of the event loop in which nothing happens, after which nothing will before the test does something. */
const QUIET_TURNS = 6;
/** More steps than this to come to rest mean that client and server run in circles. */
const STEPS_MAX = 20_000;

/** What a device may say of a server that was restored, before it knows: a listing or a replay does not go on. */
const AFTER_RESTORE = ['epoch_changed'];

/** A pseudo-random integer below `below`; the same sequence for the same seed. */
export function numbers(seed: number): (below: number) => number {
  let state = seed >>> 0;
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

/** The text of an item, the name of a file. */
export const titleOf = (payload: JsonObject | null): string => String(payload?.['text'] ?? payload?.['name']);

/** A request on its way; `reply`: it was carried out, and its reply is on its way back. */
export class Call {
  reply: Reply | undefined;
  /** The client has given up on it; the server may get it nevertheless. */
  abandoned = false;

  constructor(
    readonly device: SimulatedDevice,
    readonly request: Request,
    private readonly answer: { resolve(response: Response): void; reject(error: Error): void },
  ) {}

  /** The reply reaches the client. */
  arrive(reply: Reply, now: number): void {
    const { status, body, retryAfter } = reply;
    this.device.refusals.answered(this.request, reply);
    const headers = new Headers({ date: new Date(now).toUTCString() });
    if (retryAfter !== undefined) headers.set('retry-after', String(retryAfter));
    const content = body instanceof Uint8Array ? Uint8Array.from(body) : JSON.stringify(body);
    this.answer.resolve(new Response(content, { status, headers }));
  }

  lose(): void {
    this.answer.reject(new TypeError('the connection was cut'));
  }
}

/** A connection, and what is on its way to the client. */
export class Link {
  readonly coming: ('opened' | { readonly text: string } | { readonly code: number; readonly reason: string })[] = [];
  /** Nothing arrives any more, and neither side knows. */
  mute = false;
  ended = false;
  private server: { readonly actor: Actor; readonly session: Session } | undefined;

  constructor(
    readonly device: SimulatedDevice,
    private readonly ticket: string,
    private readonly events: SocketEvents,
  ) {}

  /** The next thing that comes reaches the client. */
  async arrive(server: HonestServer): Promise<void> {
    const next = this.coming.shift();
    if (next === undefined || this.mute) return;
    if (next === 'opened') return this.open(server);
    if ('text' in next) return this.events.message(next.text);
    this.end(next.code, next.reason);
  }

  private async open(server: HonestServer): Promise<void> {
    this.server = await server.upgrade(this.ticket, {
      send: (frames) => {
        for (const frame of frames)
          this.coming.push({ text: typeof frame === 'string' ? frame : Buffer.from(frame).toString('latin1') });
        return 0;
      },
      close: (code, reason) => {
        this.coming.push({ code, reason });
        this.leave();
      },
    });
    if (this.server === undefined) this.end(1006, 'the upgrade was refused');
    else if (!this.ended) this.events.opened();
  }

  /** What the client sends is not delayed: an order in which it could matter is made by what comes back. */
  send(text: string): void {
    if (this.mute || this.server === undefined) return;
    const { actor, session } = this.server;
    const frame = JSON.parse(text) as { type: string; since: number; epoch: string | null; acks: boolean };
    if (frame.type === 'hello') actor.hello(session, { since: frame.since, epoch: frame.epoch, acks: frame.acks });
    if (frame.type === 'ping') this.coming.push({ text: '{"type":"pong"}' });
  }

  /** The client learns of the end. */
  end(code: number, reason: string): void {
    if (this.ended) return;
    this.ended = true;
    this.coming.length = 0;
    this.leave();
    this.events.closed(code, reason);
  }

  /** The server learns of the end. */
  leave(): void {
    if (this.server !== undefined) this.server.actor.closed(this.server.session);
    this.server = undefined;
  }
}

/** A change that a program asked for. */
export interface Asked {
  readonly device: SimulatedDevice;
  readonly program: Program;
  readonly kind: 'put' | 'file' | 'delete' | 'move';
  readonly id: string;
  /** The text of a put, the name and content of a file, the bin of a move. */
  readonly what: string;
  outcome: { readonly version: number } | Error | undefined;
}

/** A device of the user, with what it keeps over its runs. */
export class SimulatedDevice {
  readonly id: string;
  readonly keys: KeyPair;
  readonly cert: Uint8Array;
  readonly store = new MemoryStore();
  program: Program | undefined;
  token: Token = { text: '', expiresAt: null };
  offline = false;
  revoked = false;
  /** Its clock minus the true time, ms. */
  skew = 0;
  link: Link | undefined;
  /** Texts of the changes that are or were in its outbox, and of those that it reported as refused. */
  readonly kept = new Set<string>();
  readonly rejected = new Set<string>();
  readonly refusals = new RefusedChanges();
  /** Items that it deleted with their bin. */
  private readonly emptied = new Set<string>();
  private listed: readonly DeviceEntry[] | undefined;

  /** `twin`: whose identity it has. */
  constructor(
    protected readonly world: ClientWorld,
    n: number,
    twin?: SimulatedDevice,
  ) {
    this.id = twin?.id ?? deviceId(n);
    this.keys = twin?.keys ?? world.sodium.boxKeyPair();
    this.cert = certifyDevice(world.sodium, world.masterKey, { id: this.id, publicKey: this.keys.publicKey });
  }

  get device(): Device | undefined {
    return this.program?.device;
  }

  /** Starts its program, with what an earlier one left in the store. */
  async start(): Promise<void> {
    if (this.program !== undefined) return;
    const program = new Program();
    this.program = program;
    const { world, id } = this;
    const identity: Identity = {
      ...{ serverUrl: 'http://server', tenantId: TENANT, deviceId: id, name: id, glyph: 'phone' },
      ...{ keys: this.keys, masterKey: world.masterKey, token: this.token },
    };
    const device = await this.opened(program, {
      identity,
      platform: {
        sodium: world.sodium,
        clock: this.clockOf(program),
        random: () => world.draw(1_000) / 1_000,
        fetch: (url, init) => this.fetch(program, url, init),
        sockets: { open: (url, events) => this.open(program, url, events) },
      },
      store: new SlowStore(this.store, program, {
        draw: world.draw,
        stored: (batch) => this.stored(program, batch),
        killed: () => this.kill(),
      }),
      devices: this.listed,
      onIdentity: ({ token }) => (this.token = token),
      onProblem: (error) => world.problem(this, error),
    });
    program.device = device;
    this.listen(device, program);
    await device.query({}, ({ items }) => (program.shown = items));
    program.queries = await OpenQueries.of(device);
    device.connect().catch(() => undefined);
  }

  /** Opens the library. */
  protected opened(_: Program, options: DeviceOptions & { readonly store: MemoryStore }): Promise<Device> {
    return Device.open(options);
  }

  /** Ends its program in order. */
  close(): void {
    this.device?.close();
  }

  /** A change that the server does not have: the user has been told. */
  reported(name: string): boolean {
    return this.rejected.has(name);
  }

  private listen(device: Device, program: Program): void {
    const { world } = this;
    device.on('devices', ({ devices }) => (this.listed = devices));
    // Some programs take a while to keep what was refused: they are told again where they end before that.
    device.on('rejected', ({ id, row, error }) => {
      const change = this.refusals.withState(id, row);
      if (change === undefined) world.accuse(this, 'rejected', `${id}, which it did not store`);
      else this.expectRefused(program, change, error);
      const name = row === null ? `delete ${id}` : world.nameOf(row);
      if (name.length % 2 === 0) return void this.rejected.add(name);
      return this.later(program).then(() => void this.rejected.add(name));
    });
    device.on('revoked', () => (this.revoked = true));
    device.on('quarantined', (event) => {
      world.accuse(this, 'quarantined', event, event.reason === 'rolled_back');
    });
    device.on('untagged_delete', (event) => world.accuse(this, 'untagged_delete', event));
    device.on('missing', (event) => world.accuse(this, 'missing', event));
    device.on('repaired', (event) => world.accuse(this, 'repaired', event));
    device.on('orphaned', (event) => world.accuse(this, 'orphaned', event, true));
    device.on('uncertified', (event) => world.accuse(this, 'uncertified', event));
    device.on('halted', (event) => world.accuse(this, 'halted', event));
    device.on('caught_up', (event) => event.complete === false && world.accuse(this, 'incomplete', event));
    device.on('bins', ({ bins, unlisted }) => {
      program.bins = bins.map(({ id }) => id);
      program.unlisted = unlisted;
    });
  }

  /** How long some programs take to keep what was refused. */
  later(program: Program): Promise<void> {
    return delay(this.clockOf(program), 20_000);
  }

  private clockOf(program: Program): Clock {
    const { clock } = this.world;
    return {
      now: () => clock.now() + this.skew,
      setTimer: (ms, fn) => {
        if (!program.alive) return { cancel: () => undefined };
        const timer = clock.setTimer(ms, () => {
          program.timers.delete(own);
          fn();
        });
        const own: Timer = {
          cancel: () => {
            timer.cancel();
            program.timers.delete(own);
          },
        };
        program.timers.add(own);
        return own;
      },
    };
  }

  private fetch(program: Program, url: string, init: RequestInit): Promise<Response> {
    const { world } = this;
    const { method = 'GET', body, signal } = init;
    const token = (new Headers(init.headers).get('authorization') ?? '').replace('Bearer ', '');
    world.requests++;
    if (!program.alive) return never();
    if (this.offline) return Promise.reject(new TypeError('offline'));
    const { pathname, search } = new URL(url);
    const path = `${pathname.replace(/^\/api/, '')}${search}`;
    const sent = typeof body === 'string' ? (JSON.parse(body) as Record<string, unknown>) : {};
    let abandon = (): void => undefined;
    const answered = new Promise<Response>((resolve, reject) => {
      const bytes = body instanceof Uint8Array ? Uint8Array.from(body) : undefined;
      const call = new Call(this, { token, method, path, body: sent, bytes }, { resolve, reject });
      world.calls.push(call);
      abandon = () => {
        call.abandoned = true;
        reject(new TypeError('aborted'));
      };
    });
    signal?.addEventListener('abort', abandon);
    // A combined signal with a listener is never collected, and this world with it.
    return answered.finally(() => signal?.removeEventListener('abort', abandon));
  }

  private open(program: Program, url: string, events: SocketEvents): OpenSocket {
    const link = new Link(this, new URL(url).searchParams.get('ticket') ?? '', {
      opened: () => program.alive && events.opened(),
      message: (text) => program.alive && events.message(text),
      closed: (code, reason) => program.alive && events.closed(code, reason),
    });
    this.link = link;
    if (this.offline) setImmediate(() => link.end(1006, 'offline'));
    else link.coming.push('opened');
    return { send: (text) => link.send(text), close: (code, reason) => link.end(code, reason) };
  }

  /** The server has refused this change, or one below it; or another history began, in which it means nothing. */
  private expectRefused(program: Program, change: Pending, error: Error): void {
    const { server } = this.world;
    // It may have been killed since the decision came, by a batch: what the next one has heard is another matter.
    if (!program.alive) return;
    if (errorCode(error) === 'reset' ? server.former.length > 0 : this.refusals.explains(change)) return;
    const name = change.kind === 'delete' ? `delete ${change.id}` : this.world.nameOf(change.row);
    this.world.accuse(this, 'false refusal', `${name} (${change.seq}), ${errorCode(error)}`);
  }

  /** A call for a change has failed. If the change was stored before, the server has refused it. */
  failed({ program, kind, id, what }: Asked, error: Error): void {
    if (!(error instanceof ApiError) && errorCode(error) !== 'reset') return;
    const isIt = (one: Pending): boolean => {
      if (kind === 'delete' || one.kind === 'delete') return kind === one.kind;
      if (kind === 'move') return one.kind === 'move' && one.row.binId === what;
      return one.kind === 'write' && !one.rewrap && this.world.nameOf(one.row).startsWith(`${what} in `);
    };
    const { refusals } = this;
    // The item may have been moved to the same bin twice.
    const change = refusals.newest(id, (one) => isIt(one) && refusals.explains(one)) ?? refusals.newest(id, isIt);
    if (change !== undefined) this.expectRefused(program, change, error);
  }

  private stored({ emptying }: Program, { pending = [] }: Batch): void {
    this.refusals.stored(pending);
    for (const change of pending) {
      if (change.kind === 'delete' && emptying > 0) this.emptied.add(change.id);
      if (change.kind === 'delete' && this.emptied.has(change.id)) continue;
      if (change.kind === 'delete') this.kept.add(`delete ${change.id}`);
      else if (change.kind === 'move' || !change.rewrap) this.kept.add(this.world.nameOf(change.row));
    }
  }

  goOffline(): void {
    this.offline = true;
    for (const call of this.world.calls) if (call.device === this) call.lose();
    this.world.calls = this.world.calls.filter(({ device }) => device !== this);
    this.link?.end(1006, 'offline');
  }

  /** The program ends where it is; a request that is under way may still reach the server. */
  kill(): void {
    this.program?.kill();
    this.program = undefined;
    this.refusals.forget();
    this.link?.leave();
    this.link = undefined;
    for (const call of this.world.calls) if (call.device === this) call.abandoned = true;
  }
}

/** The devices, the server, and the network between them. */
export class ClientWorld {
  readonly clock = new TestClock(1_700_000_000_000);
  readonly draw: (below: number) => number;
  readonly sodium: Sodium;
  readonly masterKey: Uint8Array;
  readonly server: HonestServer;
  readonly devices: SimulatedDevice[] = [];
  readonly asked: Asked[] = [];
  calls: Call[] = [];
  requests = 0;
  /** What accuses the server, and what should not have happened at all. */
  readonly findings: string[] = [];
  private texts = 0;

  constructor(seed: number) {
    this.draw = numbers(seed);
    const random = (length: number): Uint8Array => Uint8Array.from({ length }, () => this.draw(256));
    this.sodium = { ...nodeSodium, random };
    this.masterKey = random(32);
    this.server = new HonestServer(this.clock);
  }

  nextText = (): string => `text ${++this.texts}`;

  private opened(row: LiveItem) {
    const keys = { publicKey: new Uint8Array(32), secretKey: new Uint8Array(32) };
    return orRefusal(() => openItem(this.sodium, row, { masterKey: this.masterKey, device: { id: '', keys } }));
  }

  /** The row's tag holds, and it decrypts. */
  opens = (row: LiveItem): boolean => !(this.opened(row) instanceof CryptoRefusal);

  /** What a row is: its text or name, and its bin; the same for every device. */
  nameOf(row: LiveItem): string {
    const payload = this.opened(row);
    if (payload instanceof CryptoRefusal) throw payload;
    return `${titleOf(payload)} in ${row.binId}`;
  }

  /** `restored`: where the server was restored it is right. */
  accuse({ id }: SimulatedDevice, event: string, details: unknown, restored = false): void {
    if (restored && this.server.former.length > 0) return;
    this.findings.push(`${id.slice(-2)} ${event} ${JSON.stringify(details)}`);
  }

  problem(device: SimulatedDevice, error: Error): void {
    if (error instanceof ProtocolError || error instanceof TypeError || error instanceof RangeError)
      this.accuse(device, `problem ${errorCode(error)}`, error.stack, AFTER_RESTORE.includes(errorCode(error)));
    else if (!['NetworkError', 'ApiError', 'QueuedError', 'ClientError', 'StoreError'].includes(error.name))
      this.accuse(device, 'problem', error.stack);
  }

  /** Another device joins, as after a pairing. */
  async join(device = new SimulatedDevice(this, this.devices.length + 1)): Promise<void> {
    this.devices.push(device);
    await this.server.join({ id: device.id, pubkey: device.keys.publicKey, cert: device.cert });
    await this.begin(device);
  }

  /** Another program of a device begins, with a store of its own. */
  async twin(of: SimulatedDevice): Promise<void> {
    const device = new SimulatedDevice(this, 0, of);
    this.devices.push(device);
    await this.begin(device);
  }

  private begin(device: SimulatedDevice): Promise<void> {
    const { token: text, expiresAt } = this.server.issueToken(device.id);
    device.token = { text, expiresAt, issuedAt: this.clock.now() };
    return device.start();
  }

  /** A program asks for a change. */
  ask(asked: Omit<Asked, 'outcome'>, change: Promise<{ readonly version: number }>): void {
    const one: Asked = { ...asked, outcome: undefined };
    this.asked.push(one);
    change.then(
      ({ version }) => (one.outcome = { version }),
      (error: unknown) => {
        one.outcome = asError(error);
        one.device.failed(one, one.outcome);
      },
    );
  }

  /** Resolves when nothing happens any more before the test does something. */
  async idle(): Promise<void> {
    await new Promise<void>((resolve) => {
      let turns = QUIET_TURNS;
      const next = (): unknown => (--turns === 0 ? resolve() : setImmediate(next));
      setImmediate(next);
    });
  }

  /** The server carries out a request; its reply waits. */
  async deliver(call: Call): Promise<void> {
    if (call.reply !== undefined) return;
    call.reply = await this.server.answer(call.request);
  }

  /** The reply reaches the client. */
  async finish(call: Call): Promise<void> {
    await this.deliver(call);
    this.drop(call);
    if (!call.abandoned && call.reply !== undefined) call.arrive(call.reply, this.clock.now());
  }

  /** The server, or a proxy before it, refuses it: for a moment, or a change since there is no room for it. */
  refuse(call: Call, how: number): void {
    if (call.reply !== undefined) return;
    const isChange = call.request.method !== 'GET' && call.request.path.startsWith('/items');
    const refusals = [
      rateLimited(undefined, 2),
      unavailable(),
      ...(isChange ? [new ServiceError('storage_cap_exceeded')] : []),
    ];
    this.drop(call);
    if (!call.abandoned) call.arrive(refusalOf(refusals[how % refusals.length]), this.clock.now());
  }

  lose(call: Call): void {
    this.drop(call);
    if (!call.abandoned) call.lose();
  }

  private drop(call: Call): void {
    this.calls = this.calls.filter((other) => other !== call);
  }

  /** The network works, for these devices, until nothing is under way. */
  async flow(devices: readonly SimulatedDevice[] = this.devices): Promise<void> {
    for (let steps = 0; ; steps++) {
      if (steps > STEPS_MAX) throw new Error('requests and frames without end');
      await this.idle();
      const call = this.calls.find(({ device }) => devices.includes(device));
      const link = devices.find((device) => device.link?.mute === false && device.link.coming.length > 0)?.link;
      if (call === undefined && link === undefined) return;
      if (call !== undefined) await this.finish(call);
      await link?.arrive(this.server);
    }
  }

  /** Time passes; what falls due happens one after the other. `flowing`: the network works meanwhile. */
  async pass(ms: number, flowing: boolean): Promise<void> {
    const until = this.clock.now() + ms;
    for (let next = this.clock.nextAt; next <= until; next = this.clock.nextAt) {
      this.clock.advance(Math.max(0, next - this.clock.now()));
      await (flowing ? this.flow() : this.idle());
    }
    this.clock.advance(until - this.clock.now());
    await this.idle();
  }
}
