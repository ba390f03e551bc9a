/** Words as typed, pasted or given by a link. The engine checks whether they are valid. */
import { PHRASE_WORDS } from '../../protocol/limits.js';
import { percentDecoded } from '../../protocol/percent.js';

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

/** `before`: what precedes the words: the address, and what a user who copies a whole line has before it. */
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
  if (hash.startsWith(PAIR)) return { words: wordsIn(percentDecoded(hash.slice(PAIR.length))).join(' ') };
  if (hash.startsWith(CLAIM)) return { token: percentDecoded(hash.slice(CLAIM.length)) };
  return null;
}

/** Two different places among the twelve words, in order. `random`: 32 random bits at each call. */
export function placesToAsk(random: () => number): readonly [number, number] {
  const first = random() % PHRASE_WORDS;
  const other = (first + 1 + (random() % (PHRASE_WORDS - 1))) % PHRASE_WORDS;
  return first < other ? [first, other] : [other, first];
}
