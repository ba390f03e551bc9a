/** Sizes, and the progress bar of a transfer. */
import type { BlobProgress } from '../sdk/blobs/source.js';
import type { Platform } from '../sdk/platform.js';
import { throttledProgress } from '../terminal/output.js';
import type { Context } from './context.js';

const UNITS = ['bytes', 'kB', 'MB', 'GB', 'TB'] as const;

/** `12.3 MB`; empty where the size is not known. */
export function sizeText(bytes: number | null): string {
  if (bytes === null) return '';
  if (bytes === 1) return '1 byte';
  let size = bytes;
  let unit = 0;
  while (size >= 999.95 && unit < UNITS.length - 1) {
    size /= 1_000;
    unit++;
  }
  return `${unit === 0 ? size : size.toFixed(1)} ${UNITS[unit] ?? ''}`;
}

/** Share of an upload that is on the server, in percent, rounded down. */
export const percentOf = ({ sent, size }: { readonly sent: number; readonly size: number }): number =>
  size === 0 ? 100 : Math.floor((Math.min(sent, size) / size) * 100);

const BAR = 20;

/** Shows the progress of a transfer as a bar with its speed. `ended` removes it, and must be called in every case. */
export function meter(
  { terminal, platform: { clock } }: Pick<Context, 'terminal'> & { readonly platform: Pick<Platform, 'clock'> },
  what: string,
) {
  const begun = clock.now();
  const show = throttledProgress(terminal, clock);
  return {
    ended: (): void => terminal.progress(''),
    onProgress: ({ done, total }: BlobProgress): void =>
      show(() => {
        const seconds = (clock.now() - begun) / 1_000;
        const speed = seconds > 1 ? `  ${sizeText(Math.round(done / seconds))}/s` : '';
        return `${what} ${barOf(done, total)}${speed}`;
      }),
  };
}

function barOf(done: number, total: number | null): string {
  if (total === null) return sizeText(done);
  // The total comes from the server and may be wrong.
  const share = total === 0 ? 1 : Math.min(1, done / total);
  const full = Math.round(share * BAR);
  const percent = `${Math.floor(share * 100)} %`.padStart(5);
  return `[${'#'.repeat(full)}${'-'.repeat(BAR - full)}] ${percent}  ${sizeText(done)} of ${sizeText(total)}`;
}
