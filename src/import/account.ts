/** What an import of another program's entries would do, in counts. */
import type { Entry, ForeignEntries, Made } from './entries.js';

const wordOf = ({ part, type }: Made): string => (part === 'main' || part.startsWith('file') ? type : part);
const becomes = ({ made, left }: Entry): string =>
  left === undefined ? [...new Set(made.map(wordOf))].join(' + ') : `nothing: ${left}`;

/** Values with how often each occurs, the most frequent first. */
function tally<T extends object>(values: readonly T[]): readonly (T & { readonly entries: number })[] {
  const counts = new Map<string, T & { readonly entries: number }>();
  for (const value of values) {
    const key = JSON.stringify(value);
    counts.set(key, { ...value, entries: (counts.get(key)?.entries ?? 0) + 1 });
  }
  return [...counts.values()].sort((one, other) => other.entries - one.entries);
}

/** What the entries of another program become, in counts and without secrets. */
export const accountOf = ({ title, entries }: ForeignEntries) => ({
  from: title,
  entries: entries.length,
  items: entries.reduce((sum, { made }) => sum + made.length, 0),
  bins: new Set(entries.filter(({ made }) => made.length > 0).map(({ folder }) => folder)).size,
  kinds: tally(entries.map((entry) => ({ kind: entry.kind, becomes: becomes(entry) }))),
  /** Entries with content that no field holds: each has a note about it, and its original. */
  withOriginal: entries.filter(({ unplaced }) => unplaced.length > 0).length,
  leftOut: tally(entries.flatMap(({ left }) => (left === undefined ? [] : [{ reason: left }]))),
  /** Marks that are not imported, with the number of entries. */
  marks: tally(entries.flatMap(({ marks }) => marks.map((mark) => ({ mark })))),
});

/** What the entries of a source become. */
export type Account = ReturnType<typeof accountOf>;
