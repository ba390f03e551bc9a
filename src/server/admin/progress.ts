/** Progress bars, sizes, counts and columns for the terminal, and the parser of numeric options. */
import { InvalidArgumentError } from 'commander';
import { counted, throttledProgress, type Column } from '../../terminal/output.js';
import type { Terminal } from '../../terminal/terminal.js';
import type { Progress } from './backup/archive.js';
import { throwIfInterrupted } from './context.js';
import type { Counts } from './store.js';

const BAR_WIDTH = 30;

/** Like `progressOf`, but throws `CommandError` once the user has interrupted the work. */
export function stoppable(terminal: Terminal, verb: string): Progress {
  const progress = progressOf(terminal, verb);
  return (done, total) => {
    throwIfInterrupted(terminal);
    progress(done, total);
  };
}

/** Reports the bytes done so far, and their share of the total as a bar. */
export function progressOf(terminal: Terminal, verb: string): Progress {
  const report = throttledProgress(terminal);
  return (done, total) =>
    report(() => {
      // The size of a database is an estimate, and may be exceeded.
      const percent = total <= 0 ? 0 : Math.min(100, Math.floor((100 * done) / total));
      const filled = Math.round((BAR_WIDTH * percent) / 100);
      return `${verb}  [${'#'.repeat(filled)}${'.'.repeat(BAR_WIDTH - filled)}] ${percent} %  ${sized(done)}`;
    });
}

const UNITS = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'] as const;

/** A size for people: `12.5 MiB`. */
export function sized(bytes: number): string {
  let unit = 0;
  let value = bytes;
  for (; value >= 1024 && unit < UNITS.length - 1; unit++) value /= 1024;
  return `${unit === 0 ? value : value.toFixed(1)} ${UNITS[unit] ?? ''}`;
}

/** `2 tenants, 3 devices, 40 items`. */
export const countsLine = ({ tenants = 0, devices = 0, items = 0 }: Partial<Counts>): string =>
  [counted(tenants, 'tenant'), counted(devices, 'device'), counted(items, 'item')].join(', ');

/** The columns of a table with these titles. */
export const titled = (...titles: readonly string[]): Column[] => titles.map((title) => ({ title }));

/** Parses an option's value: a whole number from `min` to `max`, in no more digits than `max` has. */
export const wholeNumber =
  (min: number, max: number) =>
  (text: string): number => {
    const value = /^\d+$/.test(text) && text.length <= String(max).length ? Number(text) : NaN;
    if (!(value >= min && value <= max)) throw new InvalidArgumentError(`takes a number from ${min} to ${max}.`);
    return value;
  };
