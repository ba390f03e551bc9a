/**
 * The way of a request: framing, route, tenant by host, token, tenant state, rate, body, handler (contract 3, order of
 * checks). With the tenant in memory all of it up to the body happens in one go, without a promise.
 */
import type { HttpRequest, HttpResponse } from 'uWebSockets.js';
import { invalid, ServiceError } from '../protocol/errors.js';
import { DeviceRates, Load } from './admit.js';
import { Authenticator, bearerOf, checkAdmin, checkState, type Caller } from './authenticate.js';
import { KeptBody, readBody, takeBody, takeForm } from './body.js';
import { addressOfPeer, limitKey, TrustedProxies } from './client-address.js';
import { Inflow } from './inflow.js';
import type { FrontOptions, LoadBounds } from './ports.js';
import { Replier } from './reply.js';
import { Call, type Answerer } from './request.js';
import { LATER, Router, type Answer, type Row } from './router.js';

/** Strangers shall not be able to take the devices' share. */
const BOUNDS: LoadBounds = {
  devices: { calls: 10_000, bytes: 256 * 1024 * 1024 },
  strangers: { calls: 2_000, bytes: 32 * 1024 * 1024 },
};

const NOTHING = Buffer.alloc(0);

/** A row of the table, and whose share of the process its calls use. */
interface Way {
  readonly row: Row;
  readonly load: Load;
}

/**
 * Takes requests through all steps, and knows which of them are under way: every call that waits, for its admission
 * or for its answer, is counted from the begin of the wait to its end, also when its client has gone away.
 */
export class Pipeline implements Answerer {
  readonly replier: Replier;
  readonly authenticator: Authenticator;
  readonly rates: DeviceRates;
  readonly proxies: TrustedProxies;
  private readonly router: Router;
  private readonly now: () => number;
  /** What calls and upgrades with a device's token have under way. */
  readonly devices: Load;
  private readonly strangers: Load;
  /** Calls that wait for their admission or for their handler's answer. */
  private readonly waiting = new Set<Call>();
  private whenIdle: (() => void) | undefined;

  constructor(
    rows: readonly Row[],
    private readonly app: FrontOptions,
  ) {
    const { config, clock, log } = app;
    this.now = () => clock.now();
    const { devices, strangers } = app.bounds ?? BOUNDS;
    this.devices = new Load(devices);
    this.strangers = new Load(strangers);
    this.router = new Router(rows);
    this.proxies = new TrustedProxies(config.trustedProxies);
    this.replier = new Replier({
      log,
      clock,
      load: this.devices,
      proxies: this.proxies,
      corsOrigins: config.corsOrigins,
      meter: app.meter,
    });
    this.authenticator = new Authenticator(app);
    this.rates = new DeviceRates({ read: config.rateReadPerS, write: config.rateWritePerS }, clock);
  }

  /**
   * Copies a request, gives it its id and listens for its end. Every request begins here, upgrades too.
   * One with a fault in its framing is refused here, and not to be looked at any further.
   */
  begin(res: HttpResponse, req: HttpRequest): Call {
    const call = new Call(res, req, { now: this.app.clock.now(), shape: this.app.config.wireShape, answerer: this });
    res.onAborted(() => {
      call.aborted = true;
      call.end();
      call.unsent?.();
    });
    this.replier.identify(call);
    if (call.framing !== undefined) {
      call.closing = 'cut';
      this.replier.fail(call, invalid('framing', call.framing));
    }
    return call;
  }

  /** Takes one request through all steps. Never throws. */
  handle(res: HttpResponse, req: HttpRequest): void {
    const call = this.begin(res, req);
    if (call.framing !== undefined) return;
    try {
      const row = this.rowOf(call);
      if (row !== undefined) this.admitAndRun(call, row);
    } catch (error) {
      this.replier.fail(call, error);
    }
  }

  /** The row of the table, or undefined where the reply is out already. */
  private rowOf(call: Call): Row | undefined {
    const found = this.router.find(call.path);
    if (found === undefined) throw new ServiceError('not_found', 'no such route');
    call.route = found.route.path;
    call.id = found.id;
    const row = found.route.methods.get(call.method);
    if (row !== undefined) return row;
    if (call.method === 'OPTIONS' && call.preflightMethod !== '' && this.replier.allows(call.origin)) {
      this.replier.preflight(call, found.route.allow);
    } else {
      this.replier.fail(call, new ServiceError('method_not_allowed'), [['allow', found.route.allow]]);
    }
    return undefined;
  }

  private admitAndRun(call: Call, row: Row): void {
    const load = row.auth === 'none' ? this.strangers : this.devices;
    if (row.stream === true) return this.admitStream(call, { row, load });
    const admitted = this.admit(call, row);
    if (admitted !== undefined) this.runLater(call, { row, load }, admitted);
    else if (row.body === 0) this.run(call, { row, load }, NOTHING);
    else {
      const done = (bytes: Buffer, fault?: ServiceError): void => this.run(call, { row, load }, bytes, fault);
      readBody(call, { cap: row.body, load, now: this.now, done });
    }
  }

  /** Nothing is listened to before the signature held: whoever has none cannot have the server hold anything. */
  private admitStream(call: Call, { row, load }: Way): void {
    // Where a chunked body ends nobody can say before it has; a signed URL is for a declared length.
    if (call.chunked || !call.lengthDeclared) throw invalid('content-length', 'required');
    const admitted = this.admit(call, row);
    const { clock, transfers } = this.app;
    call.inflow = new Inflow(call, clock, (pace) => transfers?.tooSlow(call.tenantId, pace) ?? true);
    if (admitted === undefined) this.run(call, { row, load }, NOTHING);
    else this.hold(call, load, admitted, () => this.run(call, { row, load }, NOTHING));
  }

  /** The body arrives whether or not the call is let in yet: it is listened to from the start, and kept until then. */
  private runLater(call: Call, { row, load }: Way, admitted: Promise<void>): void {
    const kept = new KeptBody(call, load);
    let inside = false;
    const done = (bytes: Buffer, fault?: ServiceError): void => {
      if (inside) this.run(call, { row, load }, bytes, fault);
      else kept.put(bytes, fault);
    };
    this.hold(call, load, admitted, () => {
      inside = true;
      const body = kept.take();
      if (body !== undefined) this.run(call, { row, load }, body.bytes, body.fault);
    });
    if (row.body === 0) done(NOTHING);
    else readBody(call, { cap: row.body, load, now: this.now, done });
  }

  /** Everything before the body. Undefined when it is settled at once; throws, or rejects, with the refusal. */
  private admit(call: Call, row: Row): Promise<void> | undefined {
    if (row.apex === true) {
      this.authenticator.checkApex(call.host);
      this.strangers.check();
      return this.admitStranger(call, row);
    }
    if (row.state === 'any' && row.limit === 'none' && row.auth === 'none') {
      // Health has no tenant: it answers whatever host was asked for.
      if (row.tenantless !== true) call.tenantId = this.authenticator.tenantOf(call.host);
      // Now: a dead response has no peer any more.
      if (row.raw === true) call.address = this.addressOf(call);
      return undefined;
    }
    call.tenantId = this.authenticator.tenantOf(call.host);
    if (row.auth === 'admin') {
      checkAdmin(call.authorization, this.app.config.adminToken);
      return undefined;
    }
    if (row.auth === 'url') return this.admitSigned(call, row);
    if (row.auth === 'none') {
      // Before anything is asked that has to be waited for.
      this.strangers.check();
      return this.admitStranger(call, row);
    }
    const claims = this.authenticator.claimsOf(bearerOf(call.authorization), call.tenantId);
    call.claims = claims;
    this.devices.check();
    const caller = this.authenticator.callerOf(claims);
    if (caller instanceof Promise) return caller.then((found) => this.admitDevice(call, row, found));
    this.admitDevice(call, row, caller);
    return undefined;
  }

  private admitDevice(call: Call, row: Row, { actor, device }: Caller): void {
    call.actor = actor;
    call.deviceId = device.id;
    checkState(actor.state, row.state);
    if (row.limit === 'read' || row.limit === 'write') this.rates.take(`${call.tenantId}/${device.id}`, row.limit);
    this.app.devices.touch(call.tenantId, device);
  }

  /** The signature stands for the token: it was given to a device of the tenant that it names (contract 8). */
  private admitSigned(call: Call, row: Row): Promise<void> | undefined {
    const { transfers } = this.app;
    if (transfers === undefined) throw new ServiceError('not_found', 'no such route');
    const put = row.method === 'PUT';
    // A file goes out past the reply that would cut the connection, and where a chunked request ends nobody can say.
    if (!put && call.chunked) throw invalid('transfer-encoding', 'a download has no body');
    const { tenantId } = transfers.check({
      method: put ? 'PUT' : 'GET',
      path: call.id,
      exp: call.query.get('exp'),
      sig: call.query.get('sig'),
      ...(put ? { size: call.contentLength, contentType: call.contentType } : {}),
    });
    // Of another tenant than the host's: good on that one's own host only.
    if (tenantId !== call.tenantId) throw new ServiceError('url_invalid');
    this.devices.check();
    const actor = this.authenticator.actorOf(tenantId);
    if (actor instanceof Promise) return actor.then(({ state }) => checkState(state, row.state));
    checkState(actor.state, row.state);
    return undefined;
  }

  private async admitStranger(call: Call, row: Row): Promise<void> {
    // Asked for before anything is awaited: a dead response has no peer any more.
    const address = this.addressOf(call);
    if (row.state !== 'any') {
      const found = this.authenticator.actorOf(call.tenantId);
      checkState((found instanceof Promise ? await found : found).state, row.state);
    }
    if (row.limit !== 'read' && row.limit !== 'write' && row.limit !== 'none') {
      await this.app.addressLimits.take(row.limit, address);
    }
  }

  /** What limits per address count this client by. */
  private addressOf(call: Call): string {
    const peer = addressOfPeer(new Uint8Array(call.res.getRemoteAddress()));
    return peer === undefined ? 'unknown' : limitKey(this.proxies.clientOf(peer, call.forwardedFor));
  }

  private run(call: Call, { row, load }: Way, bytes: Buffer, fault?: ServiceError): void {
    if (call.over) return;
    try {
      if (row.tenantless !== true || row.raw === true) load.check();
      if (fault !== undefined) throw fault;
      // A copy: the library takes its memory back.
      if (row.raw === true) call.bytes = Uint8Array.from(bytes);
      else if (row.form === true) takeForm(call, bytes);
      else if (row.body > 0) takeBody(call, bytes);
      // Only now: the body may show in which shape this is to be said.
      if (call.fault !== undefined) throw call.fault;
      if (row.auth === 'device') this.runFor(call, row);
      else this.answer(call, load, row.run(call, this.app));
    } catch (error) {
      this.replier.fail(call, error);
    }
  }

  /** While the body came the device may have been revoked, or its tenant's actor dropped: it is looked up again. */
  private runFor(call: Call, row: Row): void {
    const go = ({ actor }: Caller): void => {
      call.actor = actor;
      this.answer(call, this.devices, row.run(call, this.app));
    };
    const caller = this.authenticator.callerOf(call.claims);
    if (caller instanceof Promise) this.hold(call, this.devices, caller, go);
    else go(caller);
  }

  private answer(call: Call, load: Load, answer: Answer | Promise<Answer> | typeof LATER): void {
    if (answer === LATER) return this.awaitAnswer(call, load);
    if (!(answer instanceof Promise)) return this.replier.answer(call, answer);
    this.hold(call, load, answer, (value) => this.replier.answer(call, value));
    if (this.replier.closing) this.giveUp(call);
  }

  /** The handler calls `call.answer` or `call.refuse`, or has done so already. */
  private awaitAnswer(call: Call, load: Load): void {
    if (call.over) return;
    call.heldBy = load;
    load.calls++;
    this.waiting.add(call);
  }

  answerLater(call: Call, answer: Answer): void {
    this.leaveHeld(call);
    this.replier.answer(call, answer);
    this.tellIdle();
  }

  refuseLater(call: Call, error: unknown): void {
    this.leaveHeld(call);
    this.replier.fail(call, error);
    this.tellIdle();
  }

  private leaveHeld(call: Call): void {
    if (call.heldBy !== undefined) this.leave(call, call.heldBy);
    call.heldBy = undefined;
  }

  /**
   * Counts the call as under way until `wait` is settled, then goes on with what it gave. A wait that fails, and what
   * `go` throws, is the call's answer. The load is checked before, where the work of the wait begins.
   */
  hold<T>(call: Call, load: Load, wait: Promise<T>, go: (value: T) => void): void {
    load.calls++;
    this.waiting.add(call);
    wait.then(
      (value) => {
        this.leave(call, load);
        try {
          go(value);
        } catch (error) {
          this.replier.fail(call, error);
        }
        this.tellIdle();
      },
      (error: unknown) => {
        this.leave(call, load);
        this.replier.fail(call, error);
        this.tellIdle();
      },
    );
  }

  private leave(call: Call, load: Load): void {
    load.calls--;
    this.waiting.delete(call);
  }

  private tellIdle(): void {
    if (this.waiting.size === 0) this.whenIdle?.();
  }

  /** A held call gets what it is given when the server stops; any other waits on. */
  private giveUp(call: Call): void {
    const { giveUp } = call;
    if (giveUp === undefined) return;
    call.status = 202;
    this.replier.answer(call, giveUp);
  }

  /** Calls that wait for something. */
  get underWay(): number {
    return this.waiting.size;
  }

  /**
   * From now on each answer ends its connection, and held calls are ended. Begins while the sockets are being closed:
   * a connection that was kept until the very end would be cut with its next request on it.
   */
  beginEnd(): void {
    this.replier.closing = true;
    for (const call of this.waiting) this.giveUp(call);
  }

  /** Resolves when every call has its answer. */
  drained(): Promise<void> {
    return new Promise((resolve) => {
      this.whenIdle = resolve;
      if (this.waiting.size === 0) resolve();
    });
  }
}
