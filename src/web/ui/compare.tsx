/** What a pairing shows: six digits with their picture, to be compared with the other screen, and words in a grid. */
import * as icons from 'lucide-preact';
import * as text from './strings.js';

/**
 * The elements of pictures, which are quicker to compare than digits, with their hues. They differ by outline, so that
 * they can be distinguished without colour.
 */
const ICONS = {
  anchor: [icons.Anchor, 250],
  bell: [icons.Bell, 75],
  fish: [icons.Fish, 205],
  heart: [icons.Heart, 20],
  house: [icons.House, 50],
  key: [icons.KeyRound, 100],
  moon: [icons.Moon, 285],
  star: [icons.Star, 90],
  tree: [icons.TreePine, 150],
  umbrella: [icons.Umbrella, 340],
} as const satisfies Readonly<Record<string, readonly [icons.LucideIcon, hue: number]>>;
type Thing = keyof typeof ICONS;
export const THINGS = Object.keys(ICONS) as readonly Thing[];

const HALF_RANGE = 1_000;
const ROUND_KEYS = [137, 419, 733, 911];

/**
 * Six digits as six things. A permutation of all six-digit numbers (a Feistel network of two halves), so different
 * digits always give different pictures, and a change of one digit changes most of the picture. Throws `RangeError`.
 */
export function pictureOf(digits: string): readonly Thing[] {
  if (!/^\d{6}$/.test(digits)) throw new RangeError('a picture is made of six digits');
  let [left, right] = [Number(digits.slice(0, 3)), Number(digits.slice(3))];
  for (const key of ROUND_KEYS) [left, right] = [right, (left + right * right * 7 + right * key + key) % HALF_RANGE];
  const shown = `${left * HALF_RANGE + right}`.padStart(6, '0');
  return Array.from(shown, (digit) => THINGS[Number(digit)] as Thing);
}

/**
 * The digits in two groups of three, and their picture in two rows of three. Announced to screen readers; in a dialog it
 * has the focus, so that it is what is read first, and one step leads to the answers.
 */
export function Compare({ digits }: { digits: string }) {
  const things = pictureOf(digits);
  return (
    <div class="compare line wrap" role="status" tabIndex={-1}>
      <p class="digits numbers">
        <span class="sr">{text.picture.digits(digits)}</span>
        <span aria-hidden="true">{digits.slice(0, 3)}</span>
        <span aria-hidden="true">{digits.slice(3)}</span>
      </p>
      <div class="picture" role="img" aria-label={text.picture.of(things)}>
        {things.map((thing, at) => {
          const [Sign, hue] = ICONS[thing];
          return (
            <span key={at} class="thing" style={{ '--hue': hue }}>
              <Sign />
            </span>
          );
        })}
      </div>
    </div>
  );
}

/** Words with their numbers, to be written down or typed. */
export function WordGrid({ words, label }: { words: readonly string[]; label: string }) {
  return (
    <ol class="words" aria-label={label} translate={false}>
      {words.map((word, at) => (
        <li key={at}>
          <span class="number small quiet numbers">{at + 1}</span>
          <span class="word mono" lang="en" dir="ltr">
            {word}
          </span>
        </li>
      ))}
    </ol>
  );
}
