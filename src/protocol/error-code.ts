/** The code of an error that a system or a library threw, without any platform's types. */

/** `ENOENT`, `23505`, `LEVEL_LOCKED`; an empty text where there is none. */
export const errorCode = (error: unknown): string =>
  error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : '';

/** What was thrown, as an Error. */
export const asError = (error: unknown): Error => (error instanceof Error ? error : new Error(String(error)));
