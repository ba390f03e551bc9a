/** Summary of what the entries of another program become, for users and scripts. It has no secrets. */
import type { Terminal } from '../../terminal/terminal.js';
import { counted, sanitizeText, table } from '../../terminal/output.js';
import type { Entry, ForeignEntries, Made } from './entries.js';

/** One line of the account: entries of a kind that become the same. */
interface Kind {
  readonly kind: string;
  readonly becomes: string;
  readonly entries: number;
}

/** Counts of an account. */
export interface Account {
  readonly from: string;
  readonly entries: number;
  readonly items: number;
  readonly bins: number;
  readonly kinds: readonly Kind[];
  /** Entries with content that no field holds: each has a note about it, and its original. */
  readonly withOriginal: number;
  readonly leftOut: readonly { readonly reason: string; readonly entries: number }[];
  /** Marks that are not imported, with the number of entries. */
  readonly marks: readonly { readonly mark: string; readonly entries: number }[];
}

const wordOf = ({ part, type }: Made): string => (part === 'main' || part.startsWith('file') ? type : part);
const becomes = ({ made, left }: Entry): string =>
  left === undefined ? [...new Set(made.map(wordOf))].join(' + ') : `nothing: ${left}`;

function tally(words: readonly string[]): readonly (readonly [word: string, count: number])[] {
  const counts = new Map<string, number>();
  for (const word of words) counts.set(word, (counts.get(word) ?? 0) + 1);
  return [...counts].sort(([, one], [, other]) => other - one);
}

/** The account of a source. */
export function accountOf({ title, entries }: ForeignEntries): Account {
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
    withOriginal: entries.filter(({ unplaced }) => unplaced.length > 0).length,
    leftOut: left.map(([reason, count]) => ({ reason, entries: count })),
    marks: marks.map(([mark, count]) => ({ mark, entries: count })),
  };
}

const SHOWN_MAX = 200;

/** Each entry for `--json`. */
export const entryFacts = (entry: Entry) => ({
  where: entry.where.slice(0, SHOWN_MAX),
  kind: entry.kind,
  name: entry.name.slice(0, SHOWN_MAX),
  bin: entry.folder.slice(0, SHOWN_MAX),
  becomes: entry.made.map(({ part, type }) => ({ part, type })),
  noField: entry.unplaced,
  leftOut: entry.left ?? null,
  marks: entry.marks,
});

/** The account as lines: a table, then notes. */
export const accountLines = (terminal: Terminal, account: Account): readonly string[] => [
  ...table(
    terminal,
    [{ title: 'ENTRIES' }, { title: 'KIND' }, { title: 'BECOMES' }],
    account.kinds.map(({ kind, becomes, entries }) => [String(entries), kind, becomes]),
  ),
  ...(account.withOriginal === 0
    ? []
    : [
        `${counted(account.withOriginal, 'entry', 'entries')} with data that no field holds: a note lists it, the original is beside it.`,
      ]),
  ...account.marks.map(
    ({ mark, entries }) => `Not imported: ${sanitizeText(mark)} (${counted(entries, 'entry', 'entries')}).`,
  ),
];
