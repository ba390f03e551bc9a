/** How many sockets and connections the process has file descriptors for. */
import { readFileSync } from 'node:fs';

/** Reserved for database connections, requests and blob files: a share of all descriptors, and a minimum. */
const KEPT_SHARE = 1 / 20;
const KEPT_MIN = 128;

/** What file descriptors there are for. */
export interface DescriptorRoom {
  /** Device sockets. */
  readonly sockets: number;
  /** Device sockets and HTTP connections together: half of what is kept from sockets is kept from these, too. */
  readonly connections: number;
}

/**
 * Numbers that leave enough descriptors for everything else. Without these bounds a reconnect storm takes them all, and
 * the server can no longer connect to its database. Infinity if the system does not report its limit (Linux does).
 */
export function descriptorRoom(): DescriptorRoom {
  let limits: string;
  try {
    limits = readFileSync('/proc/self/limits', 'utf8');
  } catch {
    return { sockets: Infinity, connections: Infinity };
  }
  // The soft limit, which Node raises to the hard one when it starts; `unlimited` has no digits.
  const descriptors = Number(/^Max open files\s+(\d+)/m.exec(limits)?.[1] ?? Infinity);
  const kept = Math.max(KEPT_MIN, descriptors * KEPT_SHARE);
  const room = (left: number): number => Math.max(1, Math.floor(descriptors - left));
  return { sockets: room(kept), connections: room(kept / 2) };
}
