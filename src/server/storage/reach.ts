/**
 * Is the database within reach? A health check that acts as a circuit breaker. A database that stands still, or lies behind a link that is open and carries nothing, refuses
 * nobody and answers nobody: each statement would wait for its own time limit, and what waits behind it for longer. So
 * one small question a second is asked on a connection of its own. Where it finds no answer, nor does the same question
 * on a fresh connection, the database is away: every connection is cut, so that who waits is told at once, and no new
 * one is tried until the question is answered again. Time is the machine's, as it is for the driver's own limits.
 */
import { Socket } from 'node:net';
import pg from 'pg';
import { systemClock, type Clock, type Timer } from '../../protocol/clock.js';
import { openClient } from './database.js';

/** Between two questions while all is well, ms. */
const BEAT_MS = 1_000;
/** Between two questions while it is away, ms. */
const RETURN_MS = 500;
/** An answer comes within so long, ms, or not at all. */
const ANSWER_MS = 2_000;
/** A fresh connection takes half a dozen round trips, and as many turns of an event loop that may be busy. */
const OPEN_MS = 4_000;
/** Of these the last part is for the way back of a statement that the server itself has cancelled. */
const GRACE_MS = 500;

/** A socket that fails as soon as it is to connect. */
class NoLink extends Socket {
  override connect(): this {
    return this.destroy(Object.assign(new Error('the database is out of reach'), { code: 'ECONNREFUSED' }));
  }
}

/** What is asked, and who is told. */
export interface ReachOptions {
  readonly url: string;
  /** Called when it goes away, with the reason, and when it is back. */
  readonly onChange: (within: boolean, cause?: unknown) => void;
  readonly clock?: Clock;
}

type Answer = { readonly kind: 'answered' | 'refused' } | { readonly kind: 'silence'; readonly cause: unknown };

/** One in each process. Give `link` to every connection that shall not wait for a database that is away. */
export class Reach {
  private readonly links = new Set<Socket>();
  private readonly clock: Clock;
  private pulse: pg.Client | undefined;
  private timer: Timer | undefined;
  private looking: Promise<void> | undefined;
  private away = false;
  private closed = false;

  constructor(private readonly options: ReachOptions) {
    this.clock = options.clock ?? systemClock;
  }

  /** False from the moment it is known to be away until it answers again. */
  get within(): boolean {
    return !this.away;
  }

  /** The socket of a new connection, for pg's `stream`. */
  readonly link = (): Socket => {
    if (this.away) return new NoLink();
    const socket = new Socket();
    this.links.add(socket);
    socket.once('close', () => this.links.delete(socket));
    return socket;
  };

  /** Begins to ask. */
  start(): void {
    this.lookIn(BEAT_MS);
  }

  /** Asks no more. Resolves when the question under way is over. */
  async close(): Promise<void> {
    this.closed = true;
    this.timer?.cancel();
    await this.looking;
    await this.pulse?.end();
  }

  private lookIn(ms: number): void {
    if (this.closed) return;
    this.timer = this.clock.setTimer(ms, () => {
      this.looking = this.look().finally(() => this.lookIn(this.away ? RETURN_MS : BEAT_MS));
    });
  }

  private async look(): Promise<void> {
    let answer = await this.ask();
    // Once more, on a fresh connection: the silence may have been the link's alone, or this process stood still and
    // the answer lies unread.
    if (answer.kind === 'silence' && !this.closed) answer = await this.ask();
    if (this.closed) return;
    if (answer.kind === 'answered' && this.away) {
      this.away = false;
      this.options.onChange(true);
    } else if (answer.kind === 'silence' && !this.away) {
      this.away = true;
      this.options.onChange(false, answer.cause);
      for (const link of this.links) link.destroy();
    }
  }

  /** A refusal is an answer of a server that may be starting, or full: it is there, but not yet back. */
  private async ask(): Promise<Answer> {
    let client = this.pulse;
    try {
      client ??= await this.open();
      await client.query('SELECT 1');
      this.pulse = client;
      return { kind: 'answered' };
    } catch (cause) {
      this.pulse = undefined;
      // It is broken or silent: whether its end is confirmed is of no interest.
      void client?.end().catch(() => undefined);
      return cause instanceof pg.DatabaseError ? { kind: 'refused' } : { kind: 'silence', cause };
    }
  }

  private open(): Promise<pg.Client> {
    return openClient({
      url: this.options.url,
      name: 'service-pulse',
      connectTimeoutMs: OPEN_MS,
      statementTimeoutMs: ANSWER_MS - GRACE_MS,
      graceMs: GRACE_MS,
      // The next question finds out whether it was this link alone.
      onLost: () => (this.pulse = undefined),
    });
  }
}
