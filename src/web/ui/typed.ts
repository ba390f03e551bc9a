/** Words as typed, pasted or given by a link. The engine checks whether they are valid. */
import { PHRASE_WORDS } from '../../protocol/limits.js';

const PAIR = '#pair=';
const CLAIM = '#claim=';

/** Words in lower case. Everything between them is dropped: hyphens, numbers of a list, line ends. */
export const wordsIn = (text: string): readonly string[] =>
  text
    .normalize('NFKD')
    .toLowerCase()
    .match(/\p{L}+/gu) ?? [];

/**
 * Reads the field for six words: the words, or a link that contains them. `origin`: this page's server, to which the
 * words would be sent; `elsewhere`: origin of the link, if it is another server's.
 */
export function readJoin(text: string, origin: string): { words: readonly string[]; elsewhere: string | null } {
  const at = text.indexOf(PAIR);
  if (at < 0) return { words: wordsIn(text), elsewhere: null };
  return { words: wordsIn(text.slice(at + PAIR.length)), elsewhere: otherServer(text.slice(0, at).trim(), origin) };
}

/** `before`: what precedes the words. Whoever copies a whole line has more in it than the address. */
function otherServer(before: string, origin: string): string | null {
  const [address = ''] = /https?:\/\/\S*$/i.exec(before) ?? [];
  const other = URL.canParse(address) ? new URL(address).origin : origin;
  return other === origin ? null : other;
}

/** The words or the token in the page's address, after `#`. */
export interface Fragment {
  readonly words?: string;
  readonly token?: string;
}

/** Reads `#pair=six-words` and `#claim=token`; null for any other fragment. */
export function readFragment(hash: string): Fragment | null {
  if (hash.startsWith(PAIR)) return { words: wordsIn(decoded(hash.slice(PAIR.length))).join(' ') };
  if (hash.startsWith(CLAIM)) return { token: decoded(hash.slice(CLAIM.length)) };
  return null;
}

/** Decodes a part of an address; one that is not percent-encoded is returned unchanged. */
export function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Two different places among the twelve words, in order. `random`: 32 random bits at each call. */
export function placesToAsk(random: () => number): readonly [number, number] {
  const first = random() % PHRASE_WORDS;
  const other = (first + 1 + (random() % (PHRASE_WORDS - 1))) % PHRASE_WORDS;
  return first < other ? [first, other] : [other, first];
}

/** What a browser reports about itself; browsers based on Chromium report more than the user agent. */
export interface BrowserSelf extends Pick<Navigator, 'userAgent' | 'maxTouchPoints'> {
  readonly userAgentData?: { readonly brands?: readonly { readonly brand: string }[]; readonly platform?: string };
}

/** The name of the first pattern that matches; empty: none does. */
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

/** Browser and platform, for a default device name. Empty: not known. */
export function browserOf({ userAgent, maxTouchPoints, userAgentData }: BrowserSelf): [string, string] {
  const brands = userAgentData?.brands?.map(({ brand }) => brand) ?? [];
  const browser = firstFit(BROWSERS, [...brands, userAgent].join(' '));
  const platform = firstFit(PLATFORMS, `${userAgentData?.platform ?? ''} ${userAgent}`);
  // An iPad reports itself as a Mac, but no Mac has a touch screen.
  return [browser, platform === 'Mac' && maxTouchPoints > 1 ? 'iPad' : platform];
}
