/**
 * Which bins there are for agents. A bin is named by id, slug or name. The server tells the slugs, and nothing proves
 * them: so an allowed slug means the bin that it named when this program first asked, whatever the server says later. A
 * name is sealed by the user's devices for its bin. What is in a bin is proven by item tags.
 */
import type { BinView } from '../sdk/events.js';
import { sanitizeText } from '../protocol/sanitize.js';
import { BIN_SLUG } from '../protocol/ids.js';
import { McpError } from './errors.js';
import { BINS_VARIABLE } from './policy.js';

/** A bin as agents are told of it. */
export interface BinFacts {
  readonly id: string;
  /** Null: the server gives it a slug that is none. */
  readonly slug: string | null;
  /** As its user named it, on one line; null: nobody has, or the name does not verify. */
  readonly name: string | null;
}

/** The bins as they are now, as far as agents may see them. */
export interface Bins {
  /** False for a bin outside the allow list. */
  allows(id: string | null): boolean;
  /** Undefined: the server does not list the bin, or it is outside the allow list. */
  factsOf(id: string | null): BinFacts | undefined;
  /** A bin in a line of text. */
  textOf(id: string): string;
  /** The id of the bin that an agent names. Throws `McpError` `bin_not_found`, `bin_not_allowed`, `bin_ambiguous`. */
  named(name: string): string;
  /** Those that agents may see, in the server's order. */
  readonly all: readonly BinFacts[];
  /** Names of the allow list that no bin has, or several. */
  readonly unknown: readonly string[];
  /** True where there is an allow list. */
  readonly limited: boolean;
}

/** Characters of a name that are told; a longer one is told by its beginning, and taken by it. */
const NAME_SHOWN_MAX = 100;
/** Bins that a refusal tells. */
const TOLD_MAX = 20;

/** A name as it is told. What steers or hides in it is shown instead of done. */
const told = (name: string): string | null => {
  const shown = Array.from(sanitizeText(name)).slice(0, NAME_SHOWN_MAX).join('').trim();
  return shown === '' ? null : shown;
};

/**
 * Names are compared as they are told, composed (NFC) and without case, as a person would who reads them. Upper case
 * comes first because only it brings together what lower case keeps apart (ß and ss).
 */
const folded = (name: string): string => (told(name.normalize('NFC')) ?? '').toUpperCase().toLowerCase();

/** A bin in a line of text: its name in quotes, so that no name passes for anything else, and its slug or id. */
export const binText = ({ id, slug, name }: BinFacts): string =>
  name === null ? (slug ?? id) : `${JSON.stringify(name)} (${slug ?? id})`;

/** Turns the server's list into what agents see; see above. */
export class BinScope {
  /** Of the allow list: which bin each name means. */
  private readonly pinned = new Map<string, string>();

  /** `names`: ids, slugs or names that are allowed; null: all. */
  constructor(private readonly names: readonly string[] | null) {}

  /** The bins out of the server's list. */
  of(list: readonly BinView[]): Bins {
    // By id, each once, whatever the server lists: else one bin would be taken for two of the same name.
    const listed = [...new Map(list.map((bin) => [bin.id, factsOf(bin)])).values()];
    for (const name of this.names ?? []) {
      const [only, other] = this.pinned.has(name) ? [] : meant(listed, name);
      if (only !== undefined && other === undefined) this.pinned.set(name, only.id);
    }
    const allowed = this.names === null ? null : new Set(this.pinned.values());
    const allows = (id: string | null): boolean => allowed === null || (id !== null && allowed.has(id));
    const all = listed.filter(({ id }) => allows(id));
    const byId = new Map(all.map((bin) => [bin.id, bin]));
    const limited = allowed !== null;
    return {
      allows,
      factsOf: (id) => (id === null ? undefined : byId.get(id)),
      textOf: (id) => binText(byId.get(id) ?? { id, slug: null, name: null }),
      named: (name) => {
        const pinned = this.pinned.get(name);
        if (pinned !== undefined) return pinned;
        const [found, ...others] = meant(all, name);
        if (found === undefined) throw refusal(name, all, limited);
        if (others.length > 0) throw ambiguous(name, [found, ...others]);
        return found.id;
      },
      all,
      unknown: (this.names ?? []).filter((name) => !this.pinned.has(name)),
      limited,
    };
  }
}

function factsOf({ id, slug, label }: BinView): BinFacts {
  return { id, slug: BIN_SLUG.test(slug) ? slug : null, name: label === null ? null : told(label.name) };
}

/** The bin of that id; else those of that slug or name. A slug hides no bin of that name: the server tells slugs. */
function meant(bins: readonly BinFacts[], name: string): readonly BinFacts[] {
  const own = bins.find(({ id }) => id === name);
  if (own !== undefined) return [own];
  const wanted = folded(name);
  return bins.filter((bin) => bin.slug === name || (wanted !== '' && bin.name !== null && folded(bin.name) === wanted));
}

function few(bins: readonly BinFacts[], how: (bin: BinFacts) => string): string {
  return bins.slice(0, TOLD_MAX).map(how).join(', ') + (bins.length > TOLD_MAX ? ', …' : '');
}

/** With an allow list nothing is said about whether a bin outside of it exists. */
function refusal(name: string, there: readonly BinFacts[], limited: boolean): McpError {
  const hint = there.length === 0 ? undefined : `Bins: ${few(there, binText)}.`;
  const shown = JSON.stringify(told(name) ?? '');
  if (!limited) return new McpError('bin_not_found', `there is no bin ${shown}`, { hint });
  return new McpError('bin_not_allowed', `${BINS_VARIABLE} does not let this program use a bin ${shown}`, { hint });
}

const ambiguous = (name: string, found: readonly BinFacts[]): McpError =>
  new McpError('bin_ambiguous', `${JSON.stringify(told(name))} can be any of ${found.length} bins`, {
    hint: `Name one by its id: ${few(found, (bin) => `${bin.id} is ${binText(bin)}`)}.`,
  });
