/** Every text that a person reads in the web app, grouped by screen. */
import type { Failure } from '../link/messages.js';

const counted = (count: number, one: string, many = `${one}s`): string =>
  `${count.toLocaleString()} ${count === 1 ? one : many}`;

const UNITS = ['B', 'KB', 'MB', 'GB', 'TB'] as const;

/** A size as people read it: 1.4 MB. */
function size(bytes: number): string {
  const power = bytes < 1 ? 0 : Math.min(UNITS.length - 1, Math.floor(Math.log10(bytes) / 3));
  const value = bytes / 1000 ** power;
  return `${value.toLocaleString(undefined, { maximumFractionDigits: power === 0 || value >= 100 ? 0 : 1 })} ${UNITS[power] ?? ''}`;
}

const relative = new Intl.RelativeTimeFormat(undefined, { numeric: 'auto', style: 'short' });
const STEPS: readonly (readonly [Intl.RelativeTimeFormatUnit, number])[] = [
  ['minute', 60_000],
  ['hour', 3_600_000],
  ['day', 86_400_000],
];

/** A moment, as people say it: just now, 5 min. ago, yesterday, 3 March. */
function time(at: number, now: number): string {
  const ago = now - at;
  if (Math.abs(ago) < 60_000) return 'just now';
  const [unit, ms] = STEPS.findLast(([, length]) => Math.abs(ago) >= length) ?? ['minute', 60_000];
  if (Math.abs(ago) < 7 * 86_400_000) return relative.format(-Math.round(ago / ms), unit);
  const sameYear = new Date(at).getFullYear() === new Date(now).getFullYear();
  return new Date(at).toLocaleDateString(undefined, {
    day: 'numeric',
    month: 'short',
    ...(sameYear ? {} : { year: 'numeric' }),
  });
}

const kit = {
  cancel: 'Cancel',
  close: 'Close',
  dismiss: 'Dismiss',
  hide: 'Hide',
  show: 'Show',
  back: 'Back',
  copied: 'Copied',
};

/** What went wrong, by the code of a `Failure`. Where a code is not here, its own message is shown. */
const PROBLEMS: Readonly<Record<string, string>> = {};

/** What went wrong, in words for a person. */
function problem(failure: Failure): string {
  return PROBLEMS[failure.code] ?? (failure.message || 'Something went wrong.');
}

export const text = { counted, size, time, problem, kit };
