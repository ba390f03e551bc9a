/** Reading of errors that a system or a library threw. */

/** The code: `ENOENT`, `23505`, `LEVEL_LOCKED`; empty if there is none. */
export const errorCode = (error: unknown): string =>
  error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : '';

/** The thrown value as an Error. */
export const asError = (error: unknown): Error => (error instanceof Error ? error : new Error(String(error)));
