import { randomInt } from 'node:crypto';

/** One of these, drawn; undefined: there is none. */
export const oneOf = <T>(list: readonly T[]): T | undefined => list[randomInt(Math.max(1, list.length))];
