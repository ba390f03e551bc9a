/** The tenants whose changes other instances send here: those with a socket. */
import type { NoticeQueue } from './notice-queue.js';
import { partsNotices } from './notice.js';
import { bucketOf, SET_PARTS, TenantSet } from './peers.js';

/** Maximum of buckets in one notification. */
const ADDED_EACH = 900;
/** Added buckets beyond which sending the whole set takes fewer notifications. */
const ADDED_MAX = 8 * ADDED_EACH;

interface Pending {
  /** All instances get the whole set. */
  renewed: boolean;
  added: number[];
  /** Earliest time, ms, from which on changes of a newly added tenant must reach this instance. */
  since: number;
  /** Channels of instances that get the whole set. */
  readonly askers: Set<string>;
}

const nothing = (): Pending => ({ renewed: false, added: [], since: Infinity, askers: new Set() });

export class Subscriptions {
  private set = new TenantSet();
  private pending = nothing();
  private sending = nothing();
  /** Increases with each sending, and numbers whole sets: a statement that hung may deliver an earlier set later. */
  private sets = 0;

  /** Adds a tenant. True if it was not present. */
  add(tenantId: string): boolean {
    return this.set.add(bucketOf(tenantId));
  }

  /** Queues this tenant, whose changes are needed from `since` on, ms, for announcement to the others. */
  tell(tenantId: string, since: number): void {
    this.pending.added.push(bucketOf(tenantId));
    this.pending.since = Math.min(this.pending.since, since);
  }

  /** Rebuilds the set with these tenants only. */
  renew(tenants: Iterable<string>): void {
    this.set = new TenantSet();
    for (const tenantId of tenants) this.set.add(bucketOf(tenantId));
    this.pending.renewed = true;
    this.pending.added = [];
  }

  /** The instance with this channel requests the whole set. */
  answer(channel: string): void {
    this.pending.askers.add(channel);
  }

  get waiting(): boolean {
    const { renewed, added, askers } = this.pending;
    return renewed || added.length > 0 || askers.size > 0;
  }

  /**
   * Queues the pending notices; `channel` is that of all instances. Call `sent` or `failed` before the next call.
   * Returns the number of tenants added.
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

  /** The last queued notices must be sent again. */
  failed(): void {
    const { renewed, added, since, askers } = this.sending;
    this.pending.renewed ||= renewed || added.length > 0;
    this.pending.since = Math.min(this.pending.since, since);
    for (const asker of askers) this.pending.askers.add(asker);
    this.sending = nothing();
  }
}
