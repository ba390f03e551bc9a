/**
 * The steps of a request: framing, route, tenant by host, token, tenant state, rate, body, handler (reference, HTTP,
 * Order of checks). With the tenant in memory all steps up to the body run synchronously, without a promise.
 */
import type { HttpRequest, HttpResponse } from 'uWebSockets.js';
import { MINUTE_MS } from '../../protocol/clock.js';
import { invalid, ServiceError } from '../../protocol/errors.js';
import type { Shape } from '../../protocol/shape.js';
import { DeviceRates, refusalOf, RequestBudgets } from './limits.js';
import { Authenticator, bearerOf, checkAdmin, checkState, ownerOf, type Caller } from './authenticate.js';
import { type Body, NO_BYTES, readBody, takeBody, takeForm, RequestContext, type RequestHooks } from './request.js';
import { TrustedProxies } from './client-address.js';
import { Connections } from './connections.js';
import { UploadStream } from './streams.js';
import type { HttpParts } from './ports.js';
import { acceptsHtml } from './query.js';
import { ResponseWriter, type Answer } from './reply.js';
import { LATER, mounted, type FastPath, type Row } from './route.js';

interface Route<P> {
  readonly path: string;
  readonly methods: ReadonlyMap<string, Row<P>>;
  readonly allow: string;
  /** The value of `:id`; of `:tenant/:ref` both, with the slash. */
  readonly id: string;
}

/** Longer than any path of the table. The library accepts half a megabyte, of slashes too. */
const PATH_MAX = 512;
/** `:id`, or `:tenant/:ref`: parameters are adjacent. */
const PARAMETERS = /:[a-z]+(?:\/:[a-z]+)*/;

/** Finds routes: exact paths by a map, those with parameters in sequence. */
class Router<P> {
  private readonly exact = new Map<string, Route<P>>();
  private readonly patterns: { readonly route: Route<P>; readonly pattern: RegExp }[] = [];

  constructor(rows: readonly Row<P>[]) {
    for (const path of new Set(rows.map((row) => row.path))) {
      const methods = new Map<string, Row<P>>();
      for (const row of rows) if (row.path === path) methods.set(row.method, row);
      const get = methods.get('GET');
      if (get !== undefined) methods.set('HEAD', get);
      const route = { path, methods, allow: [...methods.keys()].join(', '), id: '' };
      const pattern = path.replace(PARAMETERS, (names) => `(${names.replace(/:[a-z]+/g, '[^/]+')})`);
      if (pattern === path) this.exact.set(path, route);
      else this.patterns.push({ route, pattern: new RegExp(`^${pattern}$`) });
    }
  }

  /** The route of a path; exact ones win over those with parameters. */
  find(path: string): Route<P> | undefined {
    const exact = this.exact.get(path);
    if (exact !== undefined) return exact;
    if (path.length > PATH_MAX) return undefined;
    for (const { route, pattern } of this.patterns) {
      const [, id] = pattern.exec(path) ?? [];
      if (id !== undefined) return { ...route, id };
    }
    return undefined;
  }
}

/** Whether a row limits the client's address, and not its device. */
const isOfAddress = (limit: Row['limit']): limit is Exclude<Row['limit'], 'read' | 'write' | 'none'> =>
  limit !== 'read' && limit !== 'write' && limit !== 'none';

/** The same work, during which a slot is held. Throws as `enter`. */
function inSlot(work: Promise<void>, enter: () => () => void): Promise<void> {
  // Nobody waits for the work where there is no slot.
  work.catch(() => undefined);
  return work.finally(enter());
}

/** A device is noted as seen at most this often, ms. */
const SEEN_EVERY_MS = MINUTE_MS;

/**
 * Takes requests through all steps, and tracks those under way. A request is counted from its admission until it is
 * answered and the work it waits for has ended, even if its client has disconnected.
 */
export class Pipeline<P extends HttpParts> implements RequestHooks {
  readonly wireShape: Shape;
  readonly writer: ResponseWriter;
  readonly authenticator: Authenticator;
  readonly rates: DeviceRates;
  readonly budgets: RequestBudgets;
  readonly connections: Connections;
  private readonly router: Router<P>;
  /** Number of requests that wait for their admission or for their handler's answer (`RequestContext.waiting`). */
  underWay = 0;
  /**
   * Those of them that are long polls. A Set of all would hold requests beyond the next minor collections: its abandoned
   * tables refer to one another (bench S3).
   */
  private readonly polls = new Set<RequestContext>();
  private whenIdle: (() => void)[] = [];
  private ending = false;

  constructor(
    rows: readonly Row<P>[],
    private readonly app: P,
    room: () => number,
    isExhausted: () => boolean,
  ) {
    const { config, clock, log } = app;
    this.wireShape = config.wireShape;
    this.router = new Router(rows);
    const proxies = new TrustedProxies(config.trustedProxies);
    this.budgets = new RequestBudgets(clock, proxies, app.bounds);
    this.connections = new Connections({ clock, log, proxies, room, isExhausted });
    this.writer = new ResponseWriter(app, proxies, this.budgets);
    this.authenticator = new Authenticator(app);
    this.rates = new DeviceRates({ read: config.rateReadPerS, write: config.rateWritePerS }, clock);
  }

  /**
   * Copies a request, assigns its id and registers for its end. Every request begins here, upgrades too. Undefined: it
   * was refused, for a fault in its framing, or since its address has had its share of scarce connections.
   */
  begin(res: HttpResponse, req: HttpRequest): RequestContext | undefined {
    const { clock } = this.app;
    const ctx = new RequestContext(res, req, clock.now(), this);
    res.onAborted(() => {
      ctx.aborted = true;
      ctx.end();
      ctx.unsent?.();
    });
    this.writer.identify(ctx);
    let refusal: ServiceError | undefined;
    if (ctx.framing !== undefined) refusal = invalid('framing', ctx.framing);
    else if (this.connections.scarce) refusal = this.connections.refusalOf(res);
    if (refusal === undefined) return ctx;
    ctx.closing = 'cut';
    this.writer.fail(ctx, refusal);
    return undefined;
  }

  now(): number {
    return this.app.clock.now();
  }

  /** Takes one request through all steps. Never throws. */
  readonly handle = (res: HttpResponse, req: HttpRequest): void => {
    const ctx = this.begin(res, req);
    if (ctx === undefined) return;
    try {
      const row = this.rowOf(ctx);
      if (row !== undefined) this.admitAndRun(ctx, row);
    } catch (error) {
      this.writer.fail(ctx, error);
    }
  };

  /** The row of the table, or undefined where the reply is out already. */
  private rowOf(ctx: RequestContext): Row<P> | undefined {
    const route = this.router.find(ctx.path);
    if (route === undefined) throw new ServiceError('not_found', 'no such route');
    ctx.route = route.path;
    ctx.id = route.id;
    const row = route.methods.get(ctx.method);
    if (row !== undefined) return row;
    if (ctx.method === 'OPTIONS' && ctx.preflightMethod !== '' && this.writer.allows(ctx.origin)) {
      this.writer.preflight(ctx, route.allow);
    } else {
      this.writer.fail(ctx, new ServiceError('method_not_allowed'), [['allow', route.allow]]);
    }
    return undefined;
  }

  private admitAndRun(ctx: RequestContext, row: Row<P>): void {
    if (row.stream === true) return this.admitStream(ctx, row);
    const { form } = row;
    if (form !== undefined && acceptsHtml(ctx.accept)) ctx.refusalPage = (refusal) => form(refusal, ctx, this.app).text;
    const admitted = this.admit(ctx, row);
    if (row.body === 0) return this.runAfter(admitted, ctx, row);
    // The body may arrive while the request waits for its admission: it is read from the start, and kept until then.
    const reader = readBody(ctx, row.body, admitted === undefined, (body) => this.run(ctx, row, body));
    if (admitted !== undefined) this.hold(ctx, admitted, () => reader.admit());
  }

  /** The body is not read before the signature is verified: else any client could make the server buffer data. */
  private admitStream(ctx: RequestContext, row: Row<P>): void {
    // A signed URL is for one length, which a chunked body does not declare.
    if (ctx.chunked || !ctx.lengthDeclared) throw invalid('content-length', 'required');
    const admission = this.admit(ctx, row);
    const { clock, transfers } = this.app;
    // Its first bytes are kept while it waits: so it takes the slot of a transfer from then on.
    const admitted = admission && inSlot(admission, () => mounted(transfers).enter(ctx.tenantId));
    ctx.upload = new UploadStream(ctx, clock, (pace) => transfers?.tooSlow(ctx.tenantId, pace) ?? true);
    this.runAfter(admitted, ctx, row);
  }

  /** Runs a request whose body is not buffered, as soon as it is admitted. */
  private runAfter(admitted: Promise<void> | undefined, ctx: RequestContext, row: Row<P>): void {
    if (admitted === undefined) this.run(ctx, row, NO_BYTES);
    else this.hold(ctx, admitted, () => this.run(ctx, row, NO_BYTES));
  }

  /** All checks before the body. Undefined when they passed synchronously; throws, or rejects, with the refusal. */
  private admit(ctx: RequestContext, row: Row<P>): Promise<void> | undefined {
    if (row.apex === true) {
      this.authenticator.checkApex(ctx.host);
      return this.admitUnauthenticated(ctx, row);
    }
    // Health and the like belong to no tenant: they answer for any host.
    if (row.tenantless !== true) ctx.tenantId = this.authenticator.tenantOf(ctx.host);
    else if (row.raw !== true && row.auth !== 'admin') return undefined;
    if (row.auth === 'admin') return this.admitOperator(ctx);
    if (row.auth === 'url') return this.admitSigned(ctx, row);
    if (row.auth !== 'device') return this.admitUnauthenticated(ctx, row);
    const known = this.authenticator.recall(ctx.authorization, ctx.tenantId);
    if (known !== undefined) {
      this.claim(ctx, known.owner);
      this.admitDevice(ctx, row, known);
      return undefined;
    }
    const claims = this.authenticator.claimsOf(bearerOf(ctx.authorization), ctx.tenantId);
    this.claim(ctx, ownerOf(claims));
    const caller = this.authenticator.callerOf(claims);
    if (caller instanceof Promise) return caller.then((found) => this.admitNew(ctx, row, found));
    this.admitNew(ctx, row, caller);
    return undefined;
  }

  private admitNew(ctx: RequestContext, row: Row<P>, caller: Caller): void {
    this.authenticator.remember(ctx.authorization, caller);
    this.admitDevice(ctx, row, caller);
  }

  /** Charges the request to this owner from now on. Throws as `RequestBudgets.enter`. */
  claim(ctx: RequestContext, owner: string): void {
    ctx.owner = owner;
    this.budgets.enter(ctx);
  }

  private admitDevice(ctx: RequestContext, row: Row<P>, caller: Caller): void {
    const { actor, device } = caller;
    ctx.caller = caller;
    ctx.deviceId = device.id;
    checkState(actor.state, row.state);
    if (row.limit === 'read' || row.limit === 'write') {
      // A chunked body is charged one byte now, and the rest when its length is known.
      const bytes = row.body === 0 ? 0 : ctx.chunked ? 1 : ctx.contentLength;
      ctx.bucket = this.rates.take(ctx.owner, row.limit, bytes);
    }
    // Checked here too: most requests need not enter that file (ARCH-14).
    if (Math.abs(this.now() - (device.notedAt ?? 0) * 1_000) >= SEEN_EVERY_MS)
      this.app.devices.touch(ctx.tenantId, device);
  }

  /** The signature replaces the token: it was issued to a device of the tenant that it names (reference, Blobs). */
  private admitSigned(ctx: RequestContext, row: Row<P>): Promise<void> | undefined {
    const transfers = mounted(this.app.transfers);
    // The end of a chunked request is unknown, so its connection would have to be closed, which a download does not do.
    if (row.method !== 'PUT' && ctx.chunked) throw invalid('transfer-encoding', 'a download has no body');
    const { tenantId } = transfers.check(ctx);
    // A URL is valid on its own tenant's host only.
    if (tenantId !== ctx.tenantId) throw new ServiceError('url_invalid');
    // The URL does not name a device: all of a tenant's transfers share one owner.
    this.claim(ctx, `${tenantId}/`);
    const actor = this.authenticator.actorOf(tenantId);
    if (actor instanceof Promise) return actor.then(({ state }) => checkState(state, row.state));
    checkState(actor.state, row.state);
    return undefined;
  }

  private admitOperator(ctx: RequestContext): Promise<void> {
    this.budgets.enter(ctx);
    const { authorization } = ctx;
    const { config, addressLimits } = this.app;
    return checkAdmin({ authorization, address: this.budgets.addressOf(ctx) }, config.adminToken, addressLimits);
  }

  private admitUnauthenticated(ctx: RequestContext, row: Row<P>): Promise<void> | undefined {
    // Charged before anything asynchronous, and while the response still has its peer's address.
    this.budgets.enter(ctx);
    return row.state === 'any' && !isOfAddress(row.limit)
      ? undefined
      : this.admitLimited(ctx, row, this.budgets.addressOf(ctx));
  }

  private async admitLimited(ctx: RequestContext, { state, limit }: Row<P>, address: string): Promise<void> {
    if (state !== 'any') checkState((await this.authenticator.actorOf(ctx.tenantId, 'together')).state, state);
    if (isOfAddress(limit)) await this.app.addressLimits.take(limit, address);
  }

  private run(ctx: RequestContext, row: Row<P>, body: Body): void {
    if (ctx.over) return;
    try {
      if (body instanceof ServiceError) throw body;
      // The length of a chunked body is known only now.
      if (ctx.chunked && ctx.bucket !== undefined) ctx.bucket.bodies -= body.length;
      // A copy: the library reuses its memory.
      if (row.raw === true) ctx.bytes = Uint8Array.from(body);
      else if (row.form !== undefined) takeForm(ctx, body);
      else if (row.fastPath !== undefined && this.runFastPath(ctx, row.fastPath, body)) return;
      else if (row.body > 0) takeBody(ctx, body);
      // Not earlier, since the body may decide the shape of this refusal.
      if (ctx.fault !== undefined) throw ctx.fault;
      if (row.reply === undefined) this.runFor(ctx, row);
      else this.runWithRoom(ctx, row, row.reply);
    } catch (error) {
      this.writer.fail(ctx, error);
    }
  }

  /**
   * False: the body is still to be parsed, and the row's handler to be run. A malformed query is refused only after that,
   * since the body may decide the shape of the refusal.
   */
  private runFastPath(ctx: RequestContext, fastPath: FastPath<P>, bytes: Buffer): boolean {
    if (ctx.fault !== undefined || ctx.caller === undefined || !this.authenticator.holds(ctx.caller)) return false;
    const answer = fastPath(ctx, bytes, this.app);
    if (answer !== undefined) this.answer(ctx, answer);
    return answer !== undefined;
  }

  /** A long reply is read from the database only when there is room for it. */
  private runWithRoom(ctx: RequestContext, row: Row<P>, bytes: number): void {
    ctx.room = this.budgets.holding(ctx);
    const reserved = this.budgets.of(ctx).replies.reserve(ctx.room, bytes);
    if (reserved === 'held') this.runFor(ctx, row);
    else {
      this.hold(ctx, reserved, (verdict) => {
        if (ctx.over) return;
        if (verdict !== 'held') throw refusalOf(verdict, 'bytes of replies');
        this.runFor(ctx, row);
      });
    }
  }

  /** While the request waited its device may have been revoked, or the actor unloaded: the caller is checked again. */
  private runFor(ctx: RequestContext, row: Row<P>): void {
    const holds = row.auth !== 'device' || (ctx.caller !== undefined && this.authenticator.holds(ctx.caller));
    if (holds) return this.answer(ctx, row.run(ctx, this.app));
    const go = (found: Caller): void => {
      // The client has disconnected: a handler must not touch the response any more, not even for the peer's address.
      if (ctx.over) return;
      ctx.caller = found;
      this.answer(ctx, row.run(ctx, this.app));
    };
    const caller = this.authenticator.callerOf(ctx.sender.claims);
    if (caller instanceof Promise) this.hold(ctx, caller, go);
    else go(caller);
  }

  private answer(ctx: RequestContext, answer: Answer | Promise<Answer> | typeof LATER): void {
    if (answer === LATER) {
      // A refusal may have been given but not written yet: that of a chunked request is written in the next turn.
      if (!ctx.over && !ctx.settled) this.wait(ctx);
      return;
    }
    if (!(answer instanceof Promise)) return this.writer.answer(ctx, answer);
    this.hold(ctx, answer, (value) => this.writer.answer(ctx, value));
    if (ctx.giveUp === undefined) return;
    this.polls.add(ctx);
    // A long poll may be evicted: it is answered early, to make room for other requests.
    if (ctx.place !== undefined) ctx.place.giveWay = () => this.giveUp(ctx);
    if (this.ending) this.giveUp(ctx);
  }

  answerLater(ctx: RequestContext, answer: Answer): void {
    this.settle(ctx);
    this.writer.answer(ctx, answer);
    this.notifyIdle();
  }

  refuseLater(ctx: RequestContext, error: unknown): void {
    this.settle(ctx);
    this.writer.fail(ctx, error);
    this.notifyIdle();
  }

  /**
   * Continues with the result of `wait`. Its rejection, or an error thrown by `go`, becomes the request's refusal. The
   * request counts as under way until then.
   */
  hold<T>(ctx: RequestContext, wait: Promise<T>, go: (value: T) => void): void {
    this.wait(ctx);
    wait.then(
      (value) => this.resume(ctx, go, value),
      (error: unknown) => this.resume(ctx, (fault) => this.writer.fail(ctx, fault), error),
    );
  }

  private resume<T>(ctx: RequestContext, go: (value: T) => void, value: T): void {
    this.settle(ctx);
    try {
      go(value);
    } catch (error) {
      this.writer.fail(ctx, error);
    }
    this.notifyIdle();
  }

  private wait(ctx: RequestContext): void {
    if (!ctx.waiting) this.underWay++;
    ctx.waiting = true;
  }

  private settle(ctx: RequestContext): void {
    if (ctx.waiting) this.underWay--;
    ctx.waiting = false;
    this.polls.delete(ctx);
    if (!ctx.over) return;
    this.budgets.leave(ctx);
    this.budgets.releaseRoom(ctx);
  }

  /** Called once for every request. Work that it waits for is still under way, and still needs its room. */
  over(ctx: RequestContext): void {
    if (!ctx.waiting) this.budgets.leave(ctx);
    else if (ctx.room?.amount === 0) this.budgets.releaseRoom(ctx);
  }

  private notifyIdle(): void {
    if (this.underWay === 0) for (const wake of this.whenIdle.splice(0)) wake();
  }

  /** Answers a long poll early; any other request goes on waiting. */
  private giveUp(ctx: RequestContext): void {
    const { giveUp } = ctx;
    if (giveUp === undefined) return;
    ctx.status = 202;
    this.writer.answer(ctx, giveUp);
  }

  /**
   * From now on each answer closes its connection, and long polls are answered. Called while the sockets are being
   * closed: a connection that is kept until the end of the stop would be cut off while it carries its next request.
   */
  beginEnd(): void {
    this.writer.closing = true;
    this.ending = true;
    for (const ctx of this.polls) this.giveUp(ctx);
  }

  /** Resolves when every request has its answer. */
  drained(): Promise<void> {
    return new Promise((resolve) => {
      if (this.underWay === 0) resolve();
      else this.whenIdle.push(resolve);
    });
  }
}
