/**
 * Whether the long run asks (`npm run test:long`). What a test does many times over, to meet what is rare, it does
 * fewer times in the run that everybody waits for.
 */
const LONG = process.env['TEST_LONG'] === 'on';

/** The first in the usual run, the second in the long one. */
export const inLongRun = <T>(usually: T, long: T): T => (LONG ? long : usually);
