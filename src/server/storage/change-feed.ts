/**
 * Notifies the other instances of changes by LISTEN/NOTIFY. A notification of a head is only a hint. It is sent outside
 * the write's transaction, since NOTIFY holds a database-wide lock until after the commit; coalesced over a few
 * milliseconds; and not at all while no other instance is up. Generations are notified by the database itself, in the
 * transaction that raises them (sql/0016_generation_notices.sql).
 *
 * PostgreSQL delivers notifications in the order of commits. So an instance that receives its own heartbeat has received
 * whatever was notified before it (`heard`), and nothing has to be compared with the database. What may be missing in
 * spite of that is told by its sender with its next heartbeat (`untold`), or was not announced by one that died: `onGap`
 * is called then, as after every break of the listening connection, and heads have to be compared.
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
import { Socket } from 'node:net';
import type pg from 'pg';
import pgListen, { type Subscriber } from 'pg-listen';
import type { Clock, Timer } from '../../protocol/clock.js';
import type { Meter } from '../../protocol/meter.js';
import { HEAD_COMPARE_MS } from '../../protocol/limits.js';
import { SingleFlight } from '../../protocol/single-flight.js';
import type { ItemRow, Position } from '../tenant/change.js';
import type { ChangeAnnouncer, Heard } from '../tenant/ports.js';
import { noticeOf, payloadsOf, type Hint, type Notice, type TenantNotice } from './notice.js';
import { encodeRows, decodeRows, type NotifiedRows, type NotificationPart } from './notification.js';
import { Peers, TenantSet } from './peers.js';

/** The channel of all instances; each has another one with its id behind this prefix. */
const CHANNEL = 'service';
/** Notified by a trigger: a tenant's id and generation. */
const GENERATIONS = 'service_generations';
const channelOf = (instanceId: string): string => `${CHANNEL}_${instanceId}`;
/** Between two NOTIFY statements, ms. The first one is sent at once. */
const COALESCE_MS = 5;
/** Carried changes queued for the next statement, characters; beyond it hints are sent. */
const CARRIED_WAITING_MAX = 4 * 1024 * 1024;
/**
 * Delay of a subscription after a tenant's first socket, ms, so that those of many tenants are sent together. In a
 * reconnect storm the interval between two grows: until an instance knows the subscription it sends the head, which
 * costs a read, not a change.
 */
const SUBSCRIBE_MS = 50;
const ATTEND_AGAIN_MS = 2_000;
/** Subscriptions are made anew and sent this often, ms: sockets go, and an announcement may be lost. */
const RENEW_MS = 60_000;
/** Tenants waiting to be announced; beyond it further tenants are left to the comparison of heads. */
const WAITING_MAX = 50_000;
/** Between two heartbeats, ms; and how long after its statement one may come until notifications count as lost. */
const BEAT_MS = HEAD_COMPARE_MS - 1_000;
const BACK_MS = 750;
/** An instance without a heartbeat for this time, ms, may have died without announcing its last changes. */
const SILENT_MS = 9_000;
/** After this time, ms, it counts as gone, and so do its sockets. */
export const SEEN_MS = 15_000;
/** Own heartbeats that may be missed before this instance makes a new subscriber. */
const UNHEARD_MAX = 3;
/** Attempts of one subscriber to connect again, three seconds in all; then another one is made. */
const RETRIES_MAX = 4;
const FORGET_MS = 10 * 60_000;
const PARANOID_MS = 10_000;

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
  /** The other instances that are up. */
  readonly others: readonly string[];
  /** The last heartbeat of one that may be dead, by the database's clock. */
  readonly silent: number | null;
  readonly asked_at: number | null;
  readonly ms: number;
  readonly alone: boolean;
}

/** A listening connection that is kept up. */
interface Listening {
  readonly subscriber: Subscriber;
  /** Resolves when it is connected; also when it was ended before, of which the driver says nothing. Rejects as `connect`. */
  readonly connected: () => Promise<void>;
  /** Ends it without waiting for the other side: over a half-open connection that would never answer. */
  readonly end: () => Promise<void>;
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
  /** Notifications may be missing: heads have to be compared. */
  readonly onGap: () => void;
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
  private current: Listening | undefined;
  private readonly waiting = new Map<string, [head: number, generation: number]>();
  /** Queued carried changes, as JSON, by receiving instance. */
  private carried = new Map<string, string[]>();
  private carriedChars = 0;
  private readonly peers = new Peers();
  private wanted = new TenantSet();
  /** True where the next statement has to carry this instance's subscriptions. */
  private subscriptionsPending = false;
  private flushedAt = 0;
  /** When the subscriptions were sent last, and made anew, ms. */
  private subscriptionsSentAt = 0;
  private renewedAt = -Infinity;
  private attendTimer: Timer | undefined;
  /** True where an unreadable notification was reported since the last heartbeat. */
  private reported = false;
  private flushTimer: Timer | undefined;
  private beatTimer: Timer | undefined;
  private backTimer: Timer | undefined;
  private readonly flushing = new SingleFlight(() => this.flush());
  private readonly beating = new SingleFlight(() => this.beat());
  /** Pending attempts to replace the subscriber; `close` waits for them. */
  private readonly listening = new Set<Promise<void>>();
  private unheard = 0;
  /** The last heartbeat. */
  private sent = { beat: 0, at: -Infinity };
  private heardBetween: Heard = { since: Infinity, until: -Infinity };
  /** Instances that were heard for the first time since the last statement. */
  private readonly newcomers: string[] = [];
  /** True where an announcement was dropped or may have failed since the last heartbeat. */
  private untold = false;
  private others = 0;
  /** As the database told of it last; see `Registered`. */
  private silent: number | null = null;
  /** When the last order to drain was given, by the database's clock. */
  private drainAskedAt: number | null = null;
  private closed = false;

  constructor(private readonly options: ChangeFeedOptions) {}

  /** True while another instance is known to be up. */
  get othersUp(): boolean {
    return this.others > 0;
  }

  /** What is notified between these times is here; see `Heard`. */
  get heard(): Heard {
    return this.heardBetween;
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
   * Queues a notification of the tenant's head and generation, to be sent within a few milliseconds with others. Where
   * that fails, the other instances compare heads after the next heartbeat.
   */
  announce(tenantId: string, head: number, generation: number): void {
    if (this.others === 0 || this.closed) return;
    const before = this.waiting.get(tenantId);
    if (before === undefined && this.waiting.size >= WAITING_MAX) {
      this.untold = true;
      return;
    }
    this.waiting.set(tenantId, [Math.max(head, before?.[0] ?? 0), Math.max(generation, before?.[1] ?? 0)]);
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
    this.backTimer?.cancel();
    this.attendTimer?.cancel();
    const { current } = this;
    // Before the first await: a pending attempt ends itself once it is not the current one.
    this.current = undefined;
    await this.beating.idle();
    await this.flushing.fresh();
    const { instanceId, pool, onFault } = this.options;
    // Its silence makes the others compare heads.
    if (!this.untold) await pool.query('DELETE FROM instances WHERE id = $1', [instanceId]).catch(onFault);
    await current?.end();
    await Promise.all(this.listening);
  }

  private async flush(): Promise<void> {
    const lines = this.takeLines();
    if (lines.length === 0) return;
    try {
      await this.options.pool.query({ name: 'notify', text: NOTIFY, values: [lines.join('\n')] });
    } catch (error) {
      this.untold = true;
      this.renewedAt = -Infinity;
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
    // Announcements that were made before this instance knew of them.
    for (const id of this.newcomers.splice(0)) {
      const notice: Notice = { from: this.options.instanceId, untold: true };
      lines.push(`${channelOf(id)}\t${JSON.stringify(notice)}`);
    }
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

  /** A subscriber of pg-listen, not connected yet. */
  private newListening(connection: pg.ClientConfig): Listening {
    const sockets = new Set<Socket>();
    const stream = (): Socket => {
      const socket = new Socket();
      sockets.add(socket);
      return socket.once('close', () => sockets.delete(socket));
    };
    const subscriber: Subscriber = pgListen.default(
      { ...connection, stream },
      {
        retryTimeout: Infinity,
        retryLimit: Infinity,
        retryInterval: (attempt) => {
          if (this.current?.subscriber !== subscriber) throw new Error('replaced or closed');
          // It knows one server; another one may have taken over.
          if (attempt >= RETRIES_MAX) throw new Error('tried often enough');
          return 100 * 2 ** attempt;
        },
        paranoidChecking: PARANOID_MS,
        // Parsed by us: pg-listen would put the text of an unreadable payload into its error.
        parse: (payload) => payload,
      },
    );
    let noteEnd = (): void => undefined;
    const ended = new Promise<void>((resolve) => (noteEnd = resolve));
    const end = async (): Promise<void> => {
      noteEnd();
      const closed = subscriber.close().catch(this.options.onFault);
      for (const socket of sockets) socket.destroy();
      await closed;
    };
    return { subscriber, connected: async () => Promise.race([subscriber.connect(), ended]), end };
  }

  private async listen(): Promise<void> {
    const { onFault } = this.options;
    const connection = await this.options.connection();
    if (this.closed) return;
    const listening = this.newListening(connection);
    const { subscriber, connected, end } = listening;
    this.current = listening;
    const own = channelOf(this.options.instanceId);
    for (const channel of [CHANNEL, own]) {
      subscriber.notifications.on(channel, (payload: unknown) => this.onPayload(payload));
    }
    subscriber.notifications.on(GENERATIONS, (payload: unknown) => this.onGeneration(payload));
    subscriber.events.on('error', (error) => {
      if (this.current !== listening) return;
      // It has given up.
      onFault(error);
      this.listenAnew();
    });
    try {
      await connected();
    } catch (error) {
      // pg-listen keeps trying in the background; the channels below are subscribed when it succeeds.
      if (this.current === listening) onFault(error);
    }
    if (this.current !== listening) {
      // Replaced or closed while it connected: `close` was called before there was a connection.
      await end();
      return;
    }
    // Only now: the first `connected` event comes before LISTEN, and notifications in between would be missed.
    await Promise.all([subscriber.listenTo(CHANNEL), subscriber.listenTo(own), subscriber.listenTo(GENERATIONS)]).then(
      () => this.onConnected(),
      onFault,
    );
    subscriber.events.on('connected', () => {
      if (this.current === listening) this.onConnected();
      else void end();
    });
  }

  /** The listening connection was opened, or opened again: notifications in between are lost. */
  private onConnected(): void {
    this.heardBetween = { ...this.heardBetween, since: this.options.clock.now() };
    this.options.onGap();
  }

  private onGeneration(payload: unknown): void {
    const [, tenantId, generation] = /^(\S{1,64}) (\d{1,15})$/.exec(String(payload)) ?? [];
    if (tenantId === undefined) this.report(new Error('a notification came that is none of ours'));
    else this.options.onHint(tenantId, 0, Number(generation));
  }

  private onPayload(payload: unknown): void {
    const notice = noticeOf(payload);
    if (notice === undefined) this.report(new Error('a notification came that is none of ours'));
    else this.onNotice(notice);
  }

  private onNotice(notice: Notice): void {
    if (notice.from === this.options.instanceId) this.onOwn(notice);
    else this.onOther(notice);
  }

  private onOwn({ beat }: Notice): void {
    if (beat === undefined) return;
    this.unheard = 0;
    if (beat === this.sent.beat) this.heardBetween = { ...this.heardBetween, until: this.sent.at };
  }

  private onOther({ from, untold, changes = [], wants }: Notice): void {
    if (this.others === 0) {
      this.others = 1;
      this.options.onOthers();
    }
    this.noteOther(from);
    if (wants !== undefined) this.peers.wants(from, wants);
    if (changes.length > 0) this.options.meter?.notified('received', changes.length);
    for (const told of changes) this.onTenantNotice(told);
    if (untold === true) this.options.onGap();
  }

  private noteOther(id: string): void {
    if (!this.peers.seen(id, this.options.clock.now())) return;
    this.others = Math.max(this.others, this.peers.size);
    this.newcomers.push(id);
    this.tellWanted();
  }

  private onTenantNotice([tenantId, head, generation, text]: TenantNotice): void {
    const carried = text === undefined ? undefined : this.read(text, head);
    if (carried === undefined) this.options.onHint(tenantId, head, generation);
    else this.options.onChange(tenantId, generation, carried);
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
    this.beatTimer = this.options.clock.setTimer(BEAT_MS, () => {
      this.setBeatTimer();
      // One at a time, and at most one more after it: while the database is slow they must not pile up.
      void this.beating.fresh();
    });
  }

  private async beat(): Promise<void> {
    if (this.closed) return;
    this.reported = false;
    this.sent = { beat: this.sent.beat + 1, at: this.options.clock.now() };
    try {
      await this.registerNow();
      this.expectBack();
      this.renewSubscriptions();
      // Not awaited: it may take until the network is back, and heartbeats have to continue.
      if (++this.unheard > UNHEARD_MAX && !this.closed) this.listenAnew();
    } catch (error) {
      this.options.onFault(error);
    }
  }

  /**
   * A heartbeat that does not come back: until the next one what is known is compared with the database. One whose
   * statement takes long says nothing of that: a database that is busy would get still more to do.
   */
  private expectBack(): void {
    const { clock, onGap } = this.options;
    const { at } = this.sent;
    this.backTimer?.cancel();
    if (this.closed || this.heardBetween.until >= at) return;
    this.backTimer = clock.setTimer(BACK_MS, () => {
      if (this.heardBetween.until < at) onGap();
    });
  }

  /** By the database's clock: instances' clocks may differ. */
  private async registerNow(): Promise<void> {
    const { host, pid, port, version, sockets, draining } = this.options.standing();
    const { untold } = this;
    this.untold = false;
    const { instanceId } = this.options;
    const beat = {
      from: instanceId,
      beat: this.sent.beat,
      ...(untold ? { untold } : {}),
    } satisfies Notice;
    const { rows } = await this.options.pool
      .query<Registered>(REGISTER, [
        ...[instanceId, JSON.stringify(beat), host, pid, port, version, sockets, draining],
        // The others read of it in the table, unless they have to know at once.
        untold || beat.beat === 1 ? CHANNEL : channelOf(instanceId),
      ])
      .catch((error: unknown) => {
        this.untold ||= untold;
        throw error;
      });
    const found = rows[0];
    if (found === undefined) return;
    const others = found.others.length;
    const appeared = this.others === 0 && others > 0;
    // One that was not heard of: since the last heartbeat nothing may have been announced to it.
    if (others > this.others && this.sent.beat > 1) this.untold = true;
    this.others = others;
    for (const id of found.others) this.noteOther(id);
    if (found.silent !== null && found.silent !== this.silent) this.options.onGap();
    this.silent = found.silent;
    if (appeared || (found.fresh && others > 0)) this.options.onOthers();
    const { asked_at: askedAt, ms, alone } = found;
    // A row that was lost with the database tells of no order: the one that was followed stands.
    if (askedAt === null || askedAt === this.drainAskedAt) return;
    this.drainAskedAt = askedAt;
    this.options.onDrain({ ms, alone });
    // The operator waits for the word that it follows.
    void this.beating.fresh();
  }

  /** Now and then the subscriptions are rebuilt without tenants whose sockets are gone, and sent. */
  private renewSubscriptions(): void {
    const now = this.options.clock.now();
    this.peers.forget(now - SEEN_MS);
    if (Math.abs(now - this.renewedAt) < RENEW_MS) return;
    this.renewedAt = now;
    this.wanted = new TenantSet();
    for (const tenantId of this.options.tenants()) this.wanted.add(tenantId);
    this.tellWanted();
  }

  private listenAnew(): void {
    const deaf = this.current;
    this.unheard = 0;
    const attempt = this.listen()
      .then(() => deaf?.end(), this.options.onFault)
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
  told AS (SELECT pg_notify($9, $2))
  SELECT mine.fresh, mine.drain_asked_at AS asked_at, coalesce(mine.drain_ms, 0) AS ms,
    coalesce(mine.drain_alone, false) AS alone, o.others, o.silent
  FROM mine, told, (
    SELECT coalesce(array_agg(i.id), '{}') AS others, min(i.seen_at) FILTER (WHERE i.seen_at < now.ms - ${SILENT_MS}) AS silent
    FROM instances i, now WHERE i.id <> $1 AND i.seen_at >= now.ms - ${SEEN_MS}
  ) AS o`;

/** One statement for all payloads: each commit with NOTIFY takes a database-wide lock. */
const NOTIFY = `SELECT pg_notify(split_part(line, E'\\t', 1), split_part(line, E'\\t', 2)) FROM string_to_table($1, E'\\n') line`;
