/**
 * Cursors of lists and searches (MCP-91): where a page ended, by time and id, so that the next one begins there even if
 * items were written or deleted in between. They need no state here: a cursor outlives the program and is reusable.
 */
import { createHash } from 'node:crypto';
import { isUlid } from '../protocol/ids.js';
import { McpError } from './errors.js';
import type { Card } from './vault-store.js';

/** The last item of a page. */
export type Position = Pick<Card, 'id' | 'ts'>;

/** The arguments that select items, parsed: all but the page size and the cursor. */
export type Selection = readonly (string | number | null)[];

const FORM = /^([0-9a-z]{1,12})\.(\w{26})\.([\w-]{8})$/;

/**
 * Also covers the position, so that a cursor with a copying error is refused. Not a secret: an agent that invents a
 * cursor learns no more than from a list without one.
 */
const mark = ({ id, ts }: Position, selection: Selection): string =>
  createHash('sha256')
    .update(JSON.stringify([id, ts, ...selection]))
    .digest('base64url')
    .slice(0, 8);

/** The cursor of the page that begins after an item. */
export const cursorAfter = (last: Position, selection: Selection): string =>
  Buffer.from(`${last.ts.toString(36)}.${last.id}.${mark(last, selection)}`).toString('base64url');

/** The position of a cursor. Throws `McpError` `bad_cursor` for one that is damaged or of another selection. */
export function positionOf(cursor: string, selection: Selection): Position {
  const [, ts = '', id = '', given] = FORM.exec(Buffer.from(cursor, 'base64url').toString('latin1')) ?? [];
  const position = { id, ts: Number.parseInt(ts, 36) };
  // Compared as text too: the base64url decoder ignores invalid characters.
  if (isUlid(id) && given === mark(position, selection) && cursorAfter(position, selection) === cursor) return position;
  throw new McpError('bad_cursor', 'the cursor was not returned by a call with these arguments');
}
