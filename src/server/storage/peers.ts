/**
 * Which instances are up, and the tenants that each of them subscribes to: those with a socket there. A subscription is
 * a set of hashes; where two tenants share one, an instance is sent changes that it ignores.
 */

const BUCKETS = 32_768;
const SET_BYTES = BUCKETS / 8;
/** Instances whose subscriptions are kept; further ones get hints. */
const PEERS_MAX = 512;

/** FNV-1a, 32 bits, folded. */
function bucketOf(tenantId: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < tenantId.length; i++) hash = Math.imul(hash ^ tenantId.charCodeAt(i), 0x01000193);
  return ((hash >>> 16) ^ hash) & (BUCKETS - 1);
}

/** A set of tenants with false positives. */
export class TenantSet {
  private readonly bits: Buffer;

  /** From the result of `text`; empty where it is malformed. */
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
  setSubscriptions: TenantSet;
  heardAt: number;
}

/** The other instances. */
export class Peers {
  private readonly peers = new Map<string, Peer>();

  get size(): number {
    return this.peers.size;
  }

  /** Notes a heartbeat. True where the instance was not known. */
  seen(id: string, now: number): boolean {
    const peer = this.peers.get(id);
    if (peer !== undefined) peer.heardAt = now;
    else if (this.peers.size < PEERS_MAX) this.peers.set(id, { setSubscriptions: NONE, heardAt: now });
    return peer === undefined && this.peers.has(id);
  }

  /** Sets the subscriptions of a known instance. */
  wants(id: string, text: string): void {
    const peer = this.peers.get(id);
    if (peer !== undefined) peer.setSubscriptions = new TenantSet(text);
  }

  /** Removes instances without a heartbeat since `before`. */
  forget(before: number): void {
    for (const [id, { heardAt }] of this.peers) if (heardAt < before) this.peers.delete(id);
  }

  /** The instances that subscribe to the tenant. */
  subscribers(tenantId: string): string[] {
    const found: string[] = [];
    for (const [id, { setSubscriptions: wants }] of this.peers) if (wants.has(tenantId)) found.push(id);
    return found;
  }
}
