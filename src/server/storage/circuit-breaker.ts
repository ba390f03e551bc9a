/**
 * A circuit breaker for the database. A database that hangs, or lies behind an open connection that carries nothing,
 * neither refuses nor answers: each statement would wait for its own time limit, and those queued behind it for longer.
 * So a health check (`SELECT 1` on its own connection) is sent when no connection has received anything for a second,
 * and every three seconds while that lasts. If neither it nor a second one on a fresh connection is answered, the
 * circuit opens: every connection is cut, so that all callers fail at once, and no new one is tried until a health
 * check succeeds. Time is the machine's, as for the driver's own limits.
 *
 * Slow is not silent. On a busy machine a fresh connection may take seconds, and replacing working connections would
 * keep it busy. So a health check fails only if nothing was received for some time on any connection; slow answers are
 * waited for.
 */
import { Socket } from 'node:net';
import pg from 'pg';
import { systemClock, type Clock, type Timer } from '../../protocol/clock.js';
import { openClient } from './database.js';
import { hostsOf } from './database-hosts.js';

/** How often it looks whether anything was received while all is well, ms. */
const CHECK_MS = 1_000;
/**
 * While nothing is, the first and then every third time sends a health check: each second they would be half of what an
 * idle instance does.
 */
const QUIET_CHECKS = 3;
/** Between two health checks while the circuit is open, ms. */
const RETRY_MS = 500;
/**
 * A health check fails if nothing was received for this time, ms; for a fresh connection the server starts a process.
 */
const ANSWER_MS = 2_000;
const OPEN_MS = 4_000;
/** How long a health check may take while data arrives, ms; a fresh connection takes half a dozen round trips. */
const SLOW_MS = 15_000;
/** The last part of SLOW_MS, ms: for the error of a statement that the server itself has cancelled to arrive. */
const GRACE_MS = 500;

/** A socket whose connection attempt fails at once. */
class RefusedSocket extends Socket {
  override connect(): this {
    return this.destroy(Object.assign(new Error('the database is out of reach'), { code: 'ECONNREFUSED' }));
  }
}

interface CircuitBreakerOptions {
  readonly url: string;
  /** See `ConnectionSettings`; if true, what a connection receives says nothing about the database. */
  readonly pooled?: boolean;
  /** Called with false and the cause when the circuit opens, with true when the database answers again. */
  readonly onChange: (reachable: boolean, cause?: unknown) => void;
  readonly clock?: Clock;
}

/** Bytes that were received on each link. */
type Received = ReadonlyMap<Socket, number>;

type Answer = { readonly kind: 'answered' | 'refused' } | { readonly kind: 'silence'; readonly cause: unknown };

/** One in each process. Pass `link` to every connection that must fail at once while the database is away. */
export class CircuitBreaker {
  private readonly links = new Set<Socket>();
  /** The health check's socket. */
  private probeSocket: Socket | undefined;
  /** Bytes received up to the last check. */
  private received: Received = new Map();
  /** How often in a row nothing was received. */
  private quiet = 0;
  private readonly clock: Clock;
  private client: pg.Client | undefined;
  private timer: Timer | undefined;
  private checking: Promise<void> | undefined;
  /** True from the moment the database is known to be away until it answers again. */
  private away = false;
  /** True while a health check is under way. */
  private probing = false;
  private closed = false;
  private readonly endMoves: () => void;

  constructor(private readonly options: CircuitBreakerOptions) {
    this.clock = options.clock ?? systemClock;
    this.endMoves = hostsOf(options.url).onMoved(() => this.cut());
  }

  /** The socket of a new connection, for pg's `stream`. */
  readonly link = (): Socket => {
    if (this.away) return new RefusedSocket();
    const socket = new Socket();
    this.links.add(socket);
    socket.once('close', () => this.links.delete(socket));
    return socket;
  };

  /**
   * Ends every connection, including the health check's: after a fail-over they lead to a server that takes no more
   * writes, or serve a history that no longer exists. Statements under way fail, and their callers start over.
   */
  cut(): void {
    for (const link of this.links) link.destroy();
    this.probeSocket?.destroy();
  }

  /** Starts the health checks. */
  start(): void {
    this.checkIn(CHECK_MS);
  }

  /**
   * Resolves when the health check under way is over; it is cut off, so stopping does not wait for a silent database.
   */
  async close(): Promise<void> {
    this.closed = true;
    this.endMoves();
    this.timer?.cancel();
    if (this.probing) this.probeSocket?.destroy();
    await this.checking;
    const ended = this.client?.end();
    this.probeSocket?.destroySoon();
    await ended;
  }

  private checkIn(ms: number): void {
    if (this.closed) return;
    this.timer = this.clock.setTimer(ms, () => {
      this.checking = this.check().finally(() => this.checkIn(this.away ? RETRY_MS : CHECK_MS));
    });
  }

  private async check(): Promise<void> {
    const { pooled } = this.options;
    // A pooler answers connections by itself while the database behind it is away.
    const before = this.received;
    this.received = receivedOn(this.links);
    if (pooled !== true && !this.away) {
      if (hasMore(this.received, before)) this.quiet = 0;
      else this.quiet++;
      if (this.quiet % QUIET_CHECKS !== 1) return;
    }
    let answer = await this.probe();
    // Once more, on a fresh connection: only the link may have failed.
    if (answer.kind === 'silence' && !this.closed) answer = await this.probe();
    if (this.closed) return;
    if (answer.kind === 'answered' && this.away) {
      this.away = false;
      this.options.onChange(true);
    } else if (answer.kind === 'silence' && !this.away) {
      if (pooled !== true && hasMore(receivedOn(this.links), this.received)) return;
      this.away = true;
      this.options.onChange(false, answer.cause);
      this.cut();
    }
  }

  /**
   * A refusal is the answer of a server that is starting or full: reachable, but not yet back. A refusal by a pooler
   * counts as silence: it refuses new connections, while earlier statements on others wait there.
   */
  private async probe(): Promise<Answer> {
    let client = this.client;
    this.probing = true;
    const endWatch = this.watch(client === undefined ? OPEN_MS : ANSWER_MS);
    try {
      client ??= await this.open();
      await client.query('SELECT 1');
      this.client = client;
      return { kind: 'answered' };
    } catch (cause) {
      this.client = undefined;
      // Broken or silent: do not wait for the confirmation of its end.
      void client?.end().catch(() => undefined);
      const refused = cause instanceof pg.DatabaseError && this.options.pooled !== true;
      return refused ? { kind: 'refused' } : { kind: 'silence', cause };
    } finally {
      this.probing = false;
      endWatch();
    }
  }

  /** Ends the health check's link when nothing was received for `ms`. Returns a function that ends the watch. */
  private watch(ms: number): () => void {
    const now = (): Received =>
      receivedOn([
        ...(this.probeSocket === undefined ? [] : [this.probeSocket]),
        ...(this.options.pooled === true ? [] : this.links),
      ]);
    let before = now();
    let ended = false;
    const look = (): void => {
      if (ended) return;
      const after = now();
      if (!hasMore(after, before)) this.probeSocket?.destroy(new Error(`the database sent nothing for ${ms} ms`));
      before = after;
      // Also after that: with several servers the search may still be running, and open the link only afterwards.
      timer = this.clock.setTimer(ms, soon);
    };
    // If this process was suspended, or got no CPU for long, the answer may be unread: a whole turn of the event loop
    // reads it first.
    const soon = (): void => void setImmediate(() => setImmediate(look));
    let timer = this.clock.setTimer(ms, soon);
    return () => {
      ended = true;
      timer.cancel();
    };
  }

  private async open(): Promise<pg.Client> {
    const client = await openClient({
      url: this.options.url,
      pooled: this.options.pooled ?? false,
      name: 'service-pulse',
      connectTimeoutMs: SLOW_MS,
      statementTimeoutMs: SLOW_MS - GRACE_MS,
      graceMs: GRACE_MS,
      link: () => (this.probeSocket = new Socket()),
      // The next check determines whether only this link failed.
      onLost: () => {
        if (this.client === client) this.client = undefined;
      },
    });
    return client;
  }
}

const receivedOn = (links: Iterable<Socket>): Received => new Map([...links].map((link) => [link, link.bytesRead]));

/** Whether any link received something since `before`. */
const hasMore = (now: Received, before: Received): boolean =>
  [...now].some(([link, bytes]) => bytes > (before.get(link) ?? 0));
