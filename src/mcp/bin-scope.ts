/**
 * Which bins there are for agents. The server tells the slugs, and nothing proves them: so an allowed slug means the bin
 * that it named when this program first asked, whatever the server says later. What is in a bin is proven by item tags.
 */
import type { BinView } from '../client/bins.js';
import { BIN_SLUG } from '../protocol/ids.js';
import { McpError } from './errors.js';
import { BINS_VARIABLE } from './policy.js';

/** The bins as they are now, as far as agents may see them. */
export interface Bins {
  /** False for a bin outside the allow list. */
  allows(id: string | null): boolean;
  /** Null: the server does not list the bin, or gives it a slug that is none. */
  slugOf(id: string | null): string | null;
  /** The id of the bin that an agent names by slug or id. Throws `McpError` `bin_not_found`, `bin_not_allowed`. */
  named(name: string): string;
  /** Names of the allow list that the server's list does not have. */
  readonly unknown: readonly string[];
  /** True where there is an allow list. */
  readonly limited: boolean;
}

/** Names that a refusal tells. */
const NAMED_MAX = 20;

/** Turns the server's list into what agents see; see above. */
export class BinScope {
  /** Of the allow list: which bin each name means. */
  private readonly pinned = new Map<string, string>();

  /** `names`: slugs or ids that are allowed; null: all. */
  constructor(private readonly names: readonly string[] | null) {}

  /** The bins out of the server's list. */
  of(list: readonly BinView[]): Bins {
    const slugs = new Map(list.map(({ id, slug }) => [id, BIN_SLUG.test(slug) ? slug : null] as const));
    const find = (name: string): string | undefined =>
      slugs.has(name) ? name : list.find(({ slug }) => slug === name)?.id;
    for (const name of this.names ?? []) {
      const id = this.pinned.get(name) ?? find(name);
      if (id !== undefined) this.pinned.set(name, id);
    }
    const allowed = this.names === null ? null : new Set(this.pinned.values());
    const allows = (id: string | null): boolean => allowed === null || (id !== null && allowed.has(id));
    return {
      allows,
      slugOf: (id) => (id === null ? null : (slugs.get(id) ?? null)),
      named: (name) => {
        const id = this.pinned.get(name) ?? find(name);
        if (id !== undefined && allows(id)) return id;
        throw refusal(
          name,
          [...slugs].flatMap(([one, slug]) => (allows(one) ? [slug ?? one] : [])),
          allowed !== null,
        );
      },
      unknown: (this.names ?? []).filter((name) => !this.pinned.has(name)),
      limited: allowed !== null,
    };
  }
}

/** With an allow list nothing is said about whether a bin outside of it exists. */
function refusal(name: string, there: readonly string[], limited: boolean): McpError {
  const few = there.slice(0, NAMED_MAX).join(', ') + (there.length > NAMED_MAX ? ', …' : '');
  const hint = there.length === 0 ? undefined : `Bins: ${few}.`;
  const shown = JSON.stringify(name);
  if (!limited) return new McpError('bin_not_found', `there is no bin ${shown}`, { hint });
  return new McpError('bin_not_allowed', `${BINS_VARIABLE} does not let this program use a bin ${shown}`, { hint });
}
