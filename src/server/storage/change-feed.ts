/**
 * How instances tell each other that a tenant changed: LISTEN/NOTIFY. A notification is only a hint. It
 * is sent outside the write's transaction, since NOTIFY takes a database-wide lock until after the commit, coalesced
 * over a few milliseconds, and not at all while no other instance is up. Whatever is lost is found by comparing heads.
 *
 * An instance with a socket of the tenant gets the change itself, on a channel of its own, where it fits. The others get the
 * head alone, and so does everybody where it does not fit, or where it is not known yet what an instance wants.
 *
 * pg-listen keeps the listening connection. It gives up after 3 s unless told otherwise, and may stay deaf when the
 * connection breaks again while it re-subscribes; so each instance also listens for its own heartbeat and begins
 * anew with a fresh subscriber when it does not hear it. Nor does it stop reconnecting when it is closed meanwhile:
 * a subscriber that finds itself replaced ends itself.
 */
import type pg from 'pg';
import pgListen, { type Subscriber } from 'pg-listen';
import type { Clock, Timer } from '../../protocol/clock.js';
import type { Meter } from '../../protocol/meter.js';
import { HEAD_COMPARE_MS } from '../../protocol/limits.js';
import { SingleFlight } from '../../protocol/single-flight.js';
import type { ItemRow, Position } from '../tenant/change.js';
import type { ChangeAnnouncer, HintedGeneration } from '../tenant/ports.js';
import { encodeRows, decodeRows, type NotifiedRows, type NotificationPart } from './notification.js';
import { Peers, TenantSet } from './peers.js';

/** Heard by all; and what only this instance hears. */
const CHANNEL = 'service';
const channelOf = (instanceId: string): string => `${CHANNEL}_${instanceId}`;
/** From one statement to the next. The first one goes at once. */
const COALESCE_MS = 5;
/** PostgreSQL takes payloads under 8,000 bytes. */
const PAYLOAD_BYTES = 7_999;
/** Carried changes that wait for the next statement, characters; beyond it hints go out. */
const CARRIED_WAITING_MAX = 4 * 1024 * 1024;
/**
 * After the first socket of a tenant, ms: those that come meanwhile are told of together. While a crowd comes, every few
 * moments bring another: from one telling to the next it is longer, since who has not heard yet tells the head.
 */
const ATTEND_MS = 50;
const ATTEND_AGAIN_MS = 2_000;
/** Tenants waiting to be announced; beyond it further tenants are left to the comparison of heads. */
const WAITING_MAX = 50_000;
/** An instance that was not seen for so long, ms, counts as gone, and so do its sockets. */
export const SEEN_MS = 15_000;
/** Heartbeats that were sent and not heard, before this instance listens anew. */
const UNHEARD_MAX = 3;
const FORGET_MS = 10 * 60_000;
const PARANOID_MS = 10_000;

type Hint = readonly [tenantId: string, head: number, generation: HintedGeneration];
/** What is not known to an older instance is passed over by it: to such a one a carried change is a hint. */
type Told = readonly [...Hint, carried?: string];
interface Notice {
  readonly from: string;
  readonly changes?: readonly Told[];
  /** The tenants whose changes it wants carried: see `TenantSet`. */
  readonly wants?: string;
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
  /** Another instance changed a tenant, and this is what it made of it. */
  readonly onChange: (tenantId: string, generation: number, carried: NotifiedRows) => void;
  /** Tenants with a socket here. */
  readonly tenants: () => readonly string[];
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
  /** Carried changes that wait, as JSON, by the instance that gets them. */
  private carried = new Map<string, string[]>();
  private carriedChars = 0;
  private readonly peers = new Peers();
  private wanted = new TenantSet();
  /** What this instance wants is to be told with the next statement. */
  private wantedUntold = false;
  private flushedAt = 0;
  /** When it was told last, ms. */
  private wantedAt = 0;
  private attendTimer: Timer | undefined;
  /** What is no notice was reported since the last heartbeat. */
  private reported = false;
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
    this.flushSoon();
  }

  /** As `announce`, with the rows themselves to those who want them. */
  publish(tenantId: string, rows: readonly ItemRow[], { summary, generation }: Position): void {
    if (this.others === 0 || this.closed) return;
    const wanting = this.peers.wanting(tenantId);
    const pieces = wanting.length > 0 ? encodeRows(rows, summary) : undefined;
    let carried = 0;
    for (const id of pieces === undefined ? [] : wanting) {
      if (this.carriedChars >= CARRIED_WAITING_MAX) break;
      this.carryTo(id, tenantId, { pieces: pieces ?? [], generation });
      carried++;
    }
    // To those who do not want it, are not known yet (one that has just begun, or is older), or have too much to hear
    // already.
    const all = carried >= Math.max(this.others, this.peers.size);
    if (all) this.flushSoon();
    else this.announce(tenantId, summary.version, generation);
  }

  private carryTo(
    id: string,
    tenantId: string,
    { pieces, generation }: { readonly pieces: readonly NotificationPart[]; readonly generation: number },
  ): void {
    const waiting = this.carried.get(id) ?? [];
    for (const { head, text } of pieces) {
      const told = JSON.stringify([tenantId, head, generation, text] satisfies Told);
      waiting.push(told);
      this.carriedChars += told.length;
    }
    this.carried.set(id, waiting);
  }

  /** Has the others send this tenant's changes here. */
  attend(tenantId: string): void {
    if (!this.wanted.add(tenantId)) return;
    const { clock } = this.options;
    const since = Math.abs(clock.now() - this.wantedAt);
    this.attendTimer ??= clock.setTimer(Math.max(ATTEND_MS, ATTEND_AGAIN_MS - since), () => this.tellWanted());
  }

  private tellWanted(): void {
    this.attendTimer?.cancel();
    this.attendTimer = undefined;
    if (this.others === 0 || this.closed) return;
    this.wantedUntold = true;
    this.wantedAt = this.options.clock.now();
    this.flushSoon();
  }

  private flushSoon(): void {
    if (this.flushTimer !== undefined) return;
    const { clock } = this.options;
    const since = Math.abs(clock.now() - this.flushedAt);
    this.flushTimer = clock.setTimer(Math.max(0, COALESCE_MS - since), () => {
      this.flushTimer = undefined;
      this.flushedAt = clock.now();
      void this.flushing.fresh();
    });
  }

  /** Tells what still waits, takes the instance off the list and stops listening. Resolves when all is done. */
  async close(): Promise<void> {
    this.closed = true;
    // Who goes wants nothing any more; heard late, it would be taken for an instance that is still there.
    this.wantedUntold = false;
    this.flushTimer?.cancel();
    this.beatTimer?.cancel();
    this.attendTimer?.cancel();
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
    const lines = this.takeLines();
    if (lines.length === 0) return;
    try {
      await this.options.pool.query({ name: 'notify', text: NOTIFY, values: [lines.join('\n')] });
    } catch (error) {
      this.options.onFault(error);
    }
  }

  /** A channel and a payload each. What is carried goes first: the hints of the same changes then tell nothing new. */
  private takeLines(): string[] {
    const lines: string[] = [];
    const add = (channel: string, changes: readonly string[]): void => {
      this.options.meter?.notified('sent', changes.length);
      lines.push(...payloadsOf(this.options.instanceId, changes).map((payload) => `${channel}\t${payload}`));
    };
    if (this.wantedUntold) {
      const notice: Notice = { from: this.options.instanceId, wants: this.wanted.text };
      lines.push(`${CHANNEL}\t${JSON.stringify(notice)}`);
      this.wantedUntold = false;
    }
    for (const [id, changes] of this.carried) add(channelOf(id), changes);
    this.carried = new Map();
    this.carriedChars = 0;
    if (this.waiting.size > 0) {
      const hints = [...this.waiting].map(([tenantId, hint]) => JSON.stringify([tenantId, ...hint] satisfies Hint));
      add(CHANNEL, hints);
      this.waiting.clear();
    }
    return lines;
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
      // Read below: what cannot be read would come as an error with the text in it.
      parse: (payload) => payload,
    });
    this.subscriber = subscriber;
    const own = channelOf(this.options.instanceId);
    for (const channel of [CHANNEL, own]) {
      subscriber.notifications.on(channel, (payload: unknown) => this.onPayload(payload));
    }
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
    await Promise.all([subscriber.listenTo(CHANNEL), subscriber.listenTo(own)]).then(onConnected, onFault);
    subscriber.events.on('connected', () => {
      if (this.subscriber === subscriber) onConnected();
      else void subscriber.close().catch(onFault);
    });
  }

  private onPayload(payload: unknown): void {
    const notice = noticeOf(payload);
    if (notice === undefined) this.report(new Error('a notification came that is none of ours'));
    else this.onNotice(notice);
  }

  private onNotice({ from, changes = [], wants }: Notice): void {
    if (from === this.options.instanceId) {
      if (changes.length === 0 && wants === undefined) this.unheard = 0;
      return;
    }
    if (this.others === 0) {
      this.others = 1;
      this.options.onOthers();
    }
    if (this.peers.heard(from, this.options.clock.now())) this.tellWanted();
    if (wants !== undefined) this.peers.wants(from, wants);
    if (changes.length > 0) this.options.meter?.notified('received', changes.length);
    for (const told of changes) this.onTold(told);
  }

  private onTold([tenantId, head, generation, text]: Told): void {
    const carried = text === undefined || generation === 'newer' ? undefined : this.read(text, head);
    if (carried === undefined) this.options.onHint(tenantId, head, generation);
    else this.options.onChange(tenantId, Number(generation), carried);
  }

  private read(text: string, head: number): NotifiedRows | undefined {
    try {
      return decodeRows(text, head);
    } catch (error) {
      this.report(error);
      return undefined;
    }
  }

  /** Once between two heartbeats, and never with the text: contents do not belong into a log, however sealed. */
  private report(error: unknown): void {
    if (!this.reported) this.options.onFault(error);
    this.reported = true;
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
    this.reported = false;
    try {
      await this.register();
      this.wantAnew();
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

  /** Tenants whose sockets are gone are not wanted any more. Told with every heartbeat, since it may be lost. */
  private wantAnew(): void {
    this.peers.forget(this.options.clock.now() - SEEN_MS);
    this.wanted = new TenantSet();
    for (const tenantId of this.options.tenants()) this.wanted.add(tenantId);
    this.tellWanted();
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

/** One statement, and one call of it, for all payloads: each takes a lock that is the whole database's. */
const NOTIFY = `SELECT pg_notify(split_part(line, E'\\t', 1), split_part(line, E'\\t', 2)) FROM string_to_table($1, E'\\n') line`;

/** Notices with as many changes in each as fit. */
function payloadsOf(from: string, changes: readonly string[]): string[] {
  const head = `{"from":${JSON.stringify(from)},"changes":[`;
  const payloads: string[] = [];
  let payload = head;
  for (const change of changes) {
    if (payload.length + change.length + 2 > PAYLOAD_BYTES && payload.length > head.length) {
      payloads.push(`${payload}]}`);
      payload = head;
    }
    payload += payload.length > head.length ? `,${change}` : change;
  }
  return payload.length > head.length ? [...payloads, `${payload}]}`] : payloads;
}

function noticeOf(payload: unknown): Notice | undefined {
  if (typeof payload !== 'string') return undefined;
  try {
    const notice: unknown = JSON.parse(payload);
    return isNotice(notice) ? notice : undefined;
  } catch {
    return undefined;
  }
}

function isNotice(value: unknown): value is Notice {
  if (typeof value !== 'object' || value === null || !('from' in value) || typeof value.from !== 'string') return false;
  if ('wants' in value && typeof value.wants !== 'string') return false;
  if (!('changes' in value) || value.changes === undefined) return true;
  return Array.isArray(value.changes) && value.changes.every(isTold);
}

const isTold = (told: unknown): boolean =>
  Array.isArray(told) &&
  typeof told[0] === 'string' &&
  Number.isInteger(told[1]) &&
  (told[2] === 'newer' || Number.isInteger(told[2])) &&
  (told[3] === undefined || typeof told[3] === 'string');
