/** Which items a list or a search selects, and which of them are on its page. */
import { fold, newestFirst } from '../sdk/query.js';
import type { ContentType } from '../protocol/item.js';
import type { Bins } from './bin-scope.js';
import { cursorAfter, positionOf, type Position, type Selection } from './cursor.js';
import { McpError } from './errors.js';
import { firstOf, lastOf } from './schemas.js';
import { Newest, type Card } from './vault-store.js';

/** The arguments of a list or a search. */
export interface Asked {
  readonly id?: string | undefined;
  readonly query?: string;
  readonly bin?: string | undefined;
  readonly type?: ContentType | undefined;
  readonly since?: string | undefined;
  readonly until?: string | undefined;
  readonly limit: number;
  readonly cursor?: string | undefined;
}

/** One page of a list or a search. */
export class Page {
  /** Number of items that were offered, on any page. */
  total = 0;
  /** Id of the bin in the arguments; null: they name none. */
  readonly bin: string | null;
  private readonly newest: Newest;
  private readonly from: number;
  private readonly to: number;
  private readonly selection: Selection;
  private readonly last: Position | undefined;

  /** Throws `McpError` for a bin name that `Bins.named` refuses, an empty period, and a cursor of another selection. */
  constructor(
    private readonly bins: Bins,
    private readonly asked: Asked,
  ) {
    const { id = null, query, bin, type = null, since, until, limit, cursor } = asked;
    this.bin = bin === undefined ? null : bins.named(bin);
    this.from = since === undefined ? -Infinity : firstOf(since);
    this.to = until === undefined ? Infinity : lastOf(until);
    if (this.from > this.to) throw new McpError('bad_input', 'since is later than until');
    this.selection = [query === undefined ? null : fold(query), id, this.bin, type, this.from, this.to];
    this.last = cursor === undefined ? undefined : positionOf(cursor, this.selection);
    this.newest = new Newest(limit);
  }

  /** False for an item that the arguments exclude regardless of its text. */
  fits({ id, type, ts, binId, provenBin }: Card): boolean {
    const { asked, bins } = this;
    if (asked.id !== undefined && asked.id !== id) return false;
    if (asked.type !== undefined && asked.type !== type) return false;
    if (ts < this.from || ts > this.to) return false;
    // An item that does not verify also counts for the bin of its last verified state.
    if (this.bin !== null) return binId === this.bin || provenBin === this.bin;
    return bins.allows(binId) || (binId !== provenBin && provenBin !== null && bins.allows(provenBin));
  }

  offer(card: Card): void {
    this.total++;
    const isAfterCursor = this.last === undefined || newestFirst(card, this.last) > 0;
    if (isAfterCursor) this.newest.offer(card);
  }

  /** At most `limit`, newest first. */
  get cards(): readonly Card[] {
    return this.newest.all;
  }

  /** How many items follow the first `count` (at least one) of `cards`, and the cursor of the page with them. */
  after(count: number): { readonly left: number; readonly nextCursor: string | null } {
    const left = this.newest.total - count;
    const last = this.cards[count - 1];
    return { left, nextCursor: left === 0 || last === undefined ? null : cursorAfter(last, this.selection) };
  }
}
