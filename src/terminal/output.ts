/** How results look: aligned tables, times as people say them, and text of others made harmless. */
import { sanitizeText, sanitizeLines } from '../protocol/sanitize.js';
import { fitted, widthOf } from './text.js';
import { paletteFor, type Palette } from './palette.js';
import type { Terminal } from './terminal.js';

export { sanitizeText, sanitizeLines };

/** Colours where the terminal has them. */
export const paletteOf = (terminal: Pick<Terminal, 'colours'>): Palette => paletteFor({ isTTY: terminal.colours }, {});

/** True where a person reads standard output. */
export const onScreen = (terminal: Terminal): boolean => terminal.outputIsTerminal ?? terminal.interactive;

/** One column. The last one takes what is left of the line. */
interface Column {
  readonly title: string;
  readonly paint?: (text: string) => string;
}

const GAP = '  ';
const LAST_MIN = 12;

/** Rows under their titles. Cells are made harmless here. On a screen the last column is cut to the line. */
export function table(terminal: Terminal, columns: readonly Column[], rows: readonly (readonly string[])[]): string[] {
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
  const { dim } = paletteOf(terminal);
  const head = line(
    columns.map(({ title }) => title),
    (text) => dim(text),
  );
  return [head, ...cells.map((row) => line(row, (text, at) => columns[at]?.paint?.(text) ?? text))];
}

/** Names with their values below each other. Values are made harmless by the caller, which knows what they are. */
export function facts(terminal: Terminal, rows: readonly (readonly [name: string, value: string])[]): string[] {
  const width = Math.max(0, ...rows.map(([name]) => widthOf(name)));
  const { dim } = paletteOf(terminal);
  return rows.map(([name, value]) => `${dim(name)}${' '.repeat(width - widthOf(name))}${GAP}${value}`);
}

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** A time in ms as people say it; older than a week, its date. */
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

/** A result: the JSON document for scripts, else lines for a person; one that is false has nothing to say. */
export function show(terminal: Terminal, value: unknown, lines: () => readonly (string | false)[]): void {
  if (terminal.json) terminal.data(value);
  else for (const line of lines()) if (line !== false) terminal.print(line);
}
