/** A QR code as one SVG path. */
import { encode } from 'uqr';

/** White modules around the code, without which cameras miss it. */
const QUIET_ZONE = 4;

export interface QrPath {
  /** Side of the square, in modules. */
  readonly size: number;
  /** The dark modules as an SVG path, in units of a module. */
  readonly path: string;
}

/** The QR code of a text, with its quiet zone. */
export function qrPath(value: string): QrPath {
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
