/** Text where a person or a model reads it: how wide it is, and JSON in which nothing hides. */
const graphemes = new Intl.Segmenter('en', { granularity: 'grapheme' });
const WIDE =
  /^(?:\p{Emoji_Presentation}|[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|[\u{20000}-\u{3fffd}])|\ufe0f/u;
const NO_WIDTH = /^[\p{M}\u200c\u200d]+$/u;

const widthOfOne = (grapheme: string): number => (NO_WIDTH.test(grapheme) ? 0 : WIDE.test(grapheme) ? 2 : 1);

/** Columns that a text takes on a terminal. */
export function widthOf(text: string): number {
  let width = 0;
  for (const { segment } of graphemes.segment(text)) width += widthOfOne(segment);
  return width;
}

/** The text, cut to so many columns; a cut is seen. */
export function fitted(text: string, columns: number): string {
  if (widthOf(text) <= columns) return text;
  let width = 0;
  let kept = '';
  for (const { segment } of graphemes.segment(text)) {
    width += widthOfOne(segment);
    if (width > columns - 1) break;
    kept += segment;
  }
  return `${kept}…`;
}

const unit = (code: number): string => `\\u${code.toString(16).padStart(4, '0')}`;

/** JSON on one line, with characters that would steer a terminal or hide written as escapes: the value stays the same. */
export const jsonLine = (value: unknown): string =>
  JSON.stringify(value).replace(
    /[\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\udb40[\udc00-\udc7f]/g,
    (found) => Array.from({ length: found.length }, (_, at) => unit(found.charCodeAt(at))).join(''),
  );
