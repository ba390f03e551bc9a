/**
 * Which instances are up, and whose tenants' changes each of them wants: those with a socket there. What an instance wants is
 * told as a set of numbers, a hash of each tenant; where two tenants share one, an instance is sent a change too many.
 */

const BUCKETS = 32_768;
const SET_BYTES = BUCKETS / 8;
/** Instances that are known by what they want; the rest is told by hints. */
const PEERS_MAX = 512;

/** FNV-1a, 32 bits, folded. */
function bucketOf(tenantId: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < tenantId.length; i++) hash = Math.imul(hash ^ tenantId.charCodeAt(i), 0x01000193);
  return ((hash >>> 16) ^ hash) & (BUCKETS - 1);
}

/** A set of tenants that may hold more than was put into it. */
export class TenantSet {
  private readonly bits: Buffer;

  /** From a text as `text` gives it; empty where it is none. */
  constructor(text = '') {
    const bits = Buffer.from(text, 'base64');
    this.bits = bits.length === SET_BYTES ? bits : Buffer.alloc(SET_BYTES);
  }

  /** True where it was not there yet. */
  add(tenantId: string): boolean {
    const bucket = bucketOf(tenantId);
    const before = this.bits[bucket >> 3] ?? 0;
    const after = before | (1 << (bucket & 7));
    this.bits[bucket >> 3] = after;
    return after !== before;
  }

  has(tenantId: string): boolean {
    const bucket = bucketOf(tenantId);
    return ((this.bits[bucket >> 3] ?? 0) & (1 << (bucket & 7))) !== 0;
  }

  get text(): string {
    return this.bits.toString('base64');
  }
}

const NONE = new TenantSet();

interface Peer {
  wants: TenantSet;
  heardAt: number;
}

/** The other instances. */
export class Peers {
  private readonly peers = new Map<string, Peer>();

  get size(): number {
    return this.peers.size;
  }

  /** An instance is up. True where it was not known. */
  heard(id: string, now: number): boolean {
    const peer = this.peers.get(id);
    if (peer !== undefined) peer.heardAt = now;
    else if (this.peers.size < PEERS_MAX) this.peers.set(id, { wants: NONE, heardAt: now });
    return peer === undefined && this.peers.has(id);
  }

  /** An instance that is known says what it wants. */
  wants(id: string, text: string): void {
    const peer = this.peers.get(id);
    if (peer !== undefined) peer.wants = new TenantSet(text);
  }

  /** Forgets those that were not heard since. */
  forget(before: number): void {
    for (const [id, { heardAt }] of this.peers) if (heardAt < before) this.peers.delete(id);
  }

  /** Those that want the tenant's changes. */
  wanting(tenantId: string): string[] {
    const found: string[] = [];
    for (const [id, { wants }] of this.peers) if (wants.has(tenantId)) found.push(id);
    return found;
  }
}
