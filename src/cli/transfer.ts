/** How far a file is, on the line that a person watches. */
import type { BlobProgress } from '../sdk/blobs/source.js';
import type { Clock } from '../protocol/clock.js';
import { paced } from '../terminal/progress.js';
import type { Terminal } from '../terminal/terminal.js';

const UNITS = ['bytes', 'kB', 'MB', 'GB', 'TB'] as const;

/** `12.3 MB`. */
export function sizeText(bytes: number): string {
  let size = bytes;
  let unit = 0;
  while (size >= 999.95 && unit < UNITS.length - 1) {
    size /= 1_000;
    unit++;
  }
  return `${unit === 0 ? size : size.toFixed(1)} ${UNITS[unit] ?? ''}`;
}

const BAR = 20;

/**
 * Tells a transfer's progress as a bar, with its speed; at most ten times a second. `ended` takes it away: in every
 * case, once.
 */
export function meter(
  { terminal, clock }: { readonly terminal: Terminal; readonly clock: Clock },
  what: string,
): { readonly onProgress: (progress: BlobProgress) => void; readonly ended: () => void } {
  const begun = clock.now();
  const tell = paced(terminal, () => clock.now());
  return {
    ended: () => terminal.progress(''),
    onProgress: ({ done, total }) =>
      tell(() => {
        const seconds = (clock.now() - begun) / 1_000;
        const speed = seconds > 1 ? `  ${sizeText(Math.round(done / seconds))}/s` : '';
        return `${what} ${barOf(done, total)}${speed}`;
      }),
  };
}

function barOf(done: number, total: number | null): string {
  if (total === null) return sizeText(done);
  // What a server says of a size may be wrong: a bar is never longer than itself.
  const share = total === 0 ? 1 : Math.min(1, done / total);
  const full = Math.round(share * BAR);
  const percent = `${Math.floor(share * 100)} %`.padStart(5);
  return `[${'#'.repeat(full)}${'-'.repeat(BAR - full)}] ${percent}  ${sizeText(done)} of ${sizeText(total)}`;
}
