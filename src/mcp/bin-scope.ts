/**
 * Which bins agents may use. A bin is named by id, slug or name. Slugs come from the server and nothing proves them: an
 * allowed slug is pinned to the bin that it first named, whatever the server says later. A name is encrypted by the
 * user's devices for its bin. Item tags prove which bin an item is in.
 */
import type { BinView } from '../sdk/events.js';
import { fold } from '../sdk/query.js';
import { sanitizeText } from '../protocol/sanitize.js';
import { BIN_SLUG } from '../protocol/ids.js';
import { McpError } from './errors.js';
import { BINS_VARIABLE } from './policy.js';

/** A bin as agents see it. */
export interface BinFacts {
  readonly id: string;
  /** Null: the server's slug is malformed. */
  readonly slug: string | null;
  /** The name that the user gave it, on one line; null: it has none, or the name does not decrypt. */
  readonly name: string | null;
}

/** The bins that agents may see, as of one listing. */
export type Bins = ReturnType<BinScope['of']>;

/** Characters of a name that are shown and compared; the rest is cut off. */
const NAME_SHOWN_MAX = 100;
/** Bins that a refusal lists. */
const LISTED_MAX = 20;

/** A name as it is shown, with control and invisible characters escaped; null if nothing is left. */
const shownName = (name: string): string | null => {
  const shown = Array.from(sanitizeText(name)).slice(0, NAME_SHOWN_MAX).join('').trim();
  return shown === '' ? null : shown;
};

/**
 * Names are compared as they are shown, composed (NFC) and without case. Upper case comes first because only it maps ß
 * and ss to the same text.
 */
const folded = (name: string): string => (shownName(name.normalize('NFC')) ?? '').toUpperCase().toLowerCase();

/** A bin in a line of text: its name in quotes, so that a name cannot imitate other text, and its slug or id. */
export const binText = ({ id, slug, name }: BinFacts): string =>
  name === null ? (slug ?? id) : `${JSON.stringify(name)} (${slug ?? id})`;

/** Filters the server's list of bins by the allow list. */
export class BinScope {
  /** Maps an entry of the allow list to the id of its bin. */
  private readonly pinned = new Map<string, string>();

  /** `names`: ids, slugs or names that are allowed; null: all. */
  constructor(private readonly names: readonly string[] | null) {}

  of(list: readonly BinView[]) {
    // Duplicate ids are dropped: a bin that the server lists twice would make its own name ambiguous.
    const listed = [...new Map(list.map((bin) => [bin.id, factsOf(bin)])).values()];
    for (const name of this.names ?? []) {
      const [only, other] = this.pinned.has(name) ? [] : matching(listed, name);
      if (only !== undefined && other === undefined) this.pinned.set(name, only.id);
    }
    const allowed = this.names === null ? null : new Set(this.pinned.values());
    const allows = (id: string | null): boolean => allowed === null || (id !== null && allowed.has(id));
    const all = listed.filter(({ id }) => allows(id));
    const byId = new Map(all.map((bin) => [bin.id, bin]));
    const limited = allowed !== null;
    return {
      /** False for a bin outside the allow list. */
      allows,
      /** Undefined: the server does not list the bin, or it is outside the allow list. */
      factsOf: (id: string | null): BinFacts | undefined => (id === null ? undefined : byId.get(id)),
      textOf: (id: string): string => binText(byId.get(id) ?? { id, slug: null, name: null }),
      /** The id of the bin that an agent names. Throws `bin_not_found`, `bin_not_allowed`, `bin_ambiguous`. */
      named: (name: string): string => {
        const pinned = this.pinned.get(name);
        if (pinned !== undefined) return pinned;
        const [found, ...others] = matching(all, name);
        if (found === undefined) throw refusal(name, all, limited);
        if (others.length > 0) throw ambiguous(name, [found, ...others]);
        return found.id;
      },
      /** The bins that agents may see, in the server's order. */
      all: all as readonly BinFacts[],
      /** Entries of the allow list that match no bin, or several. */
      unknown: (this.names ?? []).filter((name) => !this.pinned.has(name)),
      limited,
    };
  }
}

function factsOf({ id, slug, label }: BinView): BinFacts {
  return { id, slug: BIN_SLUG.test(slug) ? slug : null, name: label === null ? null : shownName(label.name) };
}

/**
 * The bin with that id; else all with that slug or name. Slugs come from the server, so a matching slug must not hide a
 * bin with that name.
 */
function matching(bins: readonly BinFacts[], name: string): readonly BinFacts[] {
  const own = bins.find(({ id }) => id === name);
  if (own !== undefined) return [own];
  const wanted = folded(name);
  return bins.filter((bin) => bin.slug === name || (wanted !== '' && bin.name !== null && folded(bin.name) === wanted));
}

function shortList(bins: readonly BinFacts[], how: (bin: BinFacts) => string): string {
  return bins.slice(0, LISTED_MAX).map(how).join(', ') + (bins.length > LISTED_MAX ? ', …' : '');
}

/** Letters and digits of a name or slug, folded as for a search: without case, accents, white space and emoji. */
const letters = (name: string): string => fold(name).replace(/[^\p{L}\p{N}]/gu, '');

/** The bins, those with a similar name or slug first: its letters contain those of `name`, or the reverse. */
function likeliest(bins: readonly BinFacts[], name: string): readonly BinFacts[] {
  const wanted = letters(name);
  const near = (own: string | null): boolean => {
    const has = letters(own ?? '');
    return has !== '' && wanted !== '' && (has.includes(wanted) || wanted.includes(has));
  };
  const rank = (bin: BinFacts): number => (near(bin.name) || near(bin.slug) ? 0 : 1);
  return [...bins].sort((one, other) => rank(one) - rank(other));
}

/** With an allow list the refusal does not reveal whether a bin outside of it exists. */
function refusal(name: string, there: readonly BinFacts[], limited: boolean): McpError {
  const hint = there.length === 0 ? undefined : `Bins: ${shortList(likeliest(there, name), binText)}.`;
  const shown = JSON.stringify(shownName(name) ?? '');
  if (!limited) return new McpError('bin_not_found', `there is no bin ${shown}`, { hint });
  return new McpError('bin_not_allowed', `${BINS_VARIABLE} does not let this program use a bin ${shown}`, { hint });
}

const ambiguous = (name: string, found: readonly BinFacts[]): McpError =>
  new McpError('bin_ambiguous', `${JSON.stringify(shownName(name))} can be any of ${found.length} bins`, {
    hint: `Name one by its id: ${shortList(found, (bin) => `${bin.id} is ${binText(bin)}`)}.`,
  });
