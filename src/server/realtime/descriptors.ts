/** How many sockets and connections the process has file descriptors for. */
import { readFileSync, statSync } from 'node:fs';
import { atMostEvery, type Clock } from '../../protocol/clock.js';

/** Reserved for database connections, requests and blob files: a share of all descriptors, and a minimum. */
const KEPT_SHARE = 1 / 20;
const KEPT_MIN = 128;
/** The kernel is asked at most this often, ms. */
const LOOK_MS = 100;

export interface DescriptorRoom {
  readonly sockets: number;
  /** Device sockets and HTTP connections together: half of what is kept from sockets is kept from these, too. */
  readonly connections: number;
  /**
   * As many descriptors as for `connections` are in use, whoever holds them. A socket that was ended is not counted as
   * one any more, but holds its descriptor until its client has closed its end, up to 16 s. Linux reports the number since
   * version 6.2; before, this is false.
   */
  readonly isExhausted: () => boolean;
}

/**
 * Numbers that leave enough descriptors for everything else. Without these bounds a reconnect storm takes them all, and
 * the server can no longer connect to its database. Infinity if the system does not report its limit (Linux does).
 */
export function descriptorRoom(clock: Pick<Clock, 'now'>): DescriptorRoom {
  let limits: string;
  try {
    limits = readFileSync('/proc/self/limits', 'utf8');
  } catch {
    return { sockets: Infinity, connections: Infinity, isExhausted: () => false };
  }
  // The soft limit, which Node raises to the hard one when it starts; `unlimited` has no digits.
  const descriptors = Number(/^Max open files\s+(\d+)/m.exec(limits)?.[1] ?? Infinity);
  const kept = Math.max(KEPT_MIN, descriptors * KEPT_SHARE);
  const room = (left: number): number => Math.max(1, Math.floor(descriptors - left));
  const connections = room(kept / 2);
  const mayLook = atMostEvery(clock, LOOK_MS);
  let exhausted = false;
  const isExhausted = (): boolean => {
    if (mayLook()) exhausted = statSync('/proc/self/fd').size >= connections;
    return exhausted;
  };
  return { sockets: room(kept), connections, isExhausted };
}
