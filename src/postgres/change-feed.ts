/**
 * How instances tell each other that a tenant changed: LISTEN/NOTIFY (contract 13). A notification is only a hint. It
 * is sent outside the write's transaction, since NOTIFY takes a database-wide lock until after the commit, coalesced
 * over a few milliseconds, and not at all while no other instance is up. Whatever is lost is found by comparing heads.
 *
 * pg-listen keeps the listening connection. It gives up after 3 s unless told otherwise, and may stay deaf when the
 * connection breaks again while it re-subscribes; so each instance also listens for its own heartbeat and begins
 * anew with a fresh subscriber when it does not hear it. Nor does it stop reconnecting when it is closed meanwhile:
 * a subscriber that finds itself replaced ends itself.
 */
import type pg from 'pg';
import pgListen, { type Subscriber } from 'pg-listen';
import type { Clock, Timer } from '../protocol/clock.js';
import type { Meter } from '../protocol/meter.js';
import { HEAD_COMPARE_MS } from '../protocol/limits.js';
import { SingleFlight } from '../protocol/single-flight.js';
import type { ChangeAnnouncer, HintedGeneration } from '../tenant/ports.js';

const CHANNEL = 'service';
const COALESCE_MS = 5;
/** PostgreSQL takes payloads under 8,000 bytes. */
const PAYLOAD_BYTES = 7_500;
/** Tenants waiting to be announced; beyond it further tenants are left to the comparison of heads. */
const WAITING_MAX = 50_000;
/** An instance that was not seen for so long, ms, counts as gone, and so do its sockets. */
export const SEEN_MS = 15_000;
/** Heartbeats that were sent and not heard, before this instance listens anew. */
const UNHEARD_MAX = 3;
const FORGET_MS = 10 * 60_000;
const PARANOID_MS = 10_000;

type Hint = readonly [tenantId: string, head: number, generation: HintedGeneration];
interface Notice {
  readonly from: string;
  readonly changes?: readonly Hint[];
}

/** What the feed is made of. */
export interface ChangeFeedOptions {
  readonly instanceId: string;
  /** For statements: heartbeats and notifications. */
  readonly pool: pg.Pool;
  /** Settings of the listening connection. */
  readonly connection: pg.ClientConfig;
  readonly clock: Clock;
  /** Another instance changed a tenant. */
  readonly onHint: (...hint: Hint) => void;
  /** The listening connection is there, maybe again: what was notified meanwhile is lost. */
  readonly onConnected: () => void;
  /** The first other instance appeared, or this one's registration had been lost: tell the others everything anew. */
  readonly onOthers: () => void;
  readonly onFault: (error: unknown) => void;
  readonly meter?: Meter;
}

/** This instance's ear and mouth: hears of changes elsewhere, tells of its own. One in each process. */
export class ChangeFeed implements ChangeAnnouncer {
  private subscriber: Subscriber | undefined;
  private readonly waiting = new Map<string, [head: number, generation: HintedGeneration]>();
  private flushTimer: Timer | undefined;
  private beatTimer: Timer | undefined;
  private readonly flushing = new SingleFlight(() => this.flush());
  private readonly beating = new SingleFlight(() => this.beat());
  /** Attempts to listen anew that are not over; `close` waits for them. */
  private readonly listening = new Set<Promise<void>>();
  private unheard = 0;
  private others = 0;
  private closed = false;

  constructor(private readonly options: ChangeFeedOptions) {}

  /** True while another instance is up, as far as is known. */
  get othersUp(): boolean {
    return this.others > 0;
  }

  /** Begins to listen and makes this instance known. */
  async start(): Promise<void> {
    await this.listen();
    this.setBeatTimer();
    await this.beating.join();
  }

  /** Tells the others, a few milliseconds later and together with more, that the tenant got this far. May be lost. */
  announce(tenantId: string, head: number, generation: HintedGeneration): void {
    if (this.others === 0 || this.closed) return;
    const before = this.waiting.get(tenantId);
    if (before === undefined && this.waiting.size >= WAITING_MAX) return;
    this.waiting.set(tenantId, [Math.max(head, before?.[0] ?? 0), later(generation, before?.[1] ?? 0)]);
    this.flushTimer ??= this.options.clock.setTimer(COALESCE_MS, () => {
      this.flushTimer = undefined;
      void this.flushing.fresh();
    });
  }

  /** Tells what still waits, takes the instance off the list and stops listening. Resolves when all is done. */
  async close(): Promise<void> {
    this.closed = true;
    this.flushTimer?.cancel();
    this.beatTimer?.cancel();
    const { subscriber } = this;
    // Before anything is waited for: an attempt to listen ends itself once it is not the current one.
    this.subscriber = undefined;
    await this.beating.idle();
    await this.flushing.fresh();
    await this.options.pool
      .query('DELETE FROM instances WHERE id = $1', [this.options.instanceId])
      .catch(this.options.onFault);
    await subscriber?.close().catch(this.options.onFault);
    await Promise.all(this.listening);
  }

  private async flush(): Promise<void> {
    if (this.waiting.size === 0) return;
    this.options.meter?.notified('sent', this.waiting.size);
    const payloads = this.takePayloads();
    try {
      await this.options.pool.query(`SELECT pg_notify('${CHANNEL}', payload) FROM unnest($1::text[]) payload`, [
        payloads,
      ]);
    } catch (error) {
      this.options.onFault(error);
    }
  }

  private takePayloads(): string[] {
    const payloads: string[] = [];
    let changes: Hint[] = [];
    let bytes = 0;
    const end = (): void => {
      if (changes.length > 0)
        payloads.push(JSON.stringify({ from: this.options.instanceId, changes } satisfies Notice));
      changes = [];
      bytes = 0;
    };
    for (const [tenantId, [head, generation]] of this.waiting) {
      bytes += tenantId.length + 45;
      if (bytes > PAYLOAD_BYTES) {
        end();
        bytes = tenantId.length + 45;
      }
      changes.push([tenantId, head, generation]);
    }
    end();
    this.waiting.clear();
    return payloads;
  }

  private async listen(): Promise<void> {
    const { onFault, onConnected } = this.options;
    const subscriber: Subscriber = pgListen.default(this.options.connection, {
      retryTimeout: Infinity,
      retryLimit: Infinity,
      retryInterval: (attempt) => {
        if (this.subscriber !== subscriber) throw new Error('replaced or closed');
        return Math.min(100 * 2 ** attempt, 5_000);
      },
      paranoidChecking: PARANOID_MS,
    });
    this.subscriber = subscriber;
    subscriber.notifications.on(CHANNEL, (notice: unknown) => this.onNotice(notice));
    subscriber.events.on('error', (error) => {
      if (this.subscriber === subscriber) onFault(error);
    });
    try {
      await subscriber.connect();
    } catch (error) {
      // It goes on trying in the background; the channel below is remembered for when it succeeds.
      if (this.subscriber === subscriber) onFault(error);
    }
    if (this.subscriber !== subscriber) {
      // Replaced or closed while it connected: its end was asked for before there was a connection to end.
      await subscriber.close().catch(onFault);
      return;
    }
    // Only now: the first `connected` comes before it listens, and what is notified in between would go unnoticed.
    await subscriber.listenTo(CHANNEL)?.then(onConnected, onFault);
    subscriber.events.on('connected', () => {
      if (this.subscriber === subscriber) onConnected();
      else void subscriber.close().catch(onFault);
    });
  }

  private onNotice(notice: unknown): void {
    if (!isNotice(notice)) return;
    if (notice.from === this.options.instanceId) {
      if (notice.changes === undefined) this.unheard = 0;
      return;
    }
    if (this.others === 0) {
      this.others = 1;
      this.options.onOthers();
    }
    const { changes = [] } = notice;
    if (changes.length > 0) this.options.meter?.notified('received', changes.length);
    for (const [tenantId, head, generation] of changes) this.options.onHint(tenantId, head, generation);
  }

  private setBeatTimer(): void {
    this.beatTimer = this.options.clock.setTimer(HEAD_COMPARE_MS, () => {
      this.setBeatTimer();
      // One at a time, and at most one more after it: while the database is slow they must not pile up.
      void this.beating.fresh();
    });
  }

  private async beat(): Promise<void> {
    if (this.closed) return;
    try {
      await this.register();
      // Not waited for: it may take until the network is back, and this instance must go on being seen.
      if (++this.unheard > UNHEARD_MAX && !this.closed) this.listenAnew();
    } catch (error) {
      this.options.onFault(error);
    }
  }

  /** By the database's clock: instances' clocks may differ. */
  private async register(): Promise<void> {
    const { rows } = await this.options.pool.query<{ fresh: boolean; others: number }>(
      `WITH now AS (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS ms),
       gone AS (DELETE FROM instances i USING now WHERE i.seen_at < now.ms - ${FORGET_MS} RETURNING i.id),
       left_over AS (DELETE FROM presence p USING gone WHERE p.instance_id = gone.id),
       mine AS (
         INSERT INTO instances AS i SELECT $1, now.ms FROM now
         ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at RETURNING xmax = 0 AS fresh
       ),
       told AS (SELECT pg_notify('${CHANNEL}', $2))
       SELECT mine.fresh, (
         SELECT count(*)::integer FROM instances i, now WHERE i.id <> $1 AND i.seen_at >= now.ms - ${SEEN_MS}
       ) AS others FROM mine, told`,
      [this.options.instanceId, JSON.stringify({ from: this.options.instanceId } satisfies Notice)],
    );
    const found = rows[0];
    if (found === undefined) return;
    const appeared = this.others === 0 && found.others > 0;
    this.others = found.others;
    if (appeared || (found.fresh && found.others > 0)) this.options.onOthers();
  }

  private listenAnew(): void {
    const deaf = this.subscriber;
    this.unheard = 0;
    const attempt = this.listen()
      // Its end is not waited for: a link that is dead on its way never confirms it.
      .then(() => void deaf?.close().catch(this.options.onFault), this.options.onFault)
      .finally(() => this.listening.delete(attempt));
    this.listening.add(attempt);
  }
}

const later = (one: HintedGeneration, other: HintedGeneration): HintedGeneration =>
  one === 'newer' || other === 'newer' ? 'newer' : Math.max(one, other);

function isNotice(value: unknown): value is Notice {
  if (typeof value !== 'object' || value === null || !('from' in value) || typeof value.from !== 'string') return false;
  if (!('changes' in value) || value.changes === undefined) return true;
  return (
    Array.isArray(value.changes) &&
    value.changes.every(
      (hint) =>
        Array.isArray(hint) &&
        typeof hint[0] === 'string' &&
        Number.isInteger(hint[1]) &&
        (hint[2] === 'newer' || Number.isInteger(hint[2])),
    )
  );
}
