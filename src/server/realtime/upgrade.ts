/** Opening a socket: every check of a request, then the upgrade (reference, Sockets, Opening). */
import type { HttpRequest, HttpResponse, us_socket_context_t } from 'uWebSockets.js';
import type { TokenClaims } from '../http/tokens.js';
import { invalid, ServiceError, unavailable } from '../../protocol/errors.js';
import type { Shape } from '../../protocol/shape.js';
import { bearerOf, checkState, type Caller } from '../http/authenticate.js';
import type { Pipeline } from '../http/pipeline.js';
import { DeviceSocket, type SocketRoom, type Wire } from './device-socket.js';
import type { HttpParts } from '../http/ports.js';
import type { RequestContext } from '../http/request.js';
import type { Sockets, SocketsOptions } from './socket.js';

/** What the library needs for the upgrade; copied, since the request object becomes invalid. */
interface Handshake {
  readonly key: string;
  readonly protocol: string;
  readonly extensions: string;
  readonly version: string;
  readonly context: us_socket_context_t;
}

/** The one path that is upgraded. */
export const SOCKET_PATH = '/ws';

/** `?token=` or `?ticket=`; undefined where absent. Throws `bad_token` when it is given twice (reference, HTTP, Tokens). */
function credential(ctx: RequestContext, name: 'token' | 'ticket'): string | undefined {
  const value = ctx.query.get(name);
  if (value === null) throw new ServiceError('bad_token', `${name}: given more than once`);
  return value;
}

/** The socket that is being opened, from the library's `open` to `Upgrader.open`. */
const opening: Wire[] = [];

/**
 * The library's handler for `open`: a built-in function. A function of ours may be compiled, or its types collected, at
 * that moment, which allocates in memory that the library has freed and still reads (reference, Dependencies).
 */
export const noteOpening = opening.push.bind(opening) as (wire: Wire) => void;

/** What sockets need in addition to what requests do. */
export interface SocketParts extends HttpParts {
  /** Tickets that open one socket each (reference, HTTP, Tokens). */
  readonly tickets: {
    redeemSocket(
      ticket: string,
      tenantId: string,
    ): Promise<{ readonly deviceId: string; readonly epoch: number; readonly tokenExpiresAt: number } | undefined>;
  };
  readonly presence: SocketsOptions['presence'];
}

/** The steps of a request that an upgrade takes too. */
type Admission = Pick<
  Pipeline<HttpParts>,
  'begin' | 'hold' | 'writer' | 'authenticator' | 'budgets' | 'claim' | 'rates'
>;

/** Opens sockets: checks the upgrade like a request, then passes the connection to `Sockets`. */
export class Upgrader {
  /** While the server stops, no socket is opened. */
  closing = false;

  constructor(
    private readonly app: SocketParts,
    private readonly pipeline: Admission,
    private readonly sockets: Sockets,
    private readonly room: SocketRoom,
  ) {}

  /** The connection was closed, maybe while it was being opened. */
  closed(wire: Wire, code: number): void {
    if (opening.pop() === undefined) this.sockets.closed(wire, code);
  }

  /** Never throws: a refusal is answered like that of any other request (reference, Errors). */
  handle(res: HttpResponse, req: HttpRequest, context: us_socket_context_t): void {
    const handshake: Handshake = {
      key: req.getHeader('sec-websocket-key'),
      protocol: req.getHeader('sec-websocket-protocol'),
      extensions: req.getHeader('sec-websocket-extensions'),
      version: req.getHeader('sec-websocket-version'),
      context,
    };
    const ctx = this.pipeline.begin(res, req);
    if (ctx.framing !== undefined) return;
    ctx.route = SOCKET_PATH;
    try {
      this.checkForm(ctx, handshake);
      const caller = this.callerOf(ctx);
      if (caller instanceof Promise) {
        this.pipeline.hold(ctx, caller, (found) => this.open(ctx, handshake, found));
      } else this.open(ctx, handshake, caller);
    } catch (error) {
      this.pipeline.writer.fail(ctx, error);
    }
  }

  private checkForm(ctx: RequestContext, handshake: Handshake): void {
    if (ctx.upgrade.toLowerCase() !== 'websocket') throw invalid('upgrade', 'must be websocket');
    if (handshake.version !== '13') throw invalid('sec-websocket-version', 'must be 13');
    // The body would be read as frames.
    if (ctx.chunked || ctx.contentLength > 0) throw invalid('body', 'must be absent');
  }

  /** The Authorization header takes precedence over `?token=`, that over `?ticket=` (reference, HTTP, Tokens). */
  private callerOf(ctx: RequestContext): Caller | Promise<Caller> {
    const { authenticator, budgets } = this.pipeline;
    ctx.tenantId = authenticator.tenantOf(ctx.host);
    const given = ctx.authorization === '' ? credential(ctx, 'token') : bearerOf(ctx.authorization);
    const ticket = given === undefined && ctx.authorization === '' ? credential(ctx, 'ticket') : undefined;
    if (ticket === '') throw new ServiceError('no_token');
    if (ticket !== undefined) {
      // Charged as an unauthenticated client's until the ticket has been verified.
      budgets.enter(ctx);
      return this.redeem(ctx, ticket);
    }
    const claims = authenticator.claimsOf(given, ctx.tenantId);
    const known = authenticator.knownCallerOf(claims);
    if (known === undefined) {
      this.pipeline.claim(ctx, claims);
      return authenticator.callerOf(claims);
    }
    // Not charged as under way: this request is over before `handle` returns.
    ctx.claims = claims;
    ctx.owner = known.owner;
    return known;
  }

  private async redeem(ctx: RequestContext, ticket: string): Promise<Caller> {
    const { tenantId } = ctx;
    const right = await this.app.tickets.redeemSocket(ticket, tenantId);
    if (right === undefined) throw new ServiceError('bad_token', 'the ticket is unknown, used or expired');
    const { deviceId, epoch, tokenExpiresAt: expiresAt } = right;
    const claims: TokenClaims = { tenantId, deviceId, epoch, expiresAt };
    this.pipeline.budgets.leave(ctx);
    this.pipeline.claim(ctx, claims);
    return this.pipeline.authenticator.callerOf(claims);
  }

  /** The shape comes from the URL only: browsers cannot set headers of a socket (reference, HTTP, The two shapes). */
  private shapeOf(ctx: RequestContext): Shape {
    const named = ctx.query.get('shape');
    return named === 'a' || named === 'b' ? named : this.app.config.wireShape;
  }

  private open(ctx: RequestContext, handshake: Handshake, { actor, device }: Caller): void {
    if (ctx.over) return;
    if (this.closing) return this.pipeline.writer.refuse(ctx, unavailable('the server is stopping'));
    ctx.deviceId = device.id;
    checkState(actor.state, 'read');
    this.pipeline.rates.take(ctx.owner, 'read');
    this.sockets.admit(actor, device.id);
    if (ctx.fault !== undefined) throw ctx.fault;
    this.app.devices.touch(ctx.tenantId, device);
    const socket = new DeviceSocket(
      {
        actor,
        deviceId: device.id,
        tokenEpoch: ctx.claims.epoch,
        shape: this.shapeOf(ctx),
        expiresAt: ctx.claims.expiresAt,
        room: this.room,
      },
      this.app.clock.now(),
    );
    ctx.end();
    const { key, protocol, extensions, context } = handshake;
    // After the callback the library reads the response once more, though the upgrade has freed the end of it. Memory
    // that was allocated there meanwhile may contain a bit that means "close". So nothing of ours runs in between: no
    // callback, no `open`, and no property is set (reference, Dependencies).
    const { res } = ctx;
    res.cork(res.upgrade.bind(res, {}, key, protocol, extensions, context));
    const wire = opening.pop();
    if (wire === undefined) return; // it is closed already
    wire.getUserData().socket = socket;
    socket.wire = wire;
    this.sockets.opened(socket);
  }
}
