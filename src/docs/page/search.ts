/** Full-text search of the pages. Runs in the browser: queries are not sent anywhere. */

/** Pages with their sections: name, title, and for each section its anchor, heading and text. */
export type Index = readonly (readonly [
  name: string,
  title: string,
  sections: readonly (readonly [anchor: string, heading: string, text: string])[],
])[];

export interface Hit {
  readonly page: string;
  readonly title: string;
  readonly anchor: string;
  readonly heading: string;
  /** The text around the first match, in pieces; every second one is a matched word. */
  readonly excerpt: readonly string[];
}

const WORDS_MAX = 8;
const BEFORE = 50;
const EXCERPT = 180;

/** Scores of a word, by its place. */
const WHOLE_HEADING = 60;
const HEADING_WORD = 20;
const IN_HEADING = 8;
const IN_TITLE = 6;
const IN_TEXT_MAX = 4;

const plain = (text: string): string => text.toLowerCase().normalize('NFKD').replace(/\p{M}/gu, '');

/** `_`, `-` and `/` are parts of names and are matched literally. */
const wordsOf = (query: string): string[] =>
  [...new Set(plain(query).split(/[\s,;"'()]+/))].filter((word) => word !== '').slice(0, WORDS_MAX);

const startsWord = (text: string, word: string): boolean => {
  for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + 1))
    if (at === 0 || !/[\p{L}\p{N}]/u.test(text[at - 1] ?? '')) return true;
  return false;
};

function scoreOf(word: string, [title, heading, text]: readonly [string, string, string]): number {
  const inHeading = heading.includes(word) ? IN_HEADING + (startsWord(heading, word) ? HEADING_WORD : 0) : 0;
  const inTitle = title.includes(word) ? IN_TITLE : 0;
  const inText = text.includes(word) ? Math.min(text.split(word).length - 1, IN_TEXT_MAX) : 0;
  return inHeading + inTitle + inText;
}

function excerptOf(text: string, words: readonly string[]): string[] {
  const low = text.toLowerCase();
  const places = words.map((word) => low.indexOf(word)).filter((at) => at >= 0);
  const first = places.length === 0 ? 0 : Math.min(...places);
  const from = first <= BEFORE ? 0 : text.indexOf(' ', first - BEFORE) + 1 || first;
  const end = text.length - from <= EXCERPT ? text.length : Math.max(text.lastIndexOf(' ', from + EXCERPT), first);
  const shown = `${from > 0 ? '… ' : ''}${text.slice(from, end)}${end < text.length ? ' …' : ''}`;
  const found = words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')).join('|');
  return shown.split(new RegExp(`(${found})`, 'gi'));
}

/** The sections that contain every word of the query, best first. */
export function find(index: Index, query: string, limit: number): Hit[] {
  const words = wordsOf(query);
  if (words.length === 0) return [];
  const whole = words.join(' ');
  const hits: { score: number; hit: Hit; text: string }[] = [];
  for (const [page, title, sections] of index) {
    const low = plain(title);
    for (const [anchor, heading, text] of sections) {
      const fields = [low, plain(heading), plain(text)] as const;
      const scores = words.map((word) => scoreOf(word, fields));
      if (scores.includes(0)) continue;
      const score = scores.reduce((sum, one) => sum + one, 0) + (fields[1] === whole ? WHOLE_HEADING : 0);
      hits.push({ score, text, hit: { page, title, anchor, heading, excerpt: [] } });
    }
  }
  return hits
    .sort((one, other) => other.score - one.score)
    .slice(0, limit)
    .map(({ hit, text }) => ({ ...hit, excerpt: excerptOf(text, words) }));
}
