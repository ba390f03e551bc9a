/** How many sockets the process has descriptors for. */
import { readFileSync } from 'node:fs';

/** Kept for what sockets depend on: connections of the database, requests, files of blobs. A share of all, and at least. */
const KEPT_SHARE = 1 / 20;
const KEPT_MIN = 128;

/**
 * Sockets that leave enough descriptors for all else. Without this bound a reconnect storm takes them all, and the server
 * can no longer connect to its database. Infinity where the system does not tell its limit (Linux does).
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
