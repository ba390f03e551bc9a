/** Untrusted text (names, messages of a server) made safe to display: it can neither steer a terminal nor hide. */

/**
 * Characters that control a terminal, change the reading direction or are invisible: controls, bidirectional marks and
 * overrides, line separators, format characters, lone surrogates. The joiners inside emoji are kept.
 */
const UNSAFE =
  /[\p{Cc}\p{Cs}\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

const escaped = (character: string): string =>
  `<U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, '0')}>`;

/** Text in HTML, also in an attribute with quotes. */
export const escapeHtml = (text: string): string =>
  text.replace(/[&<>"']/g, (character) => `&#${character.codePointAt(0) ?? 0};`);

/** One line: white space is folded into single spaces, unsafe characters are written as `<U+XXXX>`. */
export const sanitizeText = (text: string): string => text.replace(/\s+/gu, ' ').trim().replace(UNSAFE, escaped);

/** The same for text of several lines; line breaks and tabs are kept. */
export const sanitizeLines = (text: string): string =>
  text.replace(/\r\n?/g, '\n').replace(UNSAFE, (found) => (found === '\n' || found === '\t' ? found : escaped(found)));
