/** Opening a socket: every check of a request, then the upgrade (reference, Sockets, Opening). */
import type { HttpRequest, HttpResponse, us_socket_context_t } from 'uWebSockets.js';
import type { TokenClaims } from '../http/tokens.js';
import { invalid, ServiceError, unavailable } from '../../protocol/errors.js';
import type { Shape } from '../../protocol/shape.js';
import { bearerOf, checkState, type Caller } from '../http/authenticate.js';
import type { Pipeline } from '../http/pipeline.js';
import { DeviceSocket, type Wire } from './device-socket.js';
import type { HttpParts } from '../http/ports.js';
import type { RequestContext } from '../http/request.js';
import type { Sockets, SocketsOptions } from './socket.js';
import type { SocketRoom } from './unsent.js';

/** What the library needs for the switch; it lives in the request, so it is copied. */
interface Handshake {
  readonly key: string;
  readonly protocol: string;
  readonly extensions: string;
  readonly version: string;
  readonly context: us_socket_context_t;
}

/** Beside `/api`: the one path that is upgraded. */
export const SOCKET_PATH = '/ws';

/**
 * `?token=` or `?ticket=`; undefined where it is not given. What is wrong with it is a bad token, not a bad query
 * (reference, HTTP, Tokens). Throws `bad_token` when it is given twice.
 */
function credential(ctx: RequestContext, name: 'token' | 'ticket'): string | undefined {
  const value = ctx.query.get(name);
  if (value === null) throw new ServiceError('bad_token', `${name}: given more than once`);
  return value;
}

/** The socket that is being opened, between the library's `open` and `Upgrader.open`. */
const opening: Wire[] = [];

/**
 * The library's handler for `open`: a function of the language itself. Where one of ours would be compiled, or its types
 * learnt, at that moment, it would take memory that the library still looks at (reference, Dependencies).
 */
export const noteOpening = opening.push.bind(opening) as (wire: Wire) => void;

/** What sockets need beside what requests do. */
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

/** What of the requests' way an upgrade takes too. */
type Admission = Pick<
  Pipeline<HttpParts>,
  'begin' | 'hold' | 'writer' | 'authenticator' | 'budgets' | 'claim' | 'rates'
>;

/** Opens sockets: checks the upgrade like a request, then hands the connection over to `Sockets`. */
export class Upgrader {
  /** While the server stops, no socket is opened. */
  closing = false;

  constructor(
    private readonly app: SocketParts,
    private readonly pipeline: Admission,
    private readonly sockets: Sockets,
    private readonly room: SocketRoom,
  ) {}

  /** The connection is gone, which may be while it is being opened. */
  closed(wire: Wire, code: number): void {
    if (opening.pop() === undefined) this.sockets.closed(wire, code);
  }

  /** Never throws: what is refused is answered like any other request (reference, Errors). */
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

  /** The Authorization header wins over `?token=`, that over `?ticket=` (reference, HTTP, Tokens). */
  private callerOf(ctx: RequestContext): Caller | Promise<Caller> {
    const { authenticator, budgets } = this.pipeline;
    ctx.tenantId = authenticator.tenantOf(ctx.host);
    const given = ctx.authorization === '' ? credential(ctx, 'token') : bearerOf(ctx.authorization);
    const ticket = given === undefined && ctx.authorization === '' ? credential(ctx, 'ticket') : undefined;
    if (ticket === '') throw new ServiceError('no_token');
    if (ticket !== undefined) {
      // Nobody knows whose it is before it was looked at: until then it is a stranger's.
      budgets.enter(ctx);
      return this.redeem(ctx, ticket);
    }
    const claims = authenticator.claimsOf(given, ctx.tenantId);
    const known = authenticator.knownCallerOf(claims);
    if (known === undefined) {
      this.pipeline.claim(ctx, claims);
      return authenticator.callerOf(claims);
    }
    // What is over before this returns needs no place among the calls under way.
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

  /**
   * A socket's shape stands in its URL; a header, which browsers cannot set on a socket, does not count (reference,
   * HTTP, The two shapes).
   */
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
    // After the callback the library looks at the response once more. The switch has freed the end of it, and whoever
    // took that memory meanwhile may have left a bit there that says "close". So nothing of ours runs in between: no
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
