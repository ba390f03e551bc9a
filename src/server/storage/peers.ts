/**
 * The other instances, and the tenants that each subscribes to: those with a socket there. A subscription is a set of
 * hashes; if two tenants share a hash, an instance is sent changes that it ignores.
 */
import { deflateRawSync, inflateRawSync } from 'node:zlib';
import type { Notice } from './notice.js';

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

interface Peer {
  heardAt: number;
  readonly subscriptions: TenantSet;
  /** The parts received. Until all of them are, the peer is assumed to subscribe to every tenant. */
  readonly told: Set<number>;
  /** Set number of each part. */
  readonly sets: number[];
}

export class Peers {
  private readonly peers = new Map<string, Peer>();

  get size(): number {
    return this.peers.size;
  }

  /** Notes a sign of life. True if the instance was not known. */
  seen(id: string, now: number): boolean {
    const peer = this.peers.get(id);
    if (peer !== undefined) peer.heardAt = now;
    else if (this.peers.size < PEERS_MAX)
      this.peers.set(id, { heardAt: now, subscriptions: new TenantSet(), told: new Set(), sets: [] });
    return peer === undefined && this.peers.has(id);
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
      peer.told.add(n);
    }
    for (const bucket of added) peer.subscriptions.add(bucket);
  }

  /** The known subscriptions may be out of date: until an instance sends all of them again it gets every change. */
  doubt(): void {
    for (const { told } of this.peers.values()) told.clear();
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

const subscribes = ({ told, subscriptions }: Peer, bucket: number): boolean =>
  told.size < SET_PARTS || subscriptions.has(bucket);
