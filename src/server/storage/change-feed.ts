/**
 * Notifies the other instances of changes by LISTEN/NOTIFY. A notification is only a hint. It is sent outside the
 * write's transaction, since NOTIFY holds a database-wide lock until after the commit; coalesced over a few
 * milliseconds; and not at all while no other instance is up. Lost notifications are found by comparing heads.
 *
 * Each instance subscribes to the tenants of its sockets. A subscriber gets the change itself, on a channel of its own,
 * where it fits into a notification. All others get the head alone, and so do subscribers where the change does not fit
 * or their subscription is not known yet.
 *
 * pg-listen keeps the listening connection. By default it gives up after 3 s, and it may stop receiving when the
 * connection breaks again while it re-subscribes: so each instance also listens for its own heartbeat, and makes a new
 * subscriber when it does not receive it. Nor does pg-listen stop reconnecting when it is closed meanwhile: a
 * subscriber that was replaced ends itself.
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

/** The channel of all instances; each has another one with its id behind this prefix. */
const CHANNEL = 'service';
const channelOf = (instanceId: string): string => `${CHANNEL}_${instanceId}`;
/** Between two NOTIFY statements, ms. The first one is sent at once. */
const COALESCE_MS = 5;
/** PostgreSQL takes payloads under 8,000 bytes. */
const PAYLOAD_BYTES = 7_999;
/** Carried changes queued for the next statement, characters; beyond it hints are sent. */
const CARRIED_WAITING_MAX = 4 * 1024 * 1024;
/**
 * Delay of a subscription after a tenant's first socket, ms, so that those of many tenants are sent together. In a
 * reconnect storm the interval between two grows: until an instance knows the subscription it sends the head, which
 * costs a read, not a change.
 */
const SUBSCRIBE_MS = 50;
const ATTEND_AGAIN_MS = 2_000;
/** Tenants waiting to be announced; beyond it further tenants are left to the comparison of heads. */
const WAITING_MAX = 50_000;
/** An instance without a heartbeat for this time, ms, counts as gone, and so do its sockets. */
export const SEEN_MS = 15_000;
/** Own heartbeats that may be missed before this instance makes a new subscriber. */
const UNHEARD_MAX = 3;
/** Attempts of one subscriber to connect again, three seconds in all; then another one is made. */
const RETRIES_MAX = 4;
const FORGET_MS = 10 * 60_000;
const PARANOID_MS = 10_000;

type Hint = readonly [tenantId: string, head: number, generation: HintedGeneration];
/** An older instance ignores fields that it does not know: to it a carried change is a hint. */
type TenantNotice = readonly [...Hint, carried?: string];
/** The payload of a notification. */
interface Notice {
  readonly from: string;
  readonly changes?: readonly TenantNotice[];
  /** The tenants that it subscribes to, as a `TenantSet`. */
  readonly wants?: string;
}

/** What an instance says of itself, for the operator. */
export interface Standing {
  readonly host: string;
  readonly pid: number;
  /** 0: it does not listen yet. */
  readonly port: number;
  readonly version: string;
  readonly sockets: number;
  readonly draining: boolean;
}

/** The operator's order to send the sockets away. */
export interface DrainOrder {
  /** Over how long, ms. */
  readonly ms: number;
  /** The other processes on its port go on. */
  readonly alone: boolean;
}

interface Registered {
  readonly fresh: boolean;
  readonly others: number;
  readonly asked_at: number | null;
  readonly ms: number;
  readonly alone: boolean;
}

/** What the feed is made of. */
export interface ChangeFeedOptions {
  readonly instanceId: string;
  /** For statements: heartbeats and notifications. */
  readonly pool: pg.Pool;
  /** Settings of the listening connection, asked again when it could not be opened for some seconds. */
  readonly connection: () => Promise<pg.ClientConfig>;
  readonly clock: Clock;
  /** Another instance changed a tenant. */
  readonly onHint: (...hint: Hint) => void;
  /** Another instance changed a tenant; `carried` has the rows. */
  readonly onChange: (tenantId: string, generation: number, carried: NotifiedRows) => void;
  /** Tenants with a socket here. */
  readonly tenants: () => readonly string[];
  /** The listening connection was opened, or opened again: notifications in between are lost. */
  readonly onConnected: () => void;
  /** The first other instance appeared, or this one's registration was lost: everything has to be announced again. */
  readonly onOthers: () => void;
  /** This instance, as it is now. */
  readonly standing: () => Standing;
  /** The operator has ordered it, by `service-admin drain`. */
  readonly onDrain: (order: DrainOrder) => void;
  readonly onFault: (error: unknown) => void;
  readonly meter?: Meter;
}

/** Sends and receives the notifications of this instance. One in each process. */
export class ChangeFeed implements ChangeAnnouncer {
  private subscriber: Subscriber | undefined;
  private readonly waiting = new Map<string, [head: number, generation: HintedGeneration]>();
  /** Queued carried changes, as JSON, by receiving instance. */
  private carried = new Map<string, string[]>();
  private carriedChars = 0;
  private readonly peers = new Peers();
  private wanted = new TenantSet();
  /** True where the next statement has to carry this instance's subscriptions. */
  private subscriptionsPending = false;
  private flushedAt = 0;
  /** When the subscriptions were sent last, ms. */
  private subscriptionsSentAt = 0;
  private attendTimer: Timer | undefined;
  /** True where an unreadable notification was reported since the last heartbeat. */
  private reported = false;
  private flushTimer: Timer | undefined;
  private beatTimer: Timer | undefined;
  private readonly flushing = new SingleFlight(() => this.flush());
  private readonly beating = new SingleFlight(() => this.beat());
  /** Pending attempts to replace the subscriber; `close` waits for them. */
  private readonly listening = new Set<Promise<void>>();
  private unheard = 0;
  private others = 0;
  /** When the last order to drain was given, by the database's clock. */
  private drainAskedAt: number | null = null;
  private closed = false;

  constructor(private readonly options: ChangeFeedOptions) {}

  /** True while another instance is known to be up. */
  get othersUp(): boolean {
    return this.others > 0;
  }

  /** Starts listening and registers this instance. */
  async start(): Promise<void> {
    await this.listen();
    this.setBeatTimer();
    await this.beating.join();
  }

  /** Says anew how this instance stands, before its next heartbeat. */
  async register(): Promise<void> {
    await this.beating.fresh();
  }

  /**
   * Queues a notification of the tenant's head and generation, to be sent within a few milliseconds with others. It may
   * be lost.
   */
  announce(tenantId: string, head: number, generation: HintedGeneration): void {
    if (this.others === 0 || this.closed) return;
    const before = this.waiting.get(tenantId);
    if (before === undefined && this.waiting.size >= WAITING_MAX) return;
    this.waiting.set(tenantId, [Math.max(head, before?.[0] ?? 0), later(generation, before?.[1] ?? 0)]);
    this.flushSoon();
  }

  /** As `announce`, with the rows themselves to subscribers. */
  publish(tenantId: string, rows: readonly ItemRow[], { summary, generation }: Position): void {
    if (this.others === 0 || this.closed) return;
    const wanting = this.peers.subscribers(tenantId);
    const pieces = wanting.length > 0 ? encodeRows(rows, summary) : undefined;
    let carried = 0;
    for (const id of pieces === undefined ? [] : wanting) {
      if (this.carriedChars >= CARRIED_WAITING_MAX) break;
      this.carryTo(id, tenantId, { pieces: pieces ?? [], generation });
      carried++;
    }
    // To instances that do not subscribe, are not known yet (just started, or an older version), or whose queue is
    // full.
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
      const notice = JSON.stringify([tenantId, head, generation, text] satisfies TenantNotice);
      waiting.push(notice);
      this.carriedChars += notice.length;
    }
    this.carried.set(id, waiting);
  }

  /** Subscribes to the tenant's changes. */
  subscribe(tenantId: string): void {
    if (!this.wanted.add(tenantId)) return;
    const { clock } = this.options;
    const since = Math.abs(clock.now() - this.subscriptionsSentAt);
    this.attendTimer ??= clock.setTimer(Math.max(SUBSCRIBE_MS, ATTEND_AGAIN_MS - since), () => this.tellWanted());
  }

  private tellWanted(): void {
    this.attendTimer?.cancel();
    this.attendTimer = undefined;
    if (this.others === 0 || this.closed) return;
    this.subscriptionsPending = true;
    this.subscriptionsSentAt = this.options.clock.now();
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

  /** Sends what is queued, removes the registration and stops listening. Resolves when all is done. */
  async close(): Promise<void> {
    this.closed = true;
    // No further subscriptions: received after the deregistration, they would make this instance count as up again.
    this.subscriptionsPending = false;
    this.flushTimer?.cancel();
    this.beatTimer?.cancel();
    this.attendTimer?.cancel();
    const { subscriber } = this;
    // Before the first await: a pending attempt ends itself once it is not the current one.
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

  /** Lines of a channel and a payload. Carried changes come first: the hints of the same changes are then no news. */
  private takeLines(): string[] {
    const lines: string[] = [];
    const add = (channel: string, changes: readonly string[]): void => {
      this.options.meter?.notified('sent', changes.length);
      lines.push(...payloadsOf(this.options.instanceId, changes).map((payload) => `${channel}\t${payload}`));
    };
    if (this.subscriptionsPending) {
      const notice: Notice = { from: this.options.instanceId, wants: this.wanted.text };
      lines.push(`${CHANNEL}\t${JSON.stringify(notice)}`);
      this.subscriptionsPending = false;
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
    const connection = await this.options.connection();
    if (this.closed) return;
    const subscriber: Subscriber = pgListen.default(connection, {
      retryTimeout: Infinity,
      retryLimit: Infinity,
      retryInterval: (attempt) => {
        if (this.subscriber !== subscriber) throw new Error('replaced or closed');
        // It knows one server; another one may have taken over.
        if (attempt >= RETRIES_MAX) throw new Error('tried often enough');
        return 100 * 2 ** attempt;
      },
      paranoidChecking: PARANOID_MS,
      // Parsed by us: pg-listen would put the text of an unreadable payload into its error.
      parse: (payload) => payload,
    });
    this.subscriber = subscriber;
    const own = channelOf(this.options.instanceId);
    for (const channel of [CHANNEL, own]) {
      subscriber.notifications.on(channel, (payload: unknown) => this.onPayload(payload));
    }
    subscriber.events.on('error', (error) => {
      if (this.subscriber !== subscriber) return;
      // It has given up.
      onFault(error);
      this.listenAnew();
    });
    try {
      await subscriber.connect();
    } catch (error) {
      // pg-listen keeps trying in the background; the channels below are subscribed when it succeeds.
      if (this.subscriber === subscriber) onFault(error);
    }
    if (this.subscriber !== subscriber) {
      // Replaced or closed while it connected: `close` was called before there was a connection.
      await subscriber.close().catch(onFault);
      return;
    }
    // Only now: the first `connected` event comes before LISTEN, and notifications in between would be missed.
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
    if (this.peers.seen(from, this.options.clock.now())) this.tellWanted();
    if (wants !== undefined) this.peers.wants(from, wants);
    if (changes.length > 0) this.options.meter?.notified('received', changes.length);
    for (const told of changes) this.onTenantNotice(told);
  }

  private onTenantNotice([tenantId, head, generation, text]: TenantNotice): void {
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

  /** Once between two heartbeats, and without the text: contents do not belong into a log, encrypted or not. */
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
      await this.registerNow();
      this.renewSubscriptions();
      // Not awaited: it may take until the network is back, and heartbeats have to continue.
      if (++this.unheard > UNHEARD_MAX && !this.closed) this.listenAnew();
    } catch (error) {
      this.options.onFault(error);
    }
  }

  /** By the database's clock: instances' clocks may differ. */
  private async registerNow(): Promise<void> {
    const { host, pid, port, version, sockets, draining } = this.options.standing();
    const beat = JSON.stringify({ from: this.options.instanceId } satisfies Notice);
    const { rows } = await this.options.pool.query<Registered>(REGISTER, [
      ...[this.options.instanceId, beat],
      ...[host, pid, port, version, sockets, draining],
    ]);
    const found = rows[0];
    if (found === undefined) return;
    const appeared = this.others === 0 && found.others > 0;
    this.others = found.others;
    if (appeared || (found.fresh && found.others > 0)) this.options.onOthers();
    const { asked_at: askedAt, ms, alone } = found;
    // A row that was lost with the database tells of no order: the one that was followed stands.
    if (askedAt === null || askedAt === this.drainAskedAt) return;
    this.drainAskedAt = askedAt;
    this.options.onDrain({ ms, alone });
    // The operator waits for the word that it follows.
    void this.beating.fresh();
  }

  /**
   * Rebuilds the subscriptions without tenants whose sockets are gone. Sent with every heartbeat, since it may be lost.
   */
  private renewSubscriptions(): void {
    this.peers.forget(this.options.clock.now() - SEEN_MS);
    this.wanted = new TenantSet();
    for (const tenantId of this.options.tenants()) this.wanted.add(tenantId);
    this.tellWanted();
  }

  private listenAnew(): void {
    const deaf = this.subscriber;
    this.unheard = 0;
    const attempt = this.listen()
      // Its end is not awaited: a half-open connection never confirms it.
      .then(() => void deaf?.close().catch(this.options.onFault), this.options.onFault)
      .finally(() => this.listening.delete(attempt));
    this.listening.add(attempt);
  }
}

/** One statement for a heartbeat: it also reads what the operator asks. */
const REGISTER = `
  WITH now AS (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS ms),
  gone AS (DELETE FROM instances i USING now WHERE i.seen_at < now.ms - ${FORGET_MS} RETURNING i.id),
  left_over AS (DELETE FROM presence p USING gone WHERE p.instance_id = gone.id),
  mine AS (
    INSERT INTO instances AS i (id, seen_at, host, pid, port, version, sockets, draining)
    SELECT $1, now.ms, $3, $4, $5, $6, $7, $8 FROM now
    ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, host = excluded.host, pid = excluded.pid,
      port = excluded.port, version = excluded.version, sockets = excluded.sockets, draining = excluded.draining
    RETURNING xmax = 0 AS fresh, drain_asked_at, drain_ms, drain_alone
  ),
  told AS (SELECT pg_notify('${CHANNEL}', $2))
  SELECT mine.fresh, mine.drain_asked_at AS asked_at, coalesce(mine.drain_ms, 0) AS ms,
    coalesce(mine.drain_alone, false) AS alone, (
      SELECT count(*)::integer FROM instances i, now WHERE i.id <> $1 AND i.seen_at >= now.ms - ${SEEN_MS}
    ) AS others FROM mine, told`;

const later = (one: HintedGeneration, other: HintedGeneration): HintedGeneration =>
  one === 'newer' || other === 'newer' ? 'newer' : Math.max(one, other);

/** One statement for all payloads: each commit with NOTIFY takes a database-wide lock. */
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
