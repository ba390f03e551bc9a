/** What an import of another program's entries would do, in counts. */
import type { Entry, ForeignEntries, Made } from './entries.js';

const wordOf = ({ part, type }: Made): string => (part === 'main' || part.startsWith('file') ? type : part);
const becomes = ({ made, left }: Entry): string =>
  left === undefined ? [...new Set(made.map(wordOf))].join(' + ') : `nothing: ${left}`;

function tally(words: readonly string[]): readonly (readonly [word: string, count: number])[] {
  const counts = new Map<string, number>();
  for (const word of words) counts.set(word, (counts.get(word) ?? 0) + 1);
  return [...counts].sort(([, one], [, other]) => other - one);
}

/** What the entries of another program become, in counts and without secrets. */
export function accountOf({ title, entries }: ForeignEntries) {
  const kinds = tally(entries.map((entry) => JSON.stringify([entry.kind, becomes(entry)])));
  const left = tally(entries.flatMap((entry) => entry.left ?? []));
  const marks = tally(entries.flatMap((entry) => entry.marks));
  return {
    from: title,
    entries: entries.length,
    items: entries.reduce((sum, { made }) => sum + made.length, 0),
    bins: new Set(entries.filter(({ made }) => made.length > 0).map(({ folder }) => folder)).size,
    kinds: kinds.map(([words, count]) => {
      const [kind = '', what = ''] = JSON.parse(words) as readonly string[];
      return { kind, becomes: what, entries: count };
    }),
    /** Entries with content that no field holds: each has a note about it, and its original. */
    withOriginal: entries.filter(({ unplaced }) => unplaced.length > 0).length,
    leftOut: left.map(([reason, count]) => ({ reason, entries: count })),
    /** Marks that are not imported, with the number of entries. */
    marks: marks.map(([mark, count]) => ({ mark, entries: count })),
  };
}

/** What the entries of a source become. */
export type Account = ReturnType<typeof accountOf>;
