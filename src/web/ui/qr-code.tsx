/** A QR code on the page. */
import { useMemo } from 'preact/hooks';
import { encode } from 'uqr';

/** White modules around the code, without which cameras miss it. */
const QUIET_ZONE = 4;

/** The dark modules of a text's code as one SVG path, in units of a module; `size`: of the square, in modules. */
export function qrPath(value: string): { readonly size: number; readonly path: string } {
  const { data, size } = encode(value, { ecc: 'M', border: QUIET_ZONE });
  const runs: string[] = [];
  for (const [y, row] of data.entries()) {
    for (let x = 0; x < size; x++) {
      if (row[x] !== true) continue;
      const from = x;
      while (row[x] === true) x++;
      runs.push(`M${from} ${y}h${x - from}v1h${from - x}z`);
    }
  }
  return { size, path: runs.join('') };
}

/** `label`: what the code leads to, for screen readers. */
export function QrCode({ value, label }: { value: string; label: string }) {
  const { size, path } = useMemo(() => qrPath(value), [value]);
  return (
    <svg class="qr" viewBox={`0 0 ${size} ${size}`} shape-rendering="crispEdges" role="img" aria-label={label}>
      <path d={path} />
    </svg>
  );
}
