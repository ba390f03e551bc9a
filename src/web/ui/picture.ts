/** The picture beside the six digits of a pairing: the same on both screens, and quicker to compare. */

/** The elements of a picture: they differ by outline, so that they can be distinguished without colour. */
export const THINGS = ['anchor', 'bell', 'fish', 'heart', 'house', 'key', 'moon', 'star', 'tree', 'umbrella'] as const;
export type Thing = (typeof THINGS)[number];

const HALF = 1_000;
const ROUNDS = [137, 419, 733, 911];

/**
 * Six digits as six things. A permutation of all six-digit numbers (a Feistel network of two halves), so different
 * digits always give different pictures, and a change of one digit changes most of the picture. Throws `RangeError`.
 */
export function pictureOf(digits: string): readonly Thing[] {
  if (!/^\d{6}$/.test(digits)) throw new RangeError('a picture is made of six digits');
  let [left, right] = [Number(digits.slice(0, 3)), Number(digits.slice(3))];
  for (const round of ROUNDS) [left, right] = [right, (left + right * right * 7 + right * round + round) % HALF];
  const shown = `${left * HALF + right}`.padStart(6, '0');
  return Array.from(shown, (digit) => THINGS[Number(digit)] as Thing);
}
