/** The client's address behind proxies (reference, Configuration). Pure. */
import { isIP } from 'node:net';

/** 16 bytes; IPv4 in its IPv6-mapped form, so that one address has one representation. */
type Address = Uint8Array;

/** Hops of `X-Forwarded-For` that are examined at most. */
const HOPS_MAX = 32;

const MAPPED_PREFIX = Uint8Array.of(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff);

const isMapped = (address: Address): boolean => MAPPED_PREFIX.every((byte, at) => address[at] === byte);

function mapped(four: readonly number[]): Address {
  const address = new Uint8Array(16);
  address.set(MAPPED_PREFIX);
  address.set(four, 12);
  return address;
}

const groupsOf = (text: string): number[] =>
  text === ''
    ? []
    : text.split(':').flatMap((group) => {
        if (!group.includes('.')) return [Number.parseInt(group, 16)];
        const [a = 0, b = 0, c = 0, d = 0] = group.split('.').map(Number);
        return [a * 256 + b, c * 256 + d];
      });

/** Parses an address; undefined for any other text. A zone (`%eth0`) is dropped. */
export function parseAddress(text: string): Address | undefined {
  const version = isIP(text);
  if (version === 4) return mapped(text.split('.').map(Number));
  if (version !== 6) return undefined;
  const [plain = ''] = text.split('%');
  const [head = '', tail] = plain.split('::');
  const first = groupsOf(head);
  const last = tail === undefined ? [] : groupsOf(tail);
  const groups = [...first, ...Array<number>(8 - first.length - last.length).fill(0), ...last];
  return Uint8Array.from(groups.flatMap((group) => [group >> 8, group & 255]));
}

/** An address from the 4 or 16 raw bytes of a socket's peer. */
export function addressOfPeer(raw: ArrayBuffer | Uint8Array): Address | undefined {
  const bytes = new Uint8Array(raw);
  if (bytes.length === 4) return mapped([...bytes]);
  return bytes.length === 16 ? Uint8Array.from(bytes) : undefined;
}

/** A hop as proxies write it: an address with an optional port (`1.2.3.4:5`, `[::1]:5`). */
function parseHop(text: string): Address | undefined {
  const bracketed = /^\[([^\]]+)\](?::\d{1,5})?$/.exec(text);
  if (bracketed !== null) return parseAddress(bracketed[1] ?? '');
  return parseAddress(/^[\d.]+:\d{1,5}$/.test(text) ? text.slice(0, text.indexOf(':')) : text);
}

interface Range {
  readonly address: Address;
  readonly bits: number;
}

function parseRange(cidr: string): Range {
  const [text = '', prefix = ''] = cidr.split('/');
  const address = parseAddress(text);
  if (address === undefined) throw new Error(`not an address range: ${cidr}`);
  return { address, bits: isIP(text) === 4 ? 96 + Number(prefix) : Number(prefix) };
}

function contains({ address: base, bits }: Range, address: Address): boolean {
  // `::/0` means every IPv6 address, but not the mapped IPv4 addresses.
  if (bits < 96 && isMapped(address)) return false;
  for (let at = 0; at < bits; at += 8) {
    const mask = bits - at >= 8 ? 0xff : 0xff << (8 - (bits - at));
    if ((((base[at >> 3] ?? 0) ^ (address[at >> 3] ?? 0)) & mask) !== 0) return false;
  }
  return true;
}

/** The proxies whose headers are trusted. */
export class TrustedProxies {
  private readonly ranges: readonly Range[];

  /** @param cidrs `address/prefix`, as the configuration checked them. */
  constructor(cidrs: readonly string[]) {
    this.ranges = cidrs.map(parseRange);
  }

  /** False for no address. */
  trusts(address: Address | undefined): boolean {
    return address !== undefined && this.ranges.some((range) => contains(range, address));
  }

  /**
   * The client's address: the peer, or the right-most untrusted hop of `X-Forwarded-For` when the peer is trusted.
   * Examines at most HOPS_MAX hops. A malformed hop ends the search at the hop that sent it.
   */
  clientOf(peer: Address, forwardedFor: string): Address {
    let client = peer;
    let rest = forwardedFor;
    // Bounded: a client may send a long header in which every hop is trusted.
    for (let hops = 0; hops < HOPS_MAX && rest !== '' && this.trusts(client); hops++) {
      const comma = rest.lastIndexOf(',');
      const next = parseHop(rest.slice(comma + 1).trim());
      if (next === undefined) break;
      client = next;
      rest = rest.slice(0, Math.max(0, comma));
    }
    return client;
  }
}

/** The key of rate limits and budgets per client address: an IPv4 address, or an IPv6 /64. */
export function limitKey(address: Address): string {
  if (isMapped(address)) return address.subarray(12).join('.');
  return `${Buffer.from(address.subarray(0, 8)).toString('hex')}/64`;
}
