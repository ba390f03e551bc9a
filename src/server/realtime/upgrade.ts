/** Opening a socket: every check of a request, then the upgrade (reference, Sockets, Opening). */
import type { HttpRequest, HttpResponse, us_socket_context_t } from 'uWebSockets.js';
import type { TokenClaims } from '../http/tokens.js';
import { CLOSE } from '../../protocol/close-codes.js';
import { invalid, ServiceError, unavailable } from '../../protocol/errors.js';
import { retryAfterReason } from '../../protocol/retry-after.js';
import type { Shape } from '../../protocol/shape.js';
import { bearerOf, checkState, ownerOf, type Caller } from '../http/authenticate.js';
import { TurnedAway, type Admission } from './admission.js';
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
    /** What a ticket says, which costs no statement; undefined for one that is altered, late or another tenant's. */
    readSocket(ticket: string, tenantId: string): SocketTicket | undefined;
  };
  readonly presence: SocketsOptions['presence'];
}

/** A socket ticket whose MAC holds. */
interface SocketTicket {
  readonly deviceId: string;
  readonly epoch: number;
  readonly tokenExpiresAt: number;
  /** Uses it up: true for the first caller on any instance. Throws `unavailable`. */
  spend(): Promise<boolean>;
}

/** A device that comes to a drained or a full server is told to come back within so many seconds, at random. */
const ELSEWHERE_S = 10;

/** The steps of a request that an upgrade takes too. */
type Steps = Pick<Pipeline<HttpParts>, 'begin' | 'hold' | 'writer' | 'authenticator' | 'budgets' | 'claim' | 'rates'>;

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
      readonly room: SocketRoom;
      readonly admission: Admission;
      /** Yields a number from 0 to 1 (excluded). */
      readonly random: () => number;
    },
  ) {}

  /** The connection was closed, maybe while it was being opened. */
  closed(wire: Wire, code: number): void {
    if (opening.pop() === undefined) this.parts.sockets.closed(wire, code);
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
    const { pipeline } = this.parts;
    const ctx = pipeline.begin(res, req);
    if (ctx.framing !== undefined) return;
    ctx.route = SOCKET_PATH;
    try {
      this.checkForm(ctx, handshake);
      const caller = this.callerOf(ctx);
      if (caller instanceof Promise) pipeline.hold(ctx, caller, (found) => this.open(ctx, handshake, found));
      else this.open(ctx, handshake, caller);
    } catch (error) {
      pipeline.writer.fail(ctx, error);
    }
  }

  private checkForm(ctx: RequestContext, handshake: Handshake): void {
    if (ctx.upgrade.toLowerCase() !== 'websocket') throw invalid('upgrade', 'must be websocket');
    if (handshake.version !== '13') throw invalid('sec-websocket-version', 'must be 13');
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
    ctx.claims = claims;
    ctx.owner = known.owner;
    return known;
  }

  private byTicket(ctx: RequestContext, text: string): TurnedAway | Promise<Caller | TurnedAway> {
    const { tenantId } = ctx;
    const bad = (): ServiceError => new ServiceError('bad_token', 'the ticket is unknown, used or expired');
    const ticket = this.app.tickets.readSocket(text, tenantId);
    if (ticket === undefined) throw bad();
    const { deviceId, epoch, tokenExpiresAt: expiresAt } = ticket;
    const claims: TokenClaims = { tenantId, deviceId, epoch, expiresAt };
    return this.byClaims(ctx, claims, async () => {
      if (!(await ticket.spend())) throw bad();
      return this.parts.pipeline.authenticator.callerOf(claims, 'together');
    });
  }

  /** The database has to be asked, once the admission lets it in. A server that is drained does not ask it any more. */
  private byClaims(
    ctx: RequestContext,
    claims: TokenClaims,
    find: () => Caller | Promise<Caller>,
  ): TurnedAway | Promise<Caller | TurnedAway> {
    const { pipeline, admission } = this.parts;
    pipeline.claim(ctx, claims);
    // Connections that wait to be let in hold descriptors as sockets do.
    const refused = this.refused(admission.pending);
    if (refused !== undefined) return refused;
    // A client that has gone meanwhile is asked nothing for; what stands for its caller is not looked at.
    const work = async (): Promise<Caller | TurnedAway> => (ctx.over ? this.elsewhere(CLOSE.restart) : find());
    return admission.take({ tenantId: ctx.tenantId, owner: ownerOf(claims) }, work);
  }

  /** Neither a drained server nor one with all the sockets that it can hold opens another; undefined: it may. */
  private refused(opening = 0): TurnedAway | undefined {
    if (this.draining) return this.elsewhere(CLOSE.restart);
    return this.parts.sockets.isFull(opening) ? this.elsewhere(CLOSE.overloaded) : undefined;
  }

  private elsewhere(code: TurnedAway['code']): TurnedAway {
    return new TurnedAway(code, 1 + this.parts.random() * (ELSEWHERE_S - 1));
  }

  /** The shape comes from the URL only: browsers cannot set headers of a socket (reference, HTTP, The two shapes). */
  private shapeOf(ctx: RequestContext): Shape {
    const named = ctx.query.get('shape');
    return named === 'a' || named === 'b' ? named : this.app.config.wireShape;
  }

  private open(ctx: RequestContext, handshake: Handshake, found: Caller | TurnedAway): void {
    if (ctx.over) return;
    const { pipeline, sockets, room } = this.parts;
    if (this.closing) return pipeline.writer.refuse(ctx, unavailable('the server is stopping'));
    if (found instanceof TurnedAway) return this.turnAway(ctx, handshake, found);
    const refused = this.refused();
    if (refused !== undefined) return this.turnAway(ctx, handshake, refused);
    const { actor, device } = found;
    ctx.deviceId = device.id;
    checkState(actor.state, 'read');
    pipeline.rates.take(ctx.owner, 'read');
    sockets.admit(actor, device.id);
    if (ctx.fault !== undefined) throw ctx.fault;
    this.app.devices.touch(ctx.tenantId, device);
    const socket = new DeviceSocket(
      {
        actor,
        deviceId: device.id,
        tokenEpoch: ctx.claims.epoch,
        shape: this.shapeOf(ctx),
        expiresAt: ctx.claims.expiresAt,
        room,
      },
      this.app.clock.now(),
    );
    const wire = upgraded(ctx, handshake);
    if (wire === undefined) return;
    wire.getUserData().socket = socket;
    socket.wire = wire;
    sockets.opened(socket);
  }

  /** Opens it only to say when to come back: a browser's script reads no refusal of an upgrade. */
  private turnAway(ctx: RequestContext, handshake: Handshake, { code, seconds }: TurnedAway): void {
    // The rate holds for a device that does not keep to the time.
    this.parts.pipeline.rates.take(ctx.owner, 'read');
    this.app.meter?.turnedAway(code === CLOSE.restart ? 'drain' : 'admission');
    upgraded(ctx, handshake)?.end(code, retryAfterReason(seconds));
  }
}

/** Upgrades the connection; undefined where it is closed already. */
function upgraded(ctx: RequestContext, { key, protocol, extensions, context }: Handshake): Wire | undefined {
  ctx.end();
  // After the callback the library reads the response once more, though the upgrade has freed the end of it. Memory
  // that was allocated there meanwhile may contain a bit that means "close". So nothing of ours runs in between: no
  // callback, no `open`, and no property is set (reference, Dependencies).
  const { res } = ctx;
  res.cork(res.upgrade.bind(res, {}, key, protocol, extensions, context));
  return opening.pop();
}
