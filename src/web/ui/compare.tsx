/** Shown on both screens when a device joins: six digits with their picture; and words in a numbered grid. */
import type { JSX } from 'preact';
import { pictureOf } from './picture.js';
import { THING_ICONS } from './picture-icons.js';
import { text } from './strings.js';

/** The digits in two groups of three, and their picture in two rows of three. Announced to screen readers. */
export function Compare({ digits }: { readonly digits: string }): JSX.Element {
  const things = pictureOf(digits);
  return (
    <div class="compare" role="status">
      <p class="digits">
        <span class="sr">{text.picture.digits(digits)}</span>
        <span aria-hidden="true">{digits.slice(0, 3)}</span>
        <span aria-hidden="true">{digits.slice(3)}</span>
      </p>
      <div class="picture" role="img" aria-label={text.picture.of(things)}>
        {things.map((thing, at) => {
          const Sign = THING_ICONS[thing];
          return (
            <span key={at} class={`thing ${thing}`}>
              <Sign />
            </span>
          );
        })}
      </div>
    </div>
  );
}

/** Words with their numbers, to be written down or typed. */
export function WordGrid({ words, label }: { readonly words: readonly string[]; readonly label: string }): JSX.Element {
  return (
    <ol class="words" aria-label={label} translate={false}>
      {words.map((word, at) => (
        <li key={at}>
          <span class="number">{at + 1}</span>
          <span class="word" lang="en" dir="ltr">
            {word}
          </span>
        </li>
      ))}
    </ol>
  );
}
