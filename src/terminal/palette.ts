/** Colours of a terminal. */

/** How to set off a piece of text. */
export interface Palette {
  readonly bold: (text: string) => string;
  readonly dim: (text: string) => string;
  readonly good: (text: string) => string;
  readonly bad: (text: string) => string;
  readonly accent: (text: string) => string;
}

/** Colours where they will be seen as such: on a terminal, unless NO_COLOR asks for none. */
export function paletteFor(stream: { readonly isTTY?: boolean }, env: NodeJS.ProcessEnv): Palette {
  const wanted = stream.isTTY === true && (env['NO_COLOR'] ?? '') === '' && env['TERM'] !== 'dumb';
  const code =
    (open: number, close: number) =>
    (text: string): string =>
      wanted ? `\u001b[${open}m${text}\u001b[${close}m` : text;
  return { bold: code(1, 22), dim: code(2, 22), good: code(32, 39), bad: code(31, 39), accent: code(36, 39) };
}
