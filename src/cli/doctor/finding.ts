/** What `doctor` finds: one sentence that says what is, one that says what to do. */
import type { Call } from '../../sdk/http.js';
import type { Identity } from '../../sdk/identity.js';
import type { Platform } from '../../sdk/platform.js';
import { count, nonEmpty, object, type Read } from '../../sdk/reader.js';
import { SERVICE_NAME } from '../../protocol/limits.js';
import type { Context } from '../context.js';

/** The checks, in the order in which they are made (the reference, Doctor). */
export const CHECKS = [
  ...(['secrets', 'permissions', 'disk', 'identity', 'fingerprint', 'address', 'dns', 'connection'] as const),
  ...(['tls', 'server', 'clock', 'token', 'devices', 'upgrade', 'idle'] as const),
  ...(['store', 'completeness', 'unverifiable', 'pending'] as const),
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

/** The server's figures, as `/me` gives them. */
export const readFigures = object({
  headVersion: count,
  versionSum: count,
  epoch: nonEmpty,
  server: object({ itemCount: count }),
});

/** See above. */
export type Figures = Read<typeof readFigures>;

/** One look at the server's clock: its time, and between when and when it was read. */
interface TimeProbe {
  readonly serverTime: number;
  readonly resolutionMs: number;
  readonly sentAt: number;
  readonly receivedAt: number;
}

/** What the checks that need a device are given, and what the earlier ones found out for the later. */
export interface DoctorContext {
  readonly context: Context;
  readonly platform: Platform;
  readonly identity: Identity;
  /** How long an idle connection is watched, ms. */
  readonly idleMs: number;
  /** Absent where no answer has named a time yet. */
  time?: TimeProbe;
  /** Absent where the server lets this device do nothing. */
  session?: { readonly call: Call; readonly figures: Figures };
}

/** Findings of one check. `ok`: all is well. `warning`: it works, and the user should know. `problem`: it does not, or is not safe. */
export const about = (check: CheckName) => ({
  ok: (what: string): Finding => ({ check, status: 'ok', what }),
  warning: (what: string, mend: string): Finding => ({ check, status: 'warning', what, do: mend }),
  problem: (what: string, mend: string): Finding => ({ check, status: 'problem', what, do: mend }),
});

/** True where a finding ends what builds on it. */
export const isProblem = ({ status }: Finding): boolean => status === 'problem';

/** How a device that the server does not take any more comes back. */
export const AGAIN = `\`${SERVICE_NAME}-device pair\` beside another device of yours, or \`recover\` with the twelve words.`;

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
