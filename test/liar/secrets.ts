/** The forms in which a secret could stand in what a client sends. */

const trimmed = (text: string): string => text.replace(/=+$/, '');

/**
 * What any base64 of a text that holds these bytes must contain, whatever stands before and behind them: three
 * alignments, each without the characters at its ends that the neighbours decide as well.
 */
function base64Cores(bytes: Buffer): string[] {
  return [0, 1, 2].flatMap((before) => {
    const text = trimmed(Buffer.concat([Buffer.alloc(before), bytes]).toString('base64'));
    const from = Math.ceil((before * 8) / 6);
    const to = Math.floor(((before + bytes.length) * 8) / 6);
    const core = text.slice(from, to);
    return [core, core.replaceAll('+', '-').replaceAll('/', '_')];
  });
}

/** All forms of a secret that are long enough to mean something. */
export function formsOf(secret: Uint8Array | string): readonly string[] {
  const bytes = Buffer.from(secret as string);
  const text =
    typeof secret === 'string' ? [secret, encodeURIComponent(secret), JSON.stringify(secret).slice(1, -1)] : [];
  const words = typeof secret === 'string' ? ['-', '+', '_', ''].map((sign) => secret.replaceAll(' ', sign)) : [];
  const hex = bytes.toString('hex');
  const numbers = [...bytes].join(',');
  const all = [...text, ...words, hex, hex.toUpperCase(), numbers, bytes.toString('latin1'), ...base64Cores(bytes)];
  return [...new Set(all)].filter((form) => form.length >= 8);
}
