/** Text for a terminal: its width and colours, tables, relative times, progress, JSON lines, results. */
import { atMostEvery, type Clock } from '../protocol/clock.js';
import { UNSAFE } from '../protocol/ids.js';
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

/** The spaces that widen a text to `columns`. */
export const padding = (text: string, columns: number): string => ' '.repeat(Math.max(0, columns - widthOf(text)));

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

const UNSAFE_ALL = new RegExp(UNSAFE, 'gu');

const unit = (code: number): string => `\\u${code.toString(16).padStart(4, '0')}`;

/** JSON on one line. Characters that control a terminal or are invisible are escaped, which does not change the value. */
export const jsonLine = (value: unknown): string =>
  JSON.stringify(value).replace(UNSAFE_ALL, (found) =>
    Array.from({ length: found.length }, (_, at) => unit(found.charCodeAt(at))).join(''),
  );

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

const GAP = '  ';
const LAST_MIN = 12;
/** Columns with `spare` are left out until the last column has this much room. */
const LAST_WANTED = 20;

export interface Column {
  readonly title: string;
  readonly paint?: (text: string) => string;
  /** On a screen, longer cells are truncated to this many columns. */
  readonly most?: number;
  /** On a screen without room for all columns, the one with the highest value is left out first; absent: never. */
  readonly spare?: number;
}

/** Sanitized rows under their titles. On a screen they fit its width: see `Column`; the last column gets the rest. */
export function table(terminal: Terminal, columns: readonly Column[], rows: readonly (readonly string[])[]): string[] {
  const screen = terminal.onScreen;
  const cells = rows.map((row) =>
    row.map((cell, at) => {
      const { most } = columns[at] ?? {};
      return screen && most !== undefined ? fitted(sanitizeText(cell), most) : sanitizeText(cell);
    }),
  );
  const last = columns.length - 1;
  // Not by spreading the widths: a call with as many arguments as a long list has rows overflows the stack.
  const widths = columns.map(({ title }, at) =>
    cells.reduce((most, row) => Math.max(most, widthOf(row[at] ?? '')), widthOf(title)),
  );
  const kept = new Set(columns.keys());
  const room = (): number =>
    terminal.width - [...kept].reduce((sum, at) => sum + (at === last ? 0 : (widths[at] ?? 0) + GAP.length), 0);
  const spare = [...columns.entries()].filter(([, column]) => column.spare !== undefined);
  spare.sort(([, one], [, other]) => (other.spare ?? 0) - (one.spare ?? 0));
  if (screen) for (const [at] of spare) if (room() < LAST_WANTED) kept.delete(at);
  const most = screen ? Math.max(LAST_MIN, room()) : Infinity;
  const line = (row: readonly string[], paint: (text: string, at: number) => string): string =>
    [...kept]
      .map((at) => {
        const cell = row[at] ?? '';
        if (at === last) return paint(fitted(cell, most), at);
        return paint(cell, at) + padding(cell, widths[at] ?? 0);
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
  return rows.map(([name, value]) => `${dim(name)}${padding(name, width)}${GAP}${value}`);
}

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const WEEK_DAYS = 7;
const DATE_MAX = 8_640_000_000_000_000;

/**
 * A time in ms relative to `now`, in this machine's time zone: `3 min ago`, `5 h ago`, `yesterday 14:02`, `Mon 14:02`,
 * `12 Mar`, `12 Mar 2025`.
 */
export function relative(then: number, now: number): string {
  const ago = now - then;
  if (Math.abs(ago) < MINUTE) return 'just now';
  if (ago > 0 && ago < HOUR) return `${Math.floor(ago / MINUTE)} min ago`;
  // A time from another device may be out of range.
  if (Math.abs(then) > DATE_MAX) return 'far future';
  const date = new Date(then);
  const days = daysBefore(date, new Date(now));
  // `Mon Mar 09 2026` and `14:02:00 GMT...`, in English whatever the locale.
  const [weekday, month] = date.toDateString().split(' ');
  const time = date.toTimeString().slice(0, 5);
  if (ago > 0 && days === 0) return `${Math.floor(ago / HOUR)} h ago`;
  if (days === 1) return `yesterday ${time}`;
  if (days > 1 && days < WEEK_DAYS) return `${weekday} ${time}`;
  const day = `${date.getDate()} ${month}`;
  return date.getFullYear() === new Date(now).getFullYear() ? day : `${day} ${date.getFullYear()}`;
}

/** Calendar days between two times; days of 23 or 25 hours count as one. */
const daysBefore = (then: Date, now: Date): number => Math.round((calendarDay(now) - calendarDay(then)) / (24 * HOUR));
const calendarDay = (date: Date): number => Date.UTC(date.getFullYear(), date.getMonth(), date.getDate());

/** `1 item`, `2 items`. */
export const counted = (count: number, noun: string, plural = `${noun}s`): string =>
  `${count} ${count === 1 ? noun : plural}`;

/** Prints a result: the JSON document for scripts, otherwise the lines that are not false. */
export function show(terminal: Terminal, value: unknown, lines: () => readonly (string | false)[]): void {
  if (terminal.json) terminal.data(value);
  else for (const line of lines()) if (line !== false) terminal.print(line);
}

const PROGRESS_EVERY_MS = 100;

/**
 * Progress of one piece of work, shown at most ten times a second. The text is computed only when it is shown; the last
 * one may be dropped.
 */
export function throttledProgress(terminal: Pick<Terminal, 'progress'>, clock: Pick<Clock, 'now'> = performance) {
  const isDue = atMostEvery(clock, PROGRESS_EVERY_MS);
  return (text: () => string): void => {
    if (isDue()) terminal.progress(text());
  };
}

/** Version and sources of the program. */
export interface Release {
  readonly version: string;
  /** The sources' commit: 12 hex digits, with `-dirty` where they were changed; or `unknown`. */
  readonly commit: string;
}

/** What `--version` prints. */
export const releaseText = ({ version, commit }: Release): string => `${version} (${commit})`;
