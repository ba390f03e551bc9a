/** The number of sockets that the process has file descriptors for. */
import { readFileSync } from 'node:fs';

/** Reserved for database connections, requests and blob files: a share of all descriptors, and a minimum. */
const KEPT_SHARE = 1 / 20;
const KEPT_MIN = 128;

/**
 * Number of sockets that leaves enough descriptors for everything else. Without this bound a reconnect storm takes them
 * all, and the server can no longer connect to its database. Infinity if the system does not report its limit (Linux
 * does).
 */
export function socketsThatFit(): number {
  let limits: string;
  try {
    limits = readFileSync('/proc/self/limits', 'utf8');
  } catch {
    return Infinity;
  }
  // The soft limit, which Node raises to the hard one when it starts; `unlimited` has no digits.
  const descriptors = Number(/^Max open files\s+(\d+)/m.exec(limits)?.[1] ?? Infinity);
  return Math.max(1, Math.floor(descriptors - Math.max(KEPT_MIN, descriptors * KEPT_SHARE)));
}
