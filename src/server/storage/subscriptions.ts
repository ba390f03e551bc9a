/**
 * Which tenants' changes go to which instance: each subscribes to the tenants with a socket there. A subscription is a set
 * of hashes; if two tenants share a hash, an instance is sent changes that it ignores.
 */
import { deflateRawSync, inflateRawSync } from 'node:zlib';
import type { NoticeQueue } from './notice-queue.js';
import { partsNotices, type Hint, type Notice } from './notice.js';

/** With sockets of 20,000 tenants on an instance, one change in fourteen is sent there needlessly. */
const BUCKETS = 262_144;
const SET_BYTES = BUCKETS / 8;
/** A set is sent in parts, so that each fits into a notification however full the set is. */
export const SET_PARTS = 8;
const PART_BYTES = SET_BYTES / SET_PARTS;
/** Instances whose subscriptions are kept; further instances get hints. */
const PEERS_MAX = 512;

/** FNV-1a, 32 bits, folded. */
export function bucketOf(tenantId: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < tenantId.length; i++) hash = Math.imul(hash ^ tenantId.charCodeAt(i), 0x01000193);
  return ((hash >>> 14) ^ hash) & (BUCKETS - 1);
}

/** A set of tenants with false positives. */
export class TenantSet {
  private readonly bits = Buffer.alloc(SET_BYTES);

  /** Adds a bucket; invalid numbers change nothing. True if it was not present. */
  add(bucket: number): boolean {
    if (!Number.isInteger(bucket) || bucket < 0 || bucket >= BUCKETS || this.has(bucket)) return false;
    this.bits[bucket >> 3] = (this.bits[bucket >> 3] ?? 0) | (1 << (bucket & 7));
    return true;
  }

  has(bucket: number): boolean {
    return ((this.bits[bucket >> 3] ?? 0) & (1 << (bucket & 7))) !== 0;
  }

  /** A part of the set, compressed: empty parts take nearly nothing. */
  part(n: number): string {
    return deflateRawSync(this.bits.subarray(n * PART_BYTES, (n + 1) * PART_BYTES)).toString('base64');
  }

  /** Replaces a part by the result of `part`. False, with nothing changed, if it cannot be read. */
  setPart(n: number, text: string): boolean {
    if (!Number.isInteger(n) || n < 0 || n >= SET_PARTS) return false;
    try {
      const bytes = inflateRawSync(Buffer.from(text, 'base64'), { maxOutputLength: PART_BYTES });
      if (bytes.length !== PART_BYTES) return false;
      bytes.copy(this.bits, n * PART_BYTES);
      return true;
    } catch {
      // Not from an instance of this version.
      return false;
    }
  }
}

class Peer {
  /** Something came that it has signed with the key of this instance. */
  verified = false;
  readonly subscriptions = new TenantSet();
  /** The parts received. Until all of them are, the peer is assumed to subscribe to every tenant. */
  readonly received = new Set<number>();
  /** Set number of each part. */
  readonly sets: number[] = [];

  constructor(public heardAt: number) {}
}

/** The other instances, and the subscriptions of each. */
export class Peers {
  private readonly peers = new Map<string, Peer>();

  get size(): number {
    return this.peers.size;
  }

  /** Notes a sign of life. True if the instance was not known. */
  seen(id: string, now: number): boolean {
    const peer = this.peers.get(id);
    if (peer !== undefined) peer.heardAt = now;
    else if (this.peers.size < PEERS_MAX) this.peers.set(id, new Peer(now));
    return peer === undefined && this.peers.has(id);
  }

  /** Something came of a known instance that only an instance with the same key can send. */
  verify(id: string): void {
    const peer = this.peers.get(id);
    if (peer !== undefined) peer.verified = true;
  }

  unverified(): string[] {
    return [...this.peers].filter(([, { verified }]) => !verified).map(([id]) => id);
  }

  /**
   * Notes subscriptions of a known instance. Ignores parts of earlier sets, and of the same set, which has grown since.
   */
  subscribe(id: string, { parts = [], set = 0, added = [] }: Pick<Notice, 'parts' | 'set' | 'added'>): void {
    const peer = this.peers.get(id);
    if (peer === undefined) return;
    for (const [n, bits] of parts) {
      if (set <= (peer.sets[n] ?? 0) || !peer.subscriptions.setPart(n, bits)) continue;
      peer.sets[n] = set;
      peer.received.add(n);
    }
    for (const bucket of added) peer.subscriptions.add(bucket);
  }

  /** The known subscriptions may be out of date: until an instance sends all of them again it gets every change. */
  doubt(): void {
    for (const { received } of this.peers.values()) received.clear();
  }

  /** Removes instances without a sign of life since `before`. */
  forget(before: number): void {
    for (const [id, { heardAt }] of this.peers) if (heardAt < before) this.peers.delete(id);
  }

  /** The instances that may subscribe to a tenant of this bucket. */
  subscribers(bucket: number): string[] {
    const found: string[] = [];
    for (const [id, peer] of this.peers) if (subscribes(peer, bucket)) found.push(id);
    return found;
  }

  /** Whether this instance may subscribe to a tenant of this bucket. */
  subscribes(id: string, bucket: number): boolean {
    const peer = this.peers.get(id);
    return peer !== undefined && subscribes(peer, bucket);
  }
}

const subscribes = ({ received, subscriptions }: Peer, bucket: number): boolean =>
  received.size < SET_PARTS || subscriptions.has(bucket);

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

/** The subscriptions of this instance. */
export class Subscriptions {
  private set = new TenantSet();
  private pending = nothing();
  private sending = nothing();
  /** Increases with each sending, and numbers whole sets: a statement that hung may deliver an earlier set later. */
  private sets = 0;

  /**
   * Adds a tenant, whose changes are needed from `since` on, ms, and queues it for announcement to the others. False if
   * it is present already.
   */
  add(tenantId: string, since: number): boolean {
    const bucket = bucketOf(tenantId);
    if (!this.set.add(bucket)) return false;
    this.pending.added.push(bucket);
    this.pending.since = Math.min(this.pending.since, since);
    return true;
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
   * Queues the pending notices; `channel` is that of all instances. Call `failed` before the next call if they could
   * not be sent. Returns the number of tenants added.
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

  /** The last queued notices must be sent again. */
  failed(): void {
    const { renewed, added, since, askers } = this.sending;
    this.pending.renewed ||= renewed || added.length > 0;
    this.pending.since = Math.min(this.pending.since, since);
    for (const asker of askers) this.pending.askers.add(asker);
  }
}

const KEPT_MS = 20_000;
const TENANTS_MAX = 50_000;

/**
 * The heads that this instance published in the last seconds. Another instance's subscription arrives a little after
 * the tenant's first socket was opened; changes published in between were not sent there, so their heads are sent then.
 */
export class RecentHeads {
  /** Ordered by the last change. */
  private readonly heads = new Map<string, { readonly hint: Hint; readonly bucket: number; readonly at: number }>();
  /** Every head published after this time, ms, is present. */
  private completeSince = -Infinity;

  /** Notes a head. Returns the bucket of its tenant. */
  note(hint: Hint, now: number): number {
    const [tenantId] = hint;
    const bucket = this.heads.get(tenantId)?.bucket ?? bucketOf(tenantId);
    this.heads.delete(tenantId);
    this.heads.set(tenantId, { hint, bucket, at: now });
    this.evict(now);
    return bucket;
  }

  private evict(now: number): void {
    for (const [id, { at }] of this.heads) {
      if (at > now - KEPT_MS && this.heads.size <= TENANTS_MAX) break;
      this.heads.delete(id);
      this.completeSince = Math.max(this.completeSince, at);
    }
  }

  /** Whether every head published after this time, ms, is present. */
  reaches(since: number): boolean {
    return since >= this.completeSince;
  }

  all(now: number): Iterable<{ readonly hint: Hint; readonly bucket: number }> {
    this.evict(now);
    return this.heads.values();
  }
}
