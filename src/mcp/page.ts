/**
 * Which items a list or a search selects, and which of them are on its page.
 *
 * Cursors (MCP-91) say where a page ended, by time and id, so that the next one begins there even if items were written
 * or deleted in between. They need no state here: a cursor outlives the program and is reusable.
 */
import { hash } from 'node:crypto';
import type { z } from 'zod';
import { isUlid } from '../protocol/ids.js';
import { fold, newestFirst } from '../sdk/query.js';
import type { Bins } from './bin-scope.js';
import { McpError } from './errors.js';
import { firstOf, lastOf, type listInput } from './schemas.js';
import type { Card } from './vault-store.js';

type PageRequest = z.infer<typeof listInput> & { readonly query?: string };

export class Page {
  /** Number of items that were offered, on any page. */
  total = 0;
  /** Id of the bin in the arguments; null: they name none. */
  readonly bin: string | null;
  /** Cards after the cursor: the newest, and at most twice as many as the page shows. */
  private found: Card[] = [];
  private offered = 0;
  private readonly from: number;
  private readonly to: number;
  private readonly selection: Selection;
  private readonly last: Position | undefined;

  /** Throws `McpError` for a bin name that `Bins.named` refuses, an empty period, and a cursor of another selection. */
  constructor(
    private readonly bins: Bins,
    private readonly request: PageRequest,
  ) {
    const { id = null, query, bin, type = null, since, until, cursor } = request;
    this.bin = bin === undefined ? null : bins.named(bin);
    this.from = since === undefined ? -Infinity : firstOf(since);
    this.to = until === undefined ? Infinity : lastOf(until);
    if (this.from > this.to) throw new McpError('bad_input', 'since is later than until');
    this.selection = [query === undefined ? null : fold(query), id, this.bin, type, this.from, this.to];
    this.last = cursor === undefined ? undefined : positionOf(cursor, this.selection);
  }

  /** False for an item that the arguments exclude regardless of its text. */
  fits({ id, type, ts, binId, provenBin }: Card): boolean {
    const { request, bins } = this;
    if (request.id !== undefined && request.id !== id) return false;
    if (request.type !== undefined && request.type !== type) return false;
    if (ts < this.from || ts > this.to) return false;
    // An item that does not verify also counts for the bin of its last verified state.
    if (this.bin !== null) return binId === this.bin || provenBin === this.bin;
    return bins.allows(binId) || (binId !== provenBin && provenBin !== null && bins.allows(provenBin));
  }

  offer(card: Card): void {
    this.total++;
    if (this.last !== undefined && newestFirst(card, this.last) <= 0) return;
    this.offered++;
    this.found.push(card);
    if (this.found.length >= 2 * this.request.limit) this.found = this.cards;
  }

  /** At most `limit`, newest first. */
  get cards(): Card[] {
    return this.found.sort(newestFirst).slice(0, this.request.limit);
  }

  /** How many items follow the first `count` (at least one) of `cards`, and the cursor of the page with them. */
  after(count: number): { readonly left: number; readonly nextCursor: string | null } {
    const left = this.offered - count;
    const last = this.cards[count - 1];
    return { left, nextCursor: left === 0 || last === undefined ? null : cursorAfter(last, this.selection) };
  }
}

/** The last item of a page. */
type Position = Pick<Card, 'id' | 'ts'>;

/** The arguments that select items, parsed: all but the page size and the cursor. */
type Selection = readonly (string | number | null)[];

const FORM = /^([0-9a-z]{1,12})\.(\w{26})\.([\w-]{8})$/;

/**
 * Also covers the position, so that a cursor with a copying error is refused. Not a secret: an agent that invents a
 * cursor learns no more than from a list without one.
 */
const mark = ({ id, ts }: Position, selection: Selection): string =>
  hash('sha256', JSON.stringify([id, ts, ...selection]), 'base64url').slice(0, 8);

/** The cursor of the page that begins after an item. */
const cursorAfter = (last: Position, selection: Selection): string =>
  Buffer.from(`${last.ts.toString(36)}.${last.id}.${mark(last, selection)}`).toString('base64url');

/** The position of a cursor. Throws `McpError` `bad_cursor` for one that is damaged or of another selection. */
function positionOf(cursor: string, selection: Selection): Position {
  const [, ts = '', id = '', given] = FORM.exec(Buffer.from(cursor, 'base64url').toString('latin1')) ?? [];
  const position = { id, ts: Number.parseInt(ts, 36) };
  // Compared as text too: the base64url decoder ignores invalid characters.
  if (isUlid(id) && given === mark(position, selection) && cursorAfter(position, selection) === cursor) return position;
  throw new McpError('bad_cursor', 'the cursor was not returned by a call with these arguments');
}
