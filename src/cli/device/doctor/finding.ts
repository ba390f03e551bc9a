/** What `doctor` finds: one sentence that says what is, one that says what to do. */
import type { Identity } from '../../../client/identity.js';
import type { Platform } from '../../../client/platform.js';
import type { Context } from '../context.js';

/** The checks, in the order in which they are made (the reference, Doctor). */
export const CHECKS = [
  'secrets',
  'permissions',
  'disk',
  'identity',
  'fingerprint',
  'address',
  'dns',
  'connection',
  'tls',
  'server',
  'clock',
  'token',
  'devices',
  'upgrade',
  'idle',
  'store',
  'completeness',
  'unverifiable',
  'pending',
] as const;

/** Name of a check; stable, for scripts. */
export type CheckName = (typeof CHECKS)[number];

/** One outcome. A check may have several. */
export interface Finding {
  readonly check: CheckName;
  readonly status: 'ok' | 'warning' | 'problem';
  /** What is, in plain words. */
  readonly what: string;
  /** How to mend it; absent where nothing is to be done. */
  readonly do?: string;
}

/** What the checks that need a device are given. */
export interface Patient {
  readonly context: Context;
  readonly platform: Platform;
  readonly identity: Identity;
  /** How long an idle connection is watched, ms. */
  readonly idleMs: number;
}

/** All is well. */
export const ok = (check: CheckName, what: string): Finding => ({ check, status: 'ok', what });

/** It works, and the user should know. */
export const warning = (check: CheckName, what: string, mend: string): Finding => ({
  check,
  status: 'warning',
  what,
  do: mend,
});

/** It does not work, or is not safe. */
export const problem = (check: CheckName, what: string, mend: string): Finding => ({
  check,
  status: 'problem',
  what,
  do: mend,
});

/** True where a finding ends what builds on it. */
export const isProblem = ({ status }: Finding): boolean => status === 'problem';

/** A promise that must settle within `ms` of the clock; `late` otherwise. The work itself goes on: bound it elsewhere. */
export function within<T, L>(clock: Platform['clock'], ms: number, work: Promise<T>, late: L): Promise<T | L> {
  return new Promise((resolve, reject) => {
    const timer = clock.setTimer(ms, () => resolve(late));
    work.then(resolve, reject).finally(() => timer.cancel());
  });
}

/** A time span as a person says it. */
export function span(ms: number): string {
  const seconds = Math.round(ms / 1_000);
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7_200) return `${Math.round(seconds / 60)} minutes`;
  return seconds < 172_800 ? `${Math.round(seconds / 3_600)} hours` : `${Math.round(seconds / 86_400)} days`;
}
