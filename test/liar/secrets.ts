/** The forms in which a secret could occur in what a client sends. */

const trimmed = (text: string): string => text.replace(/=+$/, '');

/**
 * What the base64 of any data with these bytes in it contains, whatever precedes and follows them: one of three
 * alignments, each without the characters at its ends that also depend on the adjacent bytes.
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

/** All forms of a secret that have at least 8 characters: shorter ones occur by chance. */
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
