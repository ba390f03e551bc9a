/** The tenants whose changes other instances send here: those with a socket. */
import type { NoticeQueue } from './notice-queue.js';
import { partsNotices } from './notice.js';
import { bucketOf, SET_PARTS, TenantSet } from './peers.js';

/** Buckets in one notification. */
const ADDED_EACH = 900;
/** Added buckets beyond which sending the whole set takes fewer notifications. */
const ADDED_MAX = 8 * ADDED_EACH;

interface Pending {
  /** Everybody gets the whole set. */
  renewed: boolean;
  added: number[];
  /** Since when, ms, changes count of a tenant of which the others do not know. */
  since: number;
  /** Channels of instances that get the whole set. */
  readonly askers: Set<string>;
}

const nothing = (): Pending => ({ renewed: false, added: [], since: Infinity, askers: new Set() });

export class Subscriptions {
  private set = new TenantSet();
  private pending = nothing();
  private sending = nothing();
  /** Rises with all that is queued, and numbers whole sets: a statement that hung may tell an earlier one later. */
  private sets = 0;

  /** Adds a tenant. True where it was not there yet. */
  add(tenantId: string): boolean {
    return this.set.add(bucketOf(tenantId));
  }

  /** The others are to be told of this tenant, whose changes count from `since` on, ms. */
  tell(tenantId: string, since: number): void {
    this.pending.added.push(bucketOf(tenantId));
    this.pending.since = Math.min(this.pending.since, since);
  }

  /** Begins anew, without those whose sockets are gone. */
  renew(tenants: Iterable<string>): void {
    this.set = new TenantSet();
    for (const tenantId of tenants) this.set.add(bucketOf(tenantId));
    this.pending.renewed = true;
    this.pending.added = [];
  }

  /** The instance of this channel does not know them. */
  answer(channel: string): void {
    this.pending.askers.add(channel);
  }

  /** True where something is to be sent. */
  get waiting(): boolean {
    const { renewed, added, askers } = this.pending;
    return renewed || added.length > 0 || askers.size > 0;
  }

  /**
   * Queues what is to be sent; `channel` is everybody's. Call `sent` or `failed` before the next time. Returns how many
   * tenants were added.
   */
  queue(notices: NoticeQueue, channel: string, now: number): number {
    const { renewed, added, since, askers } = this.pending;
    this.sending = this.pending;
    this.pending = nothing();
    const late = since === Infinity ? {} : { late: Math.max(0, Math.ceil(now - since)) };
    const whole = askers.size > 0 || renewed || added.length > ADDED_MAX ? this.parts() : [];
    const set = ++this.sets;
    if (renewed || added.length > ADDED_MAX) {
      for (const notice of partsNotices(whole, { set, ...late })) notices.notice(channel, notice);
    } else {
      for (let at = 0; at < added.length; at += ADDED_EACH)
        notices.notice(channel, { added: added.slice(at, at + ADDED_EACH), ...late });
    }
    for (const asker of askers) for (const notice of partsNotices(whole, { set })) notices.notice(asker, notice);
    return added.length;
  }

  private parts(): string[] {
    return Array.from({ length: SET_PARTS }, (_, n) => this.set.part(n));
  }

  sent(): void {
    this.sending = nothing();
  }

  /** What was queued last is to be sent again. */
  failed(): void {
    const { renewed, added, since, askers } = this.sending;
    this.pending.renewed ||= renewed || added.length > 0;
    this.pending.since = Math.min(this.pending.since, since);
    for (const asker of askers) this.pending.askers.add(asker);
    this.sending = nothing();
  }
}
