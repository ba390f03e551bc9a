/** Words as people type, paste or open them. The engine judges whether they are right. */

const PAIR = '#pair=';
const CLAIM = '#claim=';
export const PAIR_WORDS = 6;
export const PHRASE_WORDS = 12;

/** Words in small letters. Anything between them goes: hyphens, numbers of a list, line ends. */
export const wordsIn = (text: string): readonly string[] =>
  text
    .normalize('NFKD')
    .toLowerCase()
    .match(/\p{L}+/gu) ?? [];

/** What was typed where six words are asked for: the words, or a link with them. */
export interface JoinText {
  readonly words: readonly string[];
  /** The link is one of another server: its address. */
  readonly elsewhere: string | null;
}

/** `origin`: this page's server, which is where the words are sent. */
export function readJoin(text: string, origin: string): JoinText {
  const at = text.indexOf(PAIR);
  if (at < 0) return { words: wordsIn(text), elsewhere: null };
  const address = text.slice(0, at).trim();
  return { words: wordsIn(text.slice(at + PAIR.length)), elsewhere: otherServer(address, origin) };
}

function otherServer(address: string, origin: string): string | null {
  if (address === '') return null;
  const other = URL.canParse(address) ? new URL(address) : null;
  return other === null || !/^https?:$/.test(other.protocol) || other.origin === origin ? null : other.origin;
}

/** What came behind the `#` of the page's address. */
export type Fragment =
  { readonly kind: 'pair'; readonly words: string } | { readonly kind: 'claim'; readonly token: string };

/** Reads `#pair=six-words` and `#claim=token`; null for any other fragment. */
export function readFragment(hash: string): Fragment | null {
  if (hash.startsWith(PAIR)) return { kind: 'pair', words: wordsIn(decoded(hash.slice(PAIR.length))).join(' ') };
  if (hash.startsWith(CLAIM)) return { kind: 'claim', token: decoded(hash.slice(CLAIM.length)) };
  return null;
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    // Not what a link of ours has: taken as it is, and judged by the engine.
    return text;
  }
}

/** Two different places among the twelve words, in order. `random`: 32 random bits at each call. */
export function placesToAsk(random: () => number): readonly [number, number] {
  const first = random() % PHRASE_WORDS;
  const other = (first + 1 + (random() % (PHRASE_WORDS - 1))) % PHRASE_WORDS;
  return first < other ? [first, other] : [other, first];
}

/** What a browser says of itself. */
export interface BrowserSelf {
  readonly userAgent: string;
  /** `navigator.userAgentData`, where there is one. */
  readonly brands: readonly string[];
  readonly platform: string;
  readonly touch: boolean;
}

/** The name of the first pattern that fits; empty: none does. */
const firstFit = (patterns: readonly (readonly [RegExp, string])[], text: string): string =>
  patterns.find(([pattern]) => pattern.test(text))?.[1] ?? '';

const BROWSERS = [
  [/Edg(e|A|iOS)?\/|Microsoft Edge/, 'Edge'],
  [/OPR\/|Opera/, 'Opera'],
  [/SamsungBrowser/, 'Samsung Internet'],
  [/Vivaldi/, 'Vivaldi'],
  [/Brave/, 'Brave'],
  [/Firefox\/|FxiOS\//, 'Firefox'],
  [/Chrome\/|CriOS\/|Google Chrome|Chromium/, 'Chrome'],
  [/Safari\//, 'Safari'],
] as const;

const PLATFORMS = [
  [/iPhone/, 'iPhone'],
  [/iPad/, 'iPad'],
  [/Android/, 'Android'],
  [/CrOS|Chrome OS/, 'Chromebook'],
  [/Windows/, 'Windows'],
  [/Mac/, 'Mac'],
  [/Linux|X11/, 'Linux'],
] as const;

/** A device's name to begin with: `Firefox on Linux`. `join` makes it one text in the page's language. */
export function deviceName(self: BrowserSelf, join: (browser: string, platform: string) => string): string {
  const platform = firstFit(PLATFORMS, `${self.platform} ${self.userAgent}`);
  const browser = firstFit(BROWSERS, [...self.brands, self.userAgent].join(' '));
  // An iPad calls itself a Mac, and no Mac has a touch screen.
  return join(browser, platform === 'Mac' && self.touch ? 'iPad' : platform);
}
