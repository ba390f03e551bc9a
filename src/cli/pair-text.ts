/** A pairing offer as a picture: the text of `offerText`, for another device's camera. */
import { encode } from 'uqr';

/** A QR code in half-height blocks. With colours it is dark on light whatever the terminal's own colours are. */
export function qrLines(text: string, colours: boolean): string[] {
  const { data, size } = encode(text, { border: 2 });
  const dark = (x: number, y: number): boolean => data[y]?.[x] ?? false;
  const lines: string[] = [];
  for (let y = 0; y < size; y += 2) {
    let line = '';
    for (let x = 0; x < size; x++) line += block(dark(x, y), y + 1 < size && dark(x, y + 1), colours);
    lines.push(colours ? `\u001b[30;107m${line}\u001b[0m` : line);
  }
  return lines;
}

/** With colours ink is dark; without, ink is the terminal's light foreground. */
function block(upper: boolean, lower: boolean, ink: boolean): string {
  const [above, below] = ink ? [upper, lower] : [!upper, !lower];
  if (above && below) return '█';
  if (above) return '▀';
  return below ? '▄' : ' ';
}
