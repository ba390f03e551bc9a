/** ULIDs: 48 bits of time, then 80 random bits, as upper-case Crockford base 32. */

const CROCKFORD = '0123456789ABCDEFGHJKMNPQRSTVWXYZ';
const TIME_CHARS = 10;
const RANDOM_CHARS = 16;

/** A ULID. `random` gives the requested number of random bytes. */
export function ulid(now: number, random: (length: number) => Uint8Array): string {
  let time = '';
  let left = now;
  for (let at = 0; at < TIME_CHARS; at++) {
    time = CROCKFORD.charAt(left % 32) + time;
    left = Math.floor(left / 32);
  }
  return time + randomPart(random(RANDOM_CHARS));
}

/** The random part of a ULID, from 16 bytes, each of which gives one character (five bits). */
export const randomPart = (bytes: Uint8Array): string =>
  Array.from(bytes, (byte) => CROCKFORD.charAt(byte & 31)).join('');

/** The time part of a ULID. */
export const timePart = (id: string): string => id.slice(0, TIME_CHARS);

/** The time of a ULID, ms since 1970. */
export const timeOfUlid = (id: string): number =>
  Array.from(timePart(id)).reduce((time, letter) => time * 32 + CROCKFORD.indexOf(letter), 0);
