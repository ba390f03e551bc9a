/**
 * The way of a request: framing, route, tenant by host, token, tenant state, rate, body, handler (reference,
 * HTTP, Order of checks). With the tenant in memory all of it up to the body happens in one go, without a promise.
 */
import type { HttpRequest, HttpResponse } from 'uWebSockets.js';
import type { RatePurpose } from './address-limits.js';
import type { TokenClaims } from './tokens.js';
import { invalid, ServiceError } from '../../protocol/errors.js';
import { DeviceRates, refusalOf, Shares } from './limits.js';
import {
  Authenticator,
  bearerOf,
  checkAdmin,
  checkState,
  ownerOf,
  type Caller,
  type KnownCaller,
} from './authenticate.js';
import { KeptBody, readBody, takeBody, takeForm, Call, type CallKeeper } from './request.js';
import { TrustedProxies } from './client-address.js';
import { Inflow } from './inflow.js';
import type { HttpParts } from './ports.js';
import { Replier, type Answer } from './reply.js';
import { LATER, type Row } from './route.js';

interface Route<P> {
  readonly path: string;
  readonly methods: ReadonlyMap<string, Row<P>>;
  /** For the `Allow` header. */
  readonly allow: string;
}

interface Pattern<P> extends Route<P> {
  readonly prefix: string;
  readonly suffix: string;
  /** Parts of the path that the parameters stand for. */
  readonly parts: number;
}

/** Longer than any path that leads somewhere. The library lets half a megabyte through, of slashes too. */
const PATH_MAX = 512;

/** `:id`, or `:tenant/:ref`: parameters stand side by side. */
const PARAMETERS = /:[a-z]+(?:\/:[a-z]+)*/;

function routeOf<P>(path: string, rows: readonly Row<P>[]): Route<P> {
  const methods = new Map<string, Row<P>>(rows.map((row) => [row.method, row]));
  const get = methods.get('GET');
  if (get !== undefined) methods.set('HEAD', get);
  return { path, methods, allow: [...methods.keys()].join(', ') };
}

/** What a path leads to. */
export interface Found<P> {
  readonly route: Route<P>;
  /** What stands for `:id`; for `:tenant/:ref` both, with the slash. */
  readonly id: string;
}

/** The route table as it is searched: exact paths by a map, those with an id one after the other. */
export class Router<P> {
  private readonly exact = new Map<string, Found<P>>();
  private readonly patterns: Pattern<P>[] = [];

  constructor(rows: readonly Row<P>[]) {
    for (const path of new Set(rows.map((row) => row.path))) {
      const route = routeOf(
        path,
        rows.filter((row) => row.path === path),
      );
      const [parameters] = PARAMETERS.exec(path) ?? [];
      if (parameters === undefined) {
        this.exact.set(path, { route, id: '' });
        continue;
      }
      const [prefix = '', suffix = ''] = path.split(parameters);
      this.patterns.push({ ...route, prefix, suffix, parts: parameters.split('/').length });
    }
  }

  /** The route of a path; exact ones win over those with an id. */
  find(path: string): Found<P> | undefined {
    const exact = this.exact.get(path);
    if (exact !== undefined) return exact;
    if (path.length > PATH_MAX) return undefined;
    for (const route of this.patterns) {
      if (!path.startsWith(route.prefix) || !path.endsWith(route.suffix)) continue;
      const id = path.slice(route.prefix.length, path.length - route.suffix.length);
      const parts = id.split('/');
      if (parts.length === route.parts && !parts.includes('')) return { route, id };
    }
    return undefined;
  }
}

const NOTHING = Buffer.alloc(0);
/** A device's requests are noted as a sign of life at most so often, ms. */
const SEEN_EVERY_MS = 60_000;

interface Limited {
  readonly call: Call;
  readonly row: Row;
  readonly address: string;
  readonly limit: RatePurpose | undefined;
}

/**
 * Takes requests through all steps, and knows which of them are under way. A call has its place from its admission
 * until it is answered, and until what it waits for has come, also when its client has gone away.
 */
export class Pipeline<P extends HttpParts> implements CallKeeper {
  readonly replier: Replier;
  readonly authenticator: Authenticator;
  readonly rates: DeviceRates;
  readonly shares: Shares;
  private readonly router: Router<P>;
  private readonly now: () => number;
  /** Calls that wait for their admission or for their handler's answer. */
  private readonly waiting = new Set<Call>();
  private whenIdle: (() => void)[] = [];

  constructor(
    rows: readonly Row<P>[],
    private readonly app: P,
  ) {
    const { config, clock, log } = app;
    this.now = () => clock.now();
    this.router = new Router(rows);
    const proxies = new TrustedProxies(config.trustedProxies);
    this.shares = new Shares({ bounds: app.bounds, clock, proxies });
    this.replier = new Replier({
      log,
      clock,
      shares: this.shares,
      proxies,
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
    const { clock, config } = this.app;
    const call = new Call(res, req, { now: clock.now(), shape: config.wireShape }, this);
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
  readonly handle = (res: HttpResponse, req: HttpRequest): void => {
    const call = this.begin(res, req);
    if (call.framing !== undefined) return;
    try {
      const row = this.rowOf(call);
      if (row !== undefined) this.admitAndRun(call, row);
    } catch (error) {
      this.replier.fail(call, error);
    }
  };

  /** The row of the table, or undefined where the reply is out already. */
  private rowOf(call: Call): Row<P> | undefined {
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

  private admitAndRun(call: Call, row: Row<P>): void {
    if (row.stream === true) return this.admitStream(call, row);
    const admitted = this.admit(call, row);
    if (admitted !== undefined) this.runLater(call, row, admitted);
    else if (row.body === 0) this.run(call, row, NOTHING);
    else {
      const done = (bytes: Buffer, fault?: ServiceError): void => this.run(call, row, bytes, fault);
      readBody(call, { cap: row.body, shares: this.shares, now: this.now, done });
    }
  }

  /** Nothing is listened to before the signature held: whoever has none cannot have the server hold anything. */
  private admitStream(call: Call, row: Row<P>): void {
    // Where a chunked body ends nobody can say before it has; a signed URL is for a declared length.
    if (call.chunked || !call.lengthDeclared) throw invalid('content-length', 'required');
    const admitted = this.admit(call, row);
    const { clock, transfers } = this.app;
    call.inflow = new Inflow(call, clock, (pace) => transfers?.tooSlow(call.tenantId, pace) ?? true);
    if (admitted === undefined) this.run(call, row, NOTHING);
    else this.hold(call, admitted, () => this.run(call, row, NOTHING));
  }

  /** The body arrives whether or not the call is let in yet: it is listened to from the start, and kept until then. */
  private runLater(call: Call, row: Row<P>, admitted: Promise<void>): void {
    const kept = new KeptBody(call, this.shares);
    let inside = false;
    const done = (bytes: Buffer, fault?: ServiceError): void => {
      if (inside) this.run(call, row, bytes, fault);
      else kept.put(bytes, fault);
    };
    this.hold(call, admitted, () => {
      inside = true;
      const body = kept.take();
      if (body !== undefined) this.run(call, row, body.bytes, body.fault);
    });
    if (row.body === 0) done(NOTHING);
    else readBody(call, { cap: row.body, shares: this.shares, now: this.now, done });
  }

  /** Everything before the body. Undefined when it is settled at once; throws, or rejects, with the refusal. */
  private admit(call: Call, row: Row<P>): Promise<void> | undefined {
    if (row.apex === true) {
      this.authenticator.checkApex(call.host);
      return this.admitStranger(call, row);
    }
    // Health has no tenant: it answers whatever host was asked for.
    if (row.tenantless !== true) call.tenantId = this.authenticator.tenantOf(call.host);
    else if (row.raw !== true) return undefined;
    if (row.auth === 'admin') checkAdmin(call.authorization, this.app.config.adminToken);
    if (row.auth === 'url') return this.admitSigned(call, row);
    if (row.auth !== 'device') return this.admitStranger(call, row);
    const known = this.authenticator.recall(call.authorization, call.tenantId);
    if (known !== undefined) {
      this.claim(call, known.claims, known.owner);
      this.admitDevice(call, row, known);
      return undefined;
    }
    const claims = this.authenticator.claimsOf(bearerOf(call.authorization), call.tenantId);
    this.claim(call, claims);
    const caller = this.authenticator.callerOf(claims);
    if (caller instanceof Promise) return caller.then((found) => this.admitNew(call, row, found));
    this.admitNew(call, row, caller);
    return undefined;
  }

  private admitNew(call: Call, row: Row<P>, caller: Caller): void {
    this.admitDevice(call, row, this.authenticator.remember(call.authorization, call.owner, caller));
  }

  /** From here on the call is charged to the device that the claims name. Throws as `Shares.enter`. */
  claim(call: Call, claims: TokenClaims, owner = ownerOf(claims)): void {
    call.claims = claims;
    call.owner = owner;
    this.shares.enter(call);
  }

  private admitDevice(call: Call, row: Row<P>, caller: KnownCaller): void {
    const { actor, device } = caller;
    call.caller = caller;
    call.deviceId = device.id;
    checkState(actor.state, row.state);
    if (row.limit === 'read' || row.limit === 'write') {
      // Of a chunked body one byte is asked for now, and the rest is owed once it is known.
      const bytes = row.body === 0 ? 0 : call.chunked ? 1 : call.contentLength;
      call.bucket = this.rates.take(call.owner, row.limit, bytes);
    }
    if (Math.abs(this.now() - (device.notedAt ?? 0) * 1_000) >= SEEN_EVERY_MS)
      this.app.devices.touch(call.tenantId, device);
  }

  /** The signature stands for the token: it was given to a device of the tenant that it names (reference, Blobs). */
  private admitSigned(call: Call, row: Row<P>): Promise<void> | undefined {
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
    // Nobody knows which device has the URL.
    call.owner = `${tenantId}/`;
    this.shares.enter(call);
    const actor = this.authenticator.actorOf(tenantId);
    if (actor instanceof Promise) return actor.then(({ state }) => checkState(state, row.state));
    checkState(actor.state, row.state);
    return undefined;
  }

  private admitStranger(call: Call, row: Row<P>): Promise<void> | undefined {
    // Before anything is asked that has to be waited for, and while the response has its peer.
    const address = this.shares.addressOf(call);
    this.shares.enter(call);
    const limit = row.limit === 'read' || row.limit === 'write' || row.limit === 'none' ? undefined : row.limit;
    if (row.state === 'any' && limit === undefined) return undefined;
    return this.admitLimited({ call, row, address, limit });
  }

  private async admitLimited({ call, row, address, limit }: Limited): Promise<void> {
    if (row.state !== 'any') {
      const found = this.authenticator.actorOf(call.tenantId);
      checkState((found instanceof Promise ? await found : found).state, row.state);
    }
    if (limit !== undefined) await this.app.addressLimits.take(limit, address);
  }

  private run(call: Call, row: Row<P>, bytes: Buffer, fault?: ServiceError): void {
    if (call.over) return;
    try {
      if (fault !== undefined) throw fault;
      // Of a chunked body nobody knew the length before.
      if (call.chunked && call.bucket !== undefined) call.bucket.bodies -= bytes.length;
      // A copy: the library takes its memory back.
      if (row.raw === true) call.bytes = Uint8Array.from(bytes);
      else if (row.form === true) takeForm(call, bytes);
      else if (row.body > 0) takeBody(call, bytes);
      // Only now: the body may show in which shape this is to be said.
      if (call.fault !== undefined) throw call.fault;
      if (row.reply === undefined) this.runFor(call, row);
      else this.runWithRoom(call, row, row.reply);
    } catch (error) {
      this.replier.fail(call, error);
    }
  }

  /** A long reply is read from the database only when there is room for it. */
  private runWithRoom(call: Call, row: Row<P>, bytes: number): void {
    call.room = this.shares.holding(call);
    const reserved = this.shares.of(call).replies.reserve(call.room, bytes);
    if (reserved === 'held') this.runFor(call, row);
    else {
      this.hold(call, reserved, (verdict) => {
        if (call.over) return;
        if (verdict !== 'held') throw refusalOf(verdict, 'bytes of replies');
        this.runFor(call, row);
      });
    }
  }

  /** While the call waited the device may have been revoked, or its tenant's actor dropped: it is looked up again. */
  private runFor(call: Call, row: Row<P>): void {
    if (row.auth !== 'device') return this.answer(call, row.run(call, this.app));
    if (call.caller !== undefined && this.authenticator.holds(call.caller)) {
      return this.answer(call, row.run(call, this.app));
    }
    const go = (found: Caller): void => {
      call.caller = found;
      this.answer(call, row.run(call, this.app));
    };
    const caller = this.authenticator.callerOf(call.claims);
    if (caller instanceof Promise) this.hold(call, caller, go);
    else go(caller);
  }

  private answer(call: Call, answer: Answer | Promise<Answer> | typeof LATER): void {
    if (answer === LATER) return this.awaitAnswer(call);
    if (!(answer instanceof Promise)) return this.replier.answer(call, answer);
    this.hold(call, answer, (value) => this.replier.answer(call, value));
    const { giveUp, place } = call;
    // A call that is held for others to act gives its place to those who want to be served.
    if (giveUp !== undefined && place !== undefined) place.giveWay = () => this.giveUp(call);
    if (this.replier.closing) this.giveUp(call);
  }

  /** The handler calls `call.answer` or `call.refuse`, or has done so already. */
  private awaitAnswer(call: Call): void {
    // A refusal may be on its way already, and not be out: of a chunked body it is sent with the next turn.
    if (!call.over && !call.told) this.waiting.add(call);
  }

  answerLater(call: Call, answer: Answer): void {
    this.settle(call);
    this.replier.answer(call, answer);
    this.tellIdle();
  }

  refuseLater(call: Call, error: unknown): void {
    this.settle(call);
    this.replier.fail(call, error);
    this.tellIdle();
  }

  /**
   * Goes on with what `wait` gives. A wait that fails, and what `go` throws, is the call's answer. Until then the call
   * is under way.
   */
  hold<T>(call: Call, wait: Promise<T>, go: (value: T) => void): void {
    this.waiting.add(call);
    wait.then(
      (value) => {
        this.settle(call);
        try {
          go(value);
        } catch (error) {
          this.replier.fail(call, error);
        }
        this.tellIdle();
      },
      (error: unknown) => {
        this.settle(call);
        this.replier.fail(call, error);
        this.tellIdle();
      },
    );
  }

  private settle(call: Call): void {
    this.waiting.delete(call);
    if (call.over) this.letGo(call);
  }

  /** Of every call, once. What it waits for is still under way, and what that reads still needs its room. */
  over(call: Call): void {
    if (!this.waiting.has(call)) this.shares.leave(call);
    else if (call.room?.amount === 0) this.shares.freeRoom(call);
  }

  private letGo(call: Call): void {
    this.shares.leave(call);
    this.shares.freeRoom(call);
  }

  private tellIdle(): void {
    if (this.waiting.size === 0) for (const wake of this.whenIdle.splice(0)) wake();
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
      if (this.waiting.size === 0) resolve();
      else this.whenIdle.push(resolve);
    });
  }
}
