/** Opens a socket: every check of a request, then the upgrade (reference, Sockets, Opening). */
import type { HttpRequest, HttpResponse, us_socket_context_t } from 'uWebSockets.js';
import type { TokenClaims } from '../http/tokens.js';
import { CLOSE } from '../../protocol/close-codes.js';
import { invalid, ServiceError, unavailable } from '../../protocol/errors.js';
import { retryAfterReason } from '../../protocol/retry-after.js';
import type { Shape } from '../../protocol/shape.js';
import { bearerOf, checkState, ownerOf, type Caller } from '../http/authenticate.js';
import { TurnedAway, type Admission } from './admission.js';
import type { Pipeline } from '../http/pipeline.js';
import { DeviceSocket, type Wire } from './device-socket.js';
import type { FairBudget } from '../http/limits.js';
import type { HttpParts, SocketParts } from '../http/ports.js';
import type { RequestContext } from '../http/request.js';
import { elsewhereSeconds, type Sockets } from './socket.js';

/** What the library needs for the upgrade; headers are copied, since the request object becomes invalid. */
type Handshake = [key: string, protocol: string, extensions: string, context: us_socket_context_t];

/** The one path that is upgraded. */
export const SOCKET_PATH = '/ws';

/** `?token=` or `?ticket=`; undefined if absent. Throws `bad_token` if it is given twice (reference, HTTP, Tokens). */
function credential(ctx: RequestContext, name: 'token' | 'ticket'): string | undefined {
  const value = ctx.query.get(name);
  if (value === null) throw new ServiceError('bad_token', `${name}: given more than once`);
  return value;
}

/** The socket that is being opened, from the library's `open` until `Upgrader.open` takes it. */
const opening: Wire[] = [];

/**
 * The library's handler for `open`: a built-in function. A JavaScript function may be compiled, or its types collected,
 * at that moment, which allocates in memory that the library has freed and still reads (reference, Dependencies).
 */
export const noteOpening = opening.push.bind(opening) as (wire: Wire) => void;

/** The steps of a request that an upgrade also takes. */
type Steps = Pick<
  Pipeline<HttpParts>,
  'begin' | 'hold' | 'writer' | 'authenticator' | 'claim' | 'rates' | 'connections'
>;

/** Opens sockets: checks the upgrade like a request, then passes the connection to `Sockets`. */
export class Upgrader {
  /** While the server stops, no socket is opened. */
  closing = false;
  /** The server is being drained: new sockets are sent to another instance. */
  draining = false;

  constructor(
    private readonly app: SocketParts,
    private readonly parts: {
      readonly pipeline: Steps;
      readonly sockets: Sockets;
      readonly unsent: FairBudget;
      readonly admission: Admission;
    },
  ) {}

  /** The connection was closed, possibly while it was being opened. */
  closed(wire: Wire, code: number): void {
    if (opening.pop() === undefined) this.parts.sockets.closed(wire, code);
    else this.parts.pipeline.connections.upgraded();
  }

  /** Never throws: a refusal is answered like that of any other request (reference, Errors). */
  handle(res: HttpResponse, req: HttpRequest, context: us_socket_context_t): void {
    const version = req.getHeader('sec-websocket-version');
    const handshake: Handshake = [
      req.getHeader('sec-websocket-key'),
      req.getHeader('sec-websocket-protocol'),
      req.getHeader('sec-websocket-extensions'),
      context,
    ];
    const { pipeline } = this.parts;
    const ctx = pipeline.begin(res, req);
    if (ctx === undefined) return;
    ctx.route = SOCKET_PATH;
    try {
      this.checkForm(ctx, version);
      const caller = this.callerOf(ctx);
      if (caller instanceof Promise) pipeline.hold(ctx, caller, (found) => this.open(ctx, handshake, found));
      else this.open(ctx, handshake, caller);
    } catch (error) {
      pipeline.writer.fail(ctx, error);
    }
  }

  private checkForm(ctx: RequestContext, version: string): void {
    if (ctx.upgrade.toLowerCase() !== 'websocket') throw invalid('upgrade', 'must be websocket');
    if (version !== '13') throw invalid('sec-websocket-version', 'must be 13');
    // The body would be read as frames.
    if (ctx.chunked || ctx.contentLength > 0) throw invalid('body', 'must be absent');
  }

  /** The Authorization header takes precedence over `?token=`, that over `?ticket=` (reference, HTTP, Tokens). */
  private callerOf(ctx: RequestContext): Caller | TurnedAway | Promise<Caller | TurnedAway> {
    const { authenticator } = this.parts.pipeline;
    ctx.tenantId = authenticator.tenantOf(ctx.host);
    const given = ctx.authorization === '' ? credential(ctx, 'token') : bearerOf(ctx.authorization);
    const ticket = given === undefined && ctx.authorization === '' ? credential(ctx, 'ticket') : undefined;
    if (ticket === '') throw new ServiceError('no_token');
    if (ticket !== undefined) return this.byTicket(ctx, ticket);
    const claims = authenticator.claimsOf(given, ctx.tenantId);
    const known = authenticator.knownCallerOf(claims);
    if (known === undefined) return this.byClaims(ctx, claims, () => authenticator.callerOf(claims, 'together'));
    // Not charged as under way: this request is over before `handle` returns.
    ctx.owner = known.owner;
    return known;
  }

  private byTicket(ctx: RequestContext, text: string): TurnedAway | Promise<Caller | TurnedAway> {
    const { tenantId } = ctx;
    const bad = (): ServiceError => new ServiceError('bad_token', 'the ticket is unknown, used or expired');
    const ticket = this.app.tickets.readSocket(text, tenantId);
    if (ticket === undefined) throw bad();
    const { spend, ...right } = ticket;
    const claims = { tenantId, ...right };
    return this.byClaims(ctx, claims, async () => {
      // A request that is refused for its form does not use up the ticket, but counts.
      if (ctx.fault !== undefined) {
        this.parts.pipeline.rates.take(ctx.owner, 'read');
        throw ctx.fault;
      }
      if (!(await spend())) throw bad();
      return this.parts.pipeline.authenticator.callerOf(claims, 'together');
    });
  }

  /** Queries the database once admitted. A draining server no longer queries it. */
  private byClaims(
    ctx: RequestContext,
    claims: TokenClaims,
    find: () => Caller | Promise<Caller>,
  ): TurnedAway | Promise<Caller | TurnedAway> {
    const { pipeline, admission } = this.parts;
    pipeline.claim(ctx, ownerOf(claims));
    // Connections that wait for admission hold descriptors as sockets do.
    const open = this.app.tenants.actors.get(ctx.tenantId)?.sessionCount ?? 0;
    const refused = this.refused(admission.pending, open + admission.waitingOf(ctx.tenantId));
    if (refused !== undefined) return refused;
    // For a client that has disconnected meanwhile nothing is queried; the value returned instead is not used.
    const work = async (): Promise<Caller | TurnedAway> => (ctx.over ? this.elsewhere(CLOSE.restart) : find());
    return admission.take(ctx, work);
  }

  /**
   * Neither a draining server nor one with its maximum of sockets opens another; undefined: it may. `own`: sockets that
   * the tenant has here, or that wait.
   */
  private refused(opening: number, own: number): TurnedAway | undefined {
    if (this.draining) return this.elsewhere(CLOSE.restart);
    return this.parts.sockets.isFull(opening, own) ? this.elsewhere(CLOSE.overloaded) : undefined;
  }

  private elsewhere(code: TurnedAway['code']): TurnedAway {
    return new TurnedAway(code, elsewhereSeconds());
  }

  /** The shape comes from the URL only: browsers cannot set headers of a socket (reference, HTTP, The two shapes). */
  private shapeOf(ctx: RequestContext): Shape {
    const named = ctx.query.get('shape');
    return named === 'a' || named === 'b' ? named : this.app.config.wireShape;
  }

  private open(ctx: RequestContext, handshake: Handshake, found: Caller | TurnedAway): void {
    if (ctx.over) return;
    const { pipeline, sockets, unsent } = this.parts;
    if (this.closing) return pipeline.writer.refuse(ctx, unavailable('the server is stopping'));
    if (found instanceof TurnedAway) return this.turnAway(ctx, handshake, found);
    const { actor, device } = found;
    const refused = this.refused(0, actor.sessionCount);
    if (refused !== undefined) return this.turnAway(ctx, handshake, refused);
    ctx.deviceId = device.id;
    checkState(actor.state, 'read');
    pipeline.rates.take(ctx.owner, 'read');
    sockets.admit(actor, device.id);
    if (ctx.fault !== undefined) throw ctx.fault;
    this.app.devices.touch(ctx.tenantId, device);
    const socket = new DeviceSocket(found, this.shapeOf(ctx), unsent);
    const wire = this.upgrade(ctx, handshake);
    if (wire === undefined) return;
    wire.getUserData().socket = socket;
    socket.wire = wire;
    sockets.opened(socket);
  }

  /**
   * Opens it only to close it with a time to come back: a script in a browser cannot read the refusal of an upgrade.
   */
  private turnAway(ctx: RequestContext, handshake: Handshake, { code, seconds }: TurnedAway): void {
    // The rate limit applies to devices that do not wait until that time.
    this.parts.pipeline.rates.take(ctx.owner, 'read');
    this.app.meter?.turnedAway(code === CLOSE.restart ? 'drain' : 'admission');
    this.upgrade(ctx, handshake)?.end(code, retryAfterReason(seconds));
  }

  /** As `upgraded`; the connection is no HTTP connection any more. */
  private upgrade(ctx: RequestContext, handshake: Handshake): Wire | undefined {
    const wire = upgraded(ctx, handshake);
    if (wire !== undefined) this.parts.pipeline.connections.upgraded();
    return wire;
  }
}

/** Upgrades the connection; undefined if it is already closed. */
function upgraded(ctx: RequestContext, handshake: Handshake): Wire | undefined {
  ctx.end();
  // After the callback the library reads the response once more, though the upgrade has freed the end of it. Memory
  // allocated there meanwhile may contain a bit that means "close". So no JavaScript function runs in between: no
  // callback, no `open`, and no property is set (reference, Dependencies).
  const { res } = ctx;
  res.cork(res.upgrade.bind(res, {}, ...handshake));
  return opening.pop();
}
