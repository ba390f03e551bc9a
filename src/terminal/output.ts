/** Text for a terminal: its width and colours, tables, relative times, progress, JSON lines, results. */
import { sanitizeLines, sanitizeText } from '../protocol/sanitize.js';
import type { Terminal } from './terminal.js';

export { sanitizeLines, sanitizeText };

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

/** The text, truncated to `columns`; truncation is marked with an ellipsis. */
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

/** JSON on one line. Characters that control a terminal or are invisible are escaped, which does not change the value. */
export const jsonLine = (value: unknown): string =>
  JSON.stringify(value).replace(
    /[\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\udb40[\udc00-\udc7f]/g,
    (found) => Array.from({ length: found.length }, (_, at) => unit(found.charCodeAt(at))).join(''),
  );

/** Styles of text. */
export type Palette = Readonly<Record<'bold' | 'dim' | 'good' | 'bad' | 'accent', (text: string) => string>>;

/** Styles for a terminal; without colours the text is unchanged. */
export function paletteOf({ colours }: Pick<Terminal, 'colours'>): Palette {
  const code =
    (open: number, close: number) =>
    (text: string): string =>
      colours ? `\u001b[${open}m${text}\u001b[${close}m` : text;
  return { bold: code(1, 22), dim: code(2, 22), good: code(32, 39), bad: code(31, 39), accent: code(36, 39) };
}

/** True where a stream shows colours: a terminal, unless `NO_COLOR` or `TERM=dumb` forbids them. */
export const hasColours = (stream: { readonly isTTY?: boolean }, env: Terminal['env']): boolean =>
  stream.isTTY === true && (env['NO_COLOR'] ?? '') === '' && env['TERM'] !== 'dumb';

/** True where standard output is a screen. */
export const onScreen = (terminal: Terminal): boolean => terminal.outputIsTerminal ?? terminal.interactive;

const GAP = '  ';
const LAST_MIN = 12;

/** Sanitized rows under their titles. On a screen the last column is truncated to the rest of the line. */
export function table(
  terminal: Terminal,
  columns: readonly { readonly title: string; readonly paint?: (text: string) => string }[],
  rows: readonly (readonly string[])[],
): string[] {
  const cells = rows.map((row) => row.map(sanitizeText));
  const last = columns.length - 1;
  const widths = columns.map(({ title }, at) =>
    Math.max(widthOf(title), ...cells.map((row) => widthOf(row[at] ?? ''))),
  );
  const before = widths.slice(0, last).reduce((sum, width) => sum + width + GAP.length, 0);
  const room = onScreen(terminal) ? Math.max(LAST_MIN, terminal.width - before) : Infinity;
  const line = (row: readonly string[], paint: (text: string, at: number) => string): string =>
    row
      .map((cell, at) => {
        if (at === last) return paint(fitted(cell, room), at);
        return paint(cell, at) + ' '.repeat(Math.max(0, (widths[at] ?? 0) - widthOf(cell)));
      })
      .join(GAP)
      .trimEnd();
  const titles = columns.map(({ title }) => title);
  return [
    line(titles, paletteOf(terminal).dim),
    ...cells.map((row) => line(row, (text, at) => columns[at]?.paint?.(text) ?? text)),
  ];
}

/** Name and value pairs, one a line. The caller sanitizes the values. */
export function facts(terminal: Terminal, rows: readonly (readonly [name: string, value: string])[]): string[] {
  const width = Math.max(0, ...rows.map(([name]) => widthOf(name)));
  const { dim } = paletteOf(terminal);
  return rows.map(([name, value]) => `${dim(name)}${' '.repeat(width - widthOf(name))}${GAP}${value}`);
}

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** A time in ms relative to `now`; beyond a week, its date. */
export function relative(then: number, now: number): string {
  const ago = now - then;
  if (ago < -MINUTE) return dateOf(then);
  if (ago < MINUTE) return 'just now';
  if (ago < HOUR) return `${Math.floor(ago / MINUTE)} min ago`;
  if (ago < DAY) return `${Math.floor(ago / HOUR)} h ago`;
  if (ago < 7 * DAY) return `${Math.floor(ago / DAY)} d ago`;
  return dateOf(then);
}

const DATE_MAX = 8_640_000_000_000_000;
const dateOf = (ms: number): string => (ms <= DATE_MAX ? new Date(ms).toISOString().slice(0, 10) : 'far future');

/** `1 item`, `2 items`. */
export const counted = (count: number, noun: string): string => `${count} ${noun}${count === 1 ? '' : 's'}`;

/** Prints a result: the JSON document for scripts, otherwise the lines that are not false. */
export function show(terminal: Terminal, value: unknown, lines: () => readonly (string | false)[]): void {
  if (terminal.json) terminal.data(value);
  else for (const line of lines()) if (line !== false) terminal.print(line);
}

const PROGRESS_EVERY_MS = 100;

/**
 * Progress of one piece of work, shown at most ten times a second. The text is made only when it is shown; the last one
 * may be dropped.
 */
export function throttledProgress(
  terminal: Pick<Terminal, 'progress'>,
  now: () => number = () => performance.now(),
): (text: () => string) => void {
  let shownAt = -Infinity;
  return (text) => {
    const at = now();
    if (at - shownAt < PROGRESS_EVERY_MS) return;
    shownAt = at;
    terminal.progress(text());
  };
}

/** Which program this is. */
export interface Release {
  readonly version: string;
  /** Of the sources: 12 hex digits, with `-dirty` where they were changed, or `unknown`. */
  readonly commit: string;
}

/** What `--version` prints. */
export const releaseText = ({ version, commit }: Release): string => `${version} (${commit})`;
