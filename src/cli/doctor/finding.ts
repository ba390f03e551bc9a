/** Findings of `doctor`: a sentence about the state, and one about what to do. */
import type { Call } from '../../sdk/http.js';
import type { Identity } from '../../sdk/identity.js';
import type { Me } from '../../sdk/replies.js';
import { type Context, PROGRAM_NAME } from '../context.js';

/** The checks, in the order of execution (the reference, Doctor). */
export const CHECKS = [
  ...(['secrets', 'permissions', 'disk', 'identity', 'fingerprint', 'address', 'dns', 'connection'] as const),
  ...(['tls', 'server', 'clock', 'token', 'devices', 'upgrade', 'idle', 'web'] as const),
  ...(['store', 'completeness', 'unverifiable', 'pending'] as const),
] as const;

/** Name of a check; stable, for scripts. */
export type CheckName = (typeof CHECKS)[number];

/** One result of a check, which may have several. */
export interface Finding {
  readonly check: CheckName;
  readonly status: 'ok' | 'warning' | 'problem';
  /** The state. */
  readonly what: string;
  /** How to fix it; absent where nothing is wrong. */
  readonly do?: string;
}

/** The server's counts, for comparison with the local copy. */
export type Figures = Me['server'];

/** Input of a device's checks, and results of earlier checks for later ones. */
export interface DoctorContext extends Context {
  readonly identity: Identity;
  /** How long an idle connection is observed, ms. */
  readonly idleMs: number;
  /** The server's time, and when it was requested and received. Absent until a response has one. */
  time?: Readonly<Record<'serverTime' | 'resolutionMs' | 'sentAt' | 'receivedAt', number>>;
  /** Absent where the server refuses this device. */
  session?: { readonly call: Call; readonly figures: Figures };
}

/** Findings of one check. `warning`: it works, with a caveat. `problem`: it does not work, or is not safe. */
export const about = (check: CheckName) => ({
  ok: (what: string): Finding => ({ check, status: 'ok', what }),
  warning: (what: string, advice: string): Finding => ({ check, status: 'warning', what, do: advice }),
  problem: (what: string, advice: string): Finding => ({ check, status: 'problem', what, do: advice }),
});

/** True where checks that depend on this one are skipped. */
export const isProblem = ({ status }: Finding): boolean => status === 'problem';

/** How to become a device again. A profile that has an identity refuses to join. */
export const REJOIN =
  `\`${PROGRAM_NAME} forget\`, then \`join\` with the words that \`pair\` shows on another device of yours, or ` +
  '`recover` with the twelve words.';

/** A duration in words. */
export function span(ms: number): string {
  const seconds = Math.round(ms / 1_000);
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7_200) return `${Math.round(seconds / 60)} minutes`;
  return seconds < 172_800 ? `${Math.round(seconds / 3_600)} hours` : `${Math.round(seconds / 86_400)} days`;
}
