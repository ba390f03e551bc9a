/**
 * A circuit breaker for the database. A database that hangs, or lies behind a connection that is open and carries
 * nothing, neither refuses nor answers: each statement would wait for its own time limit, and those queued behind it
 * for longer. So a health check (`SELECT 1` on its own connection) is sent each second in which no connection received
 * anything. Where it gets no answer, nor does a second one on a fresh connection, the circuit opens: every connection
 * is cut, so that all callers fail at once, and no new one is tried until a health check succeeds. Time is the
 * machine's, as it is for the driver's own limits.
 */
import { Socket } from 'node:net';
import pg from 'pg';
import { systemClock, type Clock, type Timer } from '../../protocol/clock.js';
import { openClient } from './database.js';
import { hostsOf } from './database-hosts.js';

/** Between two health checks while all is well, ms. */
const CHECK_MS = 1_000;
/** Between two health checks while the circuit is open, ms. */
const RETRY_MS = 500;
/** A health check is answered within this time, ms, or has failed. */
const ANSWER_MS = 2_000;
/** A fresh connection takes half a dozen round trips, and as many turns of an event loop that may be busy. */
const OPEN_MS = 4_000;
/** The last part of ANSWER_MS, ms: for the way back of a statement that the server itself has cancelled. */
const GRACE_MS = 500;

/** A socket whose connection attempt fails at once. */
class RefusedSocket extends Socket {
  override connect(): this {
    return this.destroy(Object.assign(new Error('the database is out of reach'), { code: 'ECONNREFUSED' }));
  }
}

/** What the circuit breaker works on. */
export interface CircuitBreakerOptions {
  readonly url: string;
  /** See `ConnectionSettings`: then what a connection receives says nothing about the database. */
  readonly pooled?: boolean;
  /** Called with false and the cause when the circuit opens, with true when the database answers again. */
  readonly onChange: (reachable: boolean, cause?: unknown) => void;
  readonly clock?: Clock;
}

type Answer = { readonly kind: 'answered' | 'refused' } | { readonly kind: 'silence'; readonly cause: unknown };

/** One in each process. Pass `link` to every connection that must fail at once while the database is away. */
export class CircuitBreaker {
  private readonly links = new Set<Socket>();
  /** Bytes that were received on each link by the last check. */
  private received = new Map<Socket, number>();
  private readonly clock: Clock;
  private client: pg.Client | undefined;
  private timer: Timer | undefined;
  private checking: Promise<void> | undefined;
  private away = false;
  private closed = false;
  private readonly endMoves: () => void;

  constructor(private readonly options: CircuitBreakerOptions) {
    this.clock = options.clock ?? systemClock;
    this.endMoves = hostsOf(options.url).onMoved(() => this.cut());
  }

  /** False from the moment it is known to be away until it answers again. */
  get reachable(): boolean {
    return !this.away;
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
   * Ends every connection: they lead to a server that takes no more writes, or tell of a history that is no more.
   * Statements under way fail, and their callers begin anew.
   */
  cut(): void {
    for (const link of this.links) link.destroy();
  }

  /** Begins with the health checks. */
  start(): void {
    this.checkIn(CHECK_MS);
  }

  /** Stops. Resolves when the health check under way is over. */
  async close(): Promise<void> {
    this.closed = true;
    this.endMoves();
    this.timer?.cancel();
    await this.checking;
    await this.client?.end();
  }

  private checkIn(ms: number): void {
    if (this.closed) return;
    this.timer = this.clock.setTimer(ms, () => {
      this.checking = this.check().finally(() => this.checkIn(this.away ? RETRY_MS : CHECK_MS));
    });
  }

  private async check(): Promise<void> {
    // A pooler answers connections of its own accord while the database behind it is away.
    if (this.options.pooled !== true && this.receives() && !this.away) return;
    let answer = await this.ask();
    // Once more, on a fresh connection: only the link may have failed, or this process was suspended and the answer
    // lies unread.
    if (answer.kind === 'silence' && !this.closed) answer = await this.ask();
    if (this.closed) return;
    if (answer.kind === 'answered' && this.away) {
      this.away = false;
      this.options.onChange(true);
    } else if (answer.kind === 'silence' && !this.away) {
      this.away = true;
      this.options.onChange(false, answer.cause);
      this.cut();
    }
  }

  /** Whether any link received something since the last check. */
  private receives(): boolean {
    const before = this.received;
    this.received = new Map([...this.links].map((link) => [link, link.bytesRead]));
    return [...this.received].some(([link, bytes]) => bytes > (before.get(link) ?? 0));
  }

  /**
   * A refusal is the answer of a server that is starting or full: reachable, but not yet back. That of a pooler is
   * silence: it refuses new connections, and what came before on others waits there.
   */
  private async ask(): Promise<Answer> {
    let client = this.client;
    try {
      client ??= await this.open();
      await client.query('SELECT 1');
      this.client = client;
      return { kind: 'answered' };
    } catch (cause) {
      this.client = undefined;
      // Broken or silent: nobody waits for the confirmation of its end.
      void client?.end().catch(() => undefined);
      const refused = cause instanceof pg.DatabaseError && this.options.pooled !== true;
      return refused ? { kind: 'refused' } : { kind: 'silence', cause };
    }
  }

  private open(): Promise<pg.Client> {
    return openClient({
      url: this.options.url,
      pooled: this.options.pooled ?? false,
      name: 'service-pulse',
      connectTimeoutMs: OPEN_MS,
      statementTimeoutMs: ANSWER_MS - GRACE_MS,
      graceMs: GRACE_MS,
      // The next check finds out whether only this link failed.
      onLost: () => (this.client = undefined),
    });
  }
}
