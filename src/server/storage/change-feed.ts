/**
 * Notifies the other instances of changes: over LISTEN/NOTIFY, and on the same machine over links (links.ts). A
 * notification of a head is only a hint. It is sent outside the write's transaction, since NOTIFY holds a database-wide
 * lock until after the commit; coalesced over a few milliseconds; and not at all while no other instance is up.
 * Generations are notified by the database itself, in the transaction that raises them
 * (sql/0016_generation_notices.sql).
 *
 * PostgreSQL delivers notifications in commit order. So an instance that receives its own heartbeat has received every
 * notification sent before it (`heard`) and need not compare those tenants with the database. Notifications can still
 * be missing: their sender reports that with its next heartbeat (`untold`), or died before sending them. In both cases,
 * and after every break of the listening connection or of a link, `onGap` is called, and heads have to be compared.
 *
 * Each instance subscribes to the tenants that have a socket there, and changes of a tenant are sent only to its
 * subscribers: over a link to an instance on this machine (links.ts), else on the subscriber's own channel. Where a
 * change does not fit into a notification, only the head is sent. A subscription arrives a little after the socket was
 * opened, so an instance that receives one sends the heads that it published for these tenants in the last seconds
 * (`recent`). An instance that may have missed subscriptions itself announces its recent heads to all instances, and
 * continues to do so until it has received its own heartbeat again.
 *
 * Any client of the database can send a notification on any channel. A notification without an instance's signature is
 * treated as a hint that at most leads to a read.
 */
import type pg from 'pg';
import { atMostEvery, type Clock, every, MINUTE_MS, type Timer } from '../../protocol/clock.js';
import type { Meter } from '../../protocol/meter.js';
import { HEAD_COMPARE_MS } from '../../protocol/limits.js';
import { SingleFlight } from '../../protocol/single-flight.js';
import type { Position } from '../tenant/change.js';
import type { ItemRow } from '../tenant/codec.js';
import type { ChangeAnnouncer, Heard } from '../tenant/ports.js';
import { callBinary, cutOff, Parameters } from './commit/batch.js';
import { withPooled, withRetry } from './database.js';
import { Links } from './links.js';
import { Listener } from './listener.js';
import { NoticeQueue } from './notice-queue.js';
import { MAC_BYTES, NOTICE_CHARS, NoticeMac, noticeOf, type Hint, type Notice } from './notice.js';
import { decodePayload, isChangesPayload, readChanges, type NotifiedRows } from './notification.js';
import { isRetryableRead } from './query.js';
import { otherSecrets, registration, SEEN_MS } from './registration.js';
import type { DrainOrder, InstanceStatus, Registered } from './registration.js';
import { Peers, RecentHeads, Subscriptions } from './subscriptions.js';

/** The channel of all instances; in addition each has its own, with its id appended. */
const CHANNEL = 'service';
/** Notified by a trigger with a tenant's id and generation. */
const GENERATIONS = 'service_generations';
const channelOf = (instanceId: string): string => `${CHANNEL}_${instanceId}`;
/**
 * Interval between two NOTIFY statements, ms: COALESCE_TIMES the duration of the last one, within COALESCE_MS and
 * COALESCE_MAX_MS. The first is sent at once. A database at its limit gets fewer statements, which carry more.
 */
const COALESCE_MS = 5;
const COALESCE_TIMES = 2;
const COALESCE_MAX_MS = 12;
/**
 * Delay of a subscription after the tenant's first socket, ms, so that many are sent together. Under many subscriptions
 * the interval grows with the number of instances, since each receives what any of them sends.
 */
const SUBSCRIBE_MS = 50;
const SUBSCRIBE_MAX_MS = 3_000;
/**
 * If the last subscription added at least this many tenants (a reconnect storm), the interval is SUBSCRIBE_TIMES as
 * long.
 */
const SUBSCRIBE_MANY = 100;
const SUBSCRIBE_TIMES = 6;
/** Subscriptions are rebuilt and sent this often, ms, to drop tenants without a socket. */
const RENEW_MS = MINUTE_MS;
/**
 * After a NOTIFY that took longer, ms, subscriptions may have arrived too late for the recent heads that others keep.
 */
const SLOW_MS = HEAD_COMPARE_MS;
/** A NOTIFY that failed is sent again up to this long after it was first sent, ms. */
const REPEAT_WITHIN_MS = 1_000;
/**
 * Interval between heartbeats, ms; and how long after its statement one may arrive until notifications count as lost.
 */
const BEAT_MS = HEAD_COMPARE_MS - 1_000;
const BACK_MS = 750;
/** A heartbeat may arrive this many times later than the last one did; and the upper limit of that wait, ms. */
const BACK_TIMES = 4;
const BACK_MAX_MS = 8_000;
/** Maximum of own heartbeats remembered, to recognize them when they come back. */
const AWAITED_MAX = 8;
/** Own heartbeats that may be missed before the listening connection is replaced. */
const UNHEARD_MAX = 3;
/** Heads announced to all instances at once; if there are more, the others compare heads instead. */
const RECENT_ANNOUNCED_MAX = 1_000;

/** An own heartbeat. */
interface Beat {
  readonly number: number;
  readonly at: number;
  /** When its statement was answered. */
  answeredAt?: number;
  /** It did not come back in time. */
  missed?: true;
}

export interface ChangeFeedOptions {
  readonly instanceId: string;
  /** For statements: heartbeats and notifications. */
  readonly pool: pg.Pool;
  /** Whether statements stay prepared on a connection (see `ConnectionSettings.pooled`). */
  readonly prepares: boolean;
  /** See `NoticeMac`. */
  readonly noticeKey: Uint8Array;
  /** Folder of the links between instances on this machine; undefined: there are none. */
  readonly linkFolder?: string | undefined;
  /** The epoch of the database as currently known. */
  readonly epoch: () => string;
  /** Settings of the listening connection, requested again when it could not be opened for some seconds. */
  readonly connection: () => Promise<pg.ClientConfig>;
  readonly clock: Clock;
  /** Another instance changed a tenant. */
  readonly onHint: (...hint: Hint) => void;
  /** Another instance changed a tenant; `carried` has the rows, whose bytes are valid until it returns. */
  readonly onChange: (tenantId: string, generation: number, carried: NotifiedRows) => void;
  /** Tenants with a socket here. */
  readonly tenants: () => readonly string[];
  /** Notifications may be missing: heads have to be compared. */
  readonly onGap: () => void;
  /** The first other instance appeared, or this one's registration was lost: everything must be announced again. */
  readonly onOthers: () => void;
  readonly status: () => InstanceStatus;
  /** The operator ordered a drain, by `service-admin drain`. */
  readonly onDrain: (order: DrainOrder) => void;
  readonly onFault: (error: unknown) => void;
  readonly meter?: Meter;
}

/** Sends and receives the notifications of this instance. One in each process. */
export class ChangeFeed implements ChangeAnnouncer {
  private readonly listener: Listener;
  private readonly mac: NoticeMac;
  private readonly queue: NoticeQueue;
  /** Reused: the payloads of a busy instance as new buffers each time would be most of its garbage (bench S8). */
  private readonly parameters: Parameters;
  private readonly links: Links | undefined;
  private readonly peers = new Peers();
  private readonly recent = new RecentHeads();
  private readonly subscriptions = new Subscriptions();
  private flushedAt = 0;
  /** How long the last NOTIFY took, ms. */
  private flushMs = 0;
  /** When the subscriptions were last sent, ms. */
  private subscriptionsSentAt = 0;
  /** Number of tenants added by that sending. */
  private added = 0;
  private readonly mayRenew: () => boolean;
  private subscribeTimer: Timer | undefined;
  /** True once an unreadable notification was reported since the last heartbeat. */
  private reported = false;
  private flushTimer: Timer | undefined;
  private beatTimer: Timer | undefined;
  private backTimer: Timer | undefined;
  /** The heartbeat that `backTimer` waits for. */
  private backOf: Beat | undefined;
  private readonly flushing = new SingleFlight(() => this.flush());
  private readonly beating = new SingleFlight(() => this.beat());
  private unheard = 0;
  /** Number of heartbeats so far. */
  private beats = 0;
  /** The latest heartbeats that have not come back. */
  private readonly awaited: Beat[] = [];
  /** How long after its statement the last heartbeat to come back arrived, ms. */
  private returnMs = 0;
  /** Everything notified between these times has been received. */
  heard: Heard = { since: Infinity, until: -Infinity };
  /** True while the last heartbeat is overdue: subscriptions may not arrive here. */
  private overdue = false;
  /** True if an announcement was dropped or may have failed since the last heartbeat. */
  private unannounced = false;
  private others = 0;
  private mismatched = 0;
  /** The instances of which nothing verifiable had come when the last own heartbeat came back. */
  private unverified: readonly string[] = [];
  /** No other instance was up recently. Stored, so that a write does not have to ask `peers` for it. */
  private alone = true;
  /** As the database last reported it; see `Registered`. */
  private silent: number | null = null;
  /** When the last order to drain was given, by the database's clock. */
  private drainAskedAt: number | null = null;
  private closed = false;

  constructor(private readonly options: ChangeFeedOptions) {
    const { instanceId, epoch, connection, noticeKey, linkFolder, onGap, onFault, meter } = options;
    const publisher = { instanceId, epoch };
    this.mayRenew = atMostEvery(options.clock, RENEW_MS);
    const own = channelOf(instanceId);
    this.listener = new Listener({
      connection,
      channels: {
        [CHANNEL]: (payload) => this.onPayload(CHANNEL, payload),
        [own]: (payload) => this.onPayload(own, payload),
        [GENERATIONS]: (payload) => this.onGeneration(payload),
      },
      // An own heartbeat may come before it listens to all channels, and proves nothing.
      onOpened: () => (this.heard = { ...this.heard, since: Infinity }),
      onConnected: () => this.onConnected(),
      onFault,
    });
    this.mac = new NoticeMac(noticeKey);
    this.parameters = new Parameters(this.options.prepares);
    if (linkFolder !== undefined)
      this.links = new Links({
        ...{ ...publisher, folder: linkFolder, onFault },
        onBlock: (block) => this.onChanges(block),
        onLost: onGap,
        onUnread: (id) => {
          if (this.closed) this.unannounced = true;
          else this.queueNotice(channelOf(id), { untold: true });
        },
      });
    this.queue = new NoticeQueue(publisher, this.mac, (count) => meter?.notified('sent', count));
  }

  /** True while another instance is known to be up. */
  get othersUp(): boolean {
    return this.others > 0;
  }

  /** Starts listening and registers this instance. */
  async start(): Promise<void> {
    this.links?.start();
    await this.listener.start();
    // One at a time, and at most one queued behind it: while the database is slow they must not pile up.
    if (!this.closed) this.beatTimer = every(this.options.clock, BEAT_MS, () => void this.beating.fresh());
    await this.beating.join();
  }

  /** Registers the current status of this instance, before its next heartbeat. */
  async register(): Promise<void> {
    await this.beating.fresh();
  }

  /**
   * Queues a notification of the tenant's head and generation, to be sent within a few milliseconds with others. If
   * that fails, the other instances compare heads after the next heartbeat.
   */
  announce(tenantId: string, head: number, generation: number): void {
    if (!this.alone) this.hint(CHANNEL, [tenantId, head, generation]);
  }

  /** Notifies the tenant's subscribers, with the rows themselves if there are any and they fit. */
  publish(tenantId: string, rows: readonly ItemRow[], position: Position): void {
    if (this.alone || this.closed) return;
    const { version } = position.summary;
    const hint: Hint = [tenantId, version, position.generation];
    const subscribers = this.peers.subscribers(this.recent.note(hint, this.options.clock.now()));
    const first = version - rows.length + 1;
    const whole = rows.length > 0 && rows.every((row, n) => row.version === first + n);
    let linked = 0;
    for (const id of subscribers) {
      if (whole && this.links?.carry(id, tenantId, rows, position) === true) {
        linked++;
        continue;
      }
      const channel = channelOf(id);
      if (!whole || !this.queue.carry(channel, tenantId, rows, position)) this.hint(channel, hint);
    }
    // More instances exist than are known here, or this one does not know their subscriptions.
    if (this.overdue || this.others > this.peers.size) this.hint(CHANNEL, hint);
    if (linked > 0) this.options.meter?.notified('sent', linked);
    if (linked < subscribers.length) this.flushSoon();
  }

  private hint(channel: string, hint: Hint): void {
    if (this.closed) return;
    if (!this.queue.hint(channel, hint)) this.unannounced = true;
    this.flushSoon();
  }

  /** Some subscribers may not have been notified of changes: announces the recent heads to all instances. */
  private hintRecent(): void {
    if (this.alone) return;
    const now = this.options.clock.now();
    const recent = [...this.recent.all(now)];
    if (recent.length > RECENT_ANNOUNCED_MAX || !this.recent.reaches(this.heard.until - SLOW_MS))
      this.unannounced = true;
    else for (const { hint } of recent) this.hint(CHANNEL, hint);
  }

  /** Subscribes to what other instances write of a tenant from `since` on, ms. */
  subscribe(tenantId: string, since: number): void {
    // Even if no other instance is known: one that was suspended knows this one, and does not request subscriptions.
    if (!this.subscriptions.add(tenantId, since) || this.closed || this.others === 0) return;
    const { clock } = this.options;
    const times = this.added < SUBSCRIBE_MANY ? 1 : SUBSCRIBE_TIMES;
    const interval = Math.min(SUBSCRIBE_MS * this.others * times, SUBSCRIBE_MAX_MS);
    const passed = Math.abs(clock.now() - this.subscriptionsSentAt);
    this.subscribeTimer ??= clock.setTimer(Math.max(SUBSCRIBE_MS, interval - passed), () => {
      this.subscribeTimer = undefined;
      this.flushSoon();
    });
  }

  private flushSoon(): void {
    if (this.flushTimer !== undefined || this.closed) return;
    const { clock } = this.options;
    const since = Math.abs(clock.now() - this.flushedAt);
    const interval = Math.min(COALESCE_MAX_MS, Math.max(COALESCE_MS, COALESCE_TIMES * this.flushMs));
    this.flushTimer = clock.setTimer(Math.max(0, interval - since), () => {
      this.flushTimer = undefined;
      this.flushedAt = clock.now();
      void this.flushing.fresh();
    });
  }

  /** Sends what is queued, removes the registration and stops listening. Resolves when all is done. */
  async close(): Promise<void> {
    this.closed = true;
    for (const timer of [this.flushTimer, this.beatTimer, this.backTimer, this.subscribeTimer]) timer?.cancel();
    await this.beating.idle();
    await this.flushing.fresh();
    await this.links?.close();
    const { instanceId, pool, onFault } = this.options;
    // If the row remains, its silence makes the others compare heads.
    if (!this.unannounced) await pool.query('DELETE FROM instances WHERE id = $1', [instanceId]).catch(onFault);
    await this.listener.close();
  }

  private async flush(): Promise<void> {
    // An instance that stops sends no subscriptions: received after its deregistration, they would count it as up
    // again.
    const subscribing =
      this.others > 0 && !this.closed && this.subscriptions.waiting && this.subscribeTimer === undefined;
    if (subscribing) {
      this.subscriptionsSentAt = this.options.clock.now();
      this.added = this.subscriptions.queue(this.queue, CHANNEL, this.subscriptionsSentAt);
    }
    const taken = this.queue.take();
    if (taken.channels.length === 0) return;
    try {
      const begun = this.options.clock.now();
      // Repeated while that is quick, since later notifications wait. An instance that receives it twice drops the second.
      // Given up, it makes every instance compare all heads.
      const isQuick = (): boolean => Math.abs(this.options.clock.now() - begun) < REPEAT_WITHIN_MS;
      const send = (): Promise<void> => withPooled(this.options.pool, (client) => this.notify(client, taken));
      await withRetry(send, (error) => isRetryableRead(error) && isQuick());
      this.flushMs = Math.max(0, this.options.clock.now() - begun);
      const slow = Math.abs(this.options.clock.now() - this.subscriptionsSentAt) > SLOW_MS;
      if (subscribing && slow) this.options.onGap();
    } catch (error) {
      this.unannounced = true;
      if (subscribing) this.subscriptions.failed();
      this.options.onFault(error);
    }
  }

  private async notify(client: pg.ClientBase, { channels, payloads }: ReturnType<NoticeQueue['take']>): Promise<void> {
    this.parameters
      .begin('notify')
      .texts(channels, (channel) => channel)
      .texts(payloads, (payload) => payload, NOTICE_CHARS);
    try {
      await callBinary(client, NOTIFY, this.parameters);
    } catch (error) {
      // What is not sent yet lies in memory that is used again.
      void cutOff(client).catch(this.options.onFault);
      throw error;
    }
  }

  /** The listening connection was opened, or opened again: notifications in between are lost. */
  private onConnected(): void {
    if (this.closed) return;
    this.heard = { ...this.heard, since: this.options.clock.now() };
    this.hintRecent();
    this.peers.doubt();
    if (this.others > 0) this.queueNotice(CHANNEL, { asks: true });
    this.flushSoon();
    this.options.onGap();
  }

  private onGeneration(payload: unknown): void {
    const [, tenantId, generation] = /^(\S{1,64}) (\d{1,15})$/.exec(String(payload)) ?? [];
    if (tenantId === undefined) this.reportForeign();
    else this.options.onHint(tenantId, 0, Number(generation));
  }

  private onPayload(channel: string, payload: unknown): void {
    if (typeof payload === 'string' && isChangesPayload(payload)) {
      const signed = decodePayload(payload);
      return this.mac.verifyBytes(channel, signed) ? this.onChanges(signed.subarray(MAC_BYTES)) : this.reportForeign();
    }
    const notice = noticeOf(payload);
    if (notice === undefined) this.reportForeign();
    // Unsigned, possibly from any client: its heads lead to a read at most.
    else if (!this.mac.verify(channel, String(payload))) this.passHints(notice);
    else if (notice.from === this.options.instanceId) this.onOwn(notice);
    else this.onOther(notice);
  }

  private passHints({ changes = [] }: Notice): void {
    for (const [tenantId, head, generation] of changes) this.options.onHint(tenantId, head, generation);
  }

  private onChanges(block: Buffer): void {
    const published = readChanges(block);
    if (published === undefined) {
      // From an instance of another version. Its changes are in the database too.
      this.report(new Error('changes came in an unknown format'));
      this.options.onGap();
      return;
    }
    this.meetOther(published.from);
    this.peers.verify(published.from);
    // A block published before a fail-over may arrive after it: a commit of the former primary must not pass for a
    // version of this history. But if the sender learns of the fail-over later, the block may contain changes of this
    // history.
    if (published.epoch !== this.options.epoch()) return this.options.onGap();
    this.options.meter?.notified('received', published.changes.length);
    for (const { tenantId, head, generation, carried } of published.changes) {
      if (carried !== undefined) this.options.onChange(tenantId, generation, carried);
      else {
        this.report(new Error('a change came that cannot be read'));
        this.options.onHint(tenantId, head, generation);
      }
    }
  }

  private onOwn({ beat }: Notice): void {
    if (beat === undefined) return;
    // On a connection that listens to some channels only it proves nothing, and the connection is replaced.
    if (this.heard.since !== Infinity) this.unheard = 0;
    const sent = this.awaited.findIndex(({ number }) => number === beat);
    const [found] = this.awaited.splice(0, sent + 1).slice(-1);
    if (found === undefined) return;
    this.returnMs = Math.max(0, this.options.clock.now() - (found.answeredAt ?? Infinity));
    this.heard = { ...this.heard, until: found.at };
    this.overdue = false;
    this.compareForUnverified();
  }

  private onOther(notice: Notice): void {
    const { from, untold, changes = [], asks } = notice;
    this.meetOther(from);
    this.peers.verify(from);
    this.noteSubscriptions(notice);
    if (asks === true) {
      this.subscriptions.answer(channelOf(from));
      this.flushSoon();
    }
    if (changes.length > 0) this.options.meter?.notified('received', changes.length);
    this.passHints(notice);
    if (untold === true) this.options.onGap();
  }

  private meetOther(id: string): void {
    if (this.others === 0) {
      this.others = 1;
      this.options.onOthers();
    }
    this.alone = false;
    if (!this.peers.seen(id, this.options.clock.now())) return;
    this.others = Math.max(this.others, this.peers.size);
    // It missed the announcements made before this instance knew of it.
    this.queueNotice(channelOf(id), { untold: true, asks: true });
  }

  private queueNotice(channel: string, notice: Omit<Notice, 'from'>): void {
    this.queue.notice(channel, notice);
    this.flushSoon();
  }

  /** Sends the heads that this instance published after the sockets were opened and before the subscription arrived. */
  private noteSubscriptions({ from, parts, set, added, late }: Notice): void {
    if (parts === undefined && added === undefined) return;
    const missed = [...this.recent.all(this.options.clock.now())].filter(
      ({ bucket }) => !this.peers.subscribes(from, bucket),
    );
    this.peers.subscribe(from, { parts, set, added });
    for (const { hint, bucket } of missed) if (this.peers.subscribes(from, bucket)) this.hint(channelOf(from), hint);
    // It was sent after the last own heartbeat that came back, so its sockets were opened at most `late` before that.
    if (late === undefined || this.recent.reaches(this.heard.until - late - SLOW_MS)) return;
    this.queueNotice(channelOf(from), { untold: true });
  }

  private reportForeign(): void {
    this.report(new Error('a notification came that is none of ours'));
  }

  /** Once between two heartbeats, and without the payload: contents do not belong in a log, encrypted or not. */
  private report(error: unknown): void {
    if (!this.reported) this.options.onFault(error);
    this.reported = true;
  }

  private async beat(): Promise<void> {
    if (this.closed) return;
    this.reported = false;
    const beat: Beat = { number: ++this.beats, at: this.options.clock.now() };
    if (this.awaited.push(beat) > AWAITED_MAX) this.awaited.shift();
    try {
      await this.registerNow();
      beat.answeredAt = this.options.clock.now();
      this.expectBack();
      this.renewSubscriptions();
      // Not awaited: it may take until the network is back, and heartbeats must continue.
      if (++this.unheard <= UNHEARD_MAX || this.closed) return;
      this.unheard = 0;
      this.listener.replace();
    } catch (error) {
      this.options.onFault(error);
    }
  }

  /**
   * If a heartbeat does not come back in time, heads are compared with the database until the next one. A slow
   * statement does not count as that, nor does a heartbeat as late as the one before: comparing would only add load to
   * a database or a machine that is already busy.
   */
  private expectBack(): void {
    const { clock, onGap } = this.options;
    const next = this.awaited.find(({ answeredAt, missed }) => answeredAt !== undefined && !missed);
    if (this.closed || next?.answeredAt === undefined) return;
    if (this.backTimer !== undefined && this.backOf === next) return;
    this.backTimer?.cancel();
    const patience = Math.min(BACK_MAX_MS, Math.max(BACK_MS, BACK_TIMES * this.returnMs));
    // Never longer, even if the clock was set back.
    const left = Math.min(patience, next.answeredAt + patience - clock.now());
    this.backTimer = clock.setTimer(left, () => {
      this.backTimer = undefined;
      if (this.awaited.includes(next)) {
        next.missed = true;
        if (!this.overdue) this.hintRecent();
        this.overdue = true;
        onGap();
      }
      this.expectBack();
    });
    this.backOf = next;
  }

  /** Uses the database's clock, since instances' clocks may differ. */
  private async registerNow(): Promise<void> {
    const untold = this.unannounced;
    this.unannounced = false;
    const { instanceId } = this.options;
    // The others read the heartbeat in the table, unless they have to be notified at once.
    const channel = untold || this.beats === 1 ? CHANNEL : channelOf(instanceId);
    const beat = { from: instanceId, beat: this.beats, ...(untold ? { untold } : {}) } satisfies Notice;
    const signed = this.mac.sign(channel, JSON.stringify(beat));
    const { rows } = await this.options.pool
      .query<Registered>(registration(this.options.status(), { id: instanceId, channel, signed }))
      .catch((error: unknown) => {
        this.unannounced ||= untold;
        throw error;
      });
    const [found] = rows;
    if (found === undefined) return;
    const others = found.others.length;
    const appeared = this.others === 0 && others > 0;
    // An instance appeared that was not known: nothing may have been announced to it since the last heartbeat.
    if (others > this.others && this.beats > 1) this.unannounced = true;
    if (found.mismatched.length > this.mismatched) this.options.onFault(otherSecrets(found.mismatched));
    this.mismatched = found.mismatched.length;
    this.others = others;
    for (const id of found.others) this.meetOther(id);
    this.links?.keep(found.others);
    if (found.silent !== null && found.silent !== this.silent) this.options.onGap();
    this.silent = found.silent;
    if (appeared || (found.fresh && others > 0)) this.options.onOthers();
    const { asked_at: askedAt, ms, alone } = found;
    // A row that was lost with the database contains no order: the one already followed stands.
    if (askedAt === null || askedAt === this.drainAskedAt) return;
    this.drainAskedAt = askedAt;
    this.options.onDrain({ ms, alone });
    // The operator waits for the confirmation that the order is followed.
    void this.beating.fresh();
  }

  /**
   * Changes of an instance of another version, or with another key, are dropped unread, so that an own heartbeat that came
   * back proves nothing of them: heads are compared while nothing of it was verified. It answers `asks` in any case.
   */
  private compareForUnverified(): void {
    const unverified = this.peers.unverified();
    if (unverified.some((id) => this.unverified.includes(id))) this.options.onGap();
    this.unverified = unverified;
  }

  /** Every RENEW_MS the subscriptions are rebuilt without tenants whose sockets are gone, and sent. */
  private renewSubscriptions(): void {
    const now = this.options.clock.now();
    this.peers.forget(now - SEEN_MS);
    this.alone = this.others === 0 && this.peers.size === 0;
    if (this.mayRenew()) this.subscriptions.renew(this.options.tenants());
    // Includes those left over by a failed statement.
    if (this.subscriptions.waiting) this.flushSoon();
  }
}

/** One statement for all payloads: each commit with NOTIFY takes a database-wide lock. */
const NOTIFY = 'SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) AS n (channel, payload)';
