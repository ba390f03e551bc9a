/** Reads errors that the system or a library threw. */

/** Node has no name for a disk quota that is used up: 122 on Linux, 69 on macOS. */
const QUOTA = /^Unknown system error -(?:122|69)$/;

/** The code: `ENOENT`, `23505`, `LEVEL_LOCKED`; empty if there is none. */
export function errorCode(error: unknown): string {
  if (!(error instanceof Error && 'code' in error && typeof error.code === 'string')) return '';
  return QUOTA.test(error.code) ? 'EDQUOT' : error.code;
}

export const asError = (error: unknown): Error => (error instanceof Error ? error : new Error(String(error)));

/** A chain of causes may be cyclic. */
const CAUSES_MAX = 8;

/** An error and its chain of causes. Empty if the value is not an error. */
export function causesOf(error: unknown): readonly Error[] {
  const causes: Error[] = [];
  for (let at = error; at instanceof Error && causes.length < CAUSES_MAX; at = at.cause) causes.push(at);
  return causes;
}
