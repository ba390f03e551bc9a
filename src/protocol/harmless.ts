/** Text of others (names, a server's words) as it may be shown: nothing in it steers what shows it. */

/**
 * Characters that would steer a terminal, turn the reading direction or hide: all controls, bidirectional marks and
 * overrides, line separators, invisible format characters, halves of surrogate pairs. Joiners that emoji are made of stay.
 */
const UNSAFE =
  /[\p{Cc}\p{Cs}\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

const escaped = (character: string): string =>
  `<U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, '0')}>`;

/** Text of others on one line: line breaks and tabs become spaces, everything that steers is shown instead of done. */
export const harmless = (text: string): string => text.replace(/\s+/gu, ' ').trim().replace(UNSAFE, escaped);

/** The same for text of several lines, which stay lines. */
export const harmlessLines = (text: string): string =>
  text.replace(/\r\n?/g, '\n').replace(UNSAFE, (found) => (found === '\n' || found === '\t' ? found : escaped(found)));
