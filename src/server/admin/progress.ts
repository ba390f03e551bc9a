/** Figures as people read and type them: the progress of a command, on one line of the terminal, sizes, counts, numbers. */
import { InvalidArgumentError } from 'commander';
import type { Progress } from './backup/archive.js';
import { counted, throttledProgress } from '../../terminal/output.js';
import type { Terminal } from '../../terminal/terminal.js';
import { throwIfInterrupted } from './context.js';
import type { Counts } from './store.js';

const WIDTH = 30;

/** `progressOf`, which throws `CommandError` once the user has interrupted the work. */
export function stoppable(terminal: Terminal, verb: string): Progress {
  const progress = progressOf(terminal, verb);
  return (done, total) => {
    throwIfInterrupted(terminal);
    progress(done, total);
  };
}

/** A bar, and the bytes done. */
export function progressOf(terminal: Terminal, verb: string): Progress {
  const tell = throttledProgress(terminal);
  return (done, total) =>
    tell(() => {
      // The size of a database is an estimate, and may be exceeded.
      const percent = total <= 0 ? 0 : Math.min(100, Math.floor((100 * done) / total));
      const filled = Math.round((WIDTH * percent) / 100);
      return `${verb}  [${'#'.repeat(filled)}${'.'.repeat(WIDTH - filled)}] ${percent} %  ${sized(done)}`;
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

/** Parses an option's value: a whole number from `min` to `max`, in no more digits than `max` has. */
export const wholeNumber =
  (min: number, max: number) =>
  (text: string): number => {
    const value = /^\d+$/.test(text) && text.length <= String(max).length ? Number(text) : NaN;
    if (!(value >= min && value <= max)) throw new InvalidArgumentError(`takes a number from ${min} to ${max}.`);
    return value;
  };
