/**
 * Cursors of lists and searches (MCP-91): where a page ended, by time and id, so that the next one begins there whatever
 * is written or deleted meanwhile. Nothing of a page is kept here: a cursor outlives the program, and may be used twice.
 */
import { createHash } from 'node:crypto';
import { isUlid } from '../protocol/ids.js';
import { McpError } from './errors.js';
import type { Card } from './vault-store.js';

/** The last item of a page. */
export type Position = Pick<Card, 'id' | 'ts'>;

/** What a page selects from: arguments other than the size of the page and the cursor, as they were understood. */
export type Selection = readonly (string | number | null)[];

const FORM = /^([0-9a-z]{1,12})\.(\w{26})\.([\w-]{8})$/;

/**
 * Covers the position too, so that a cursor that was copied with a mistake is refused. Not a secret: an agent that makes
 * up a cursor learns no more than by a list without one.
 */
const mark = ({ id, ts }: Position, selection: Selection): string =>
  createHash('sha256')
    .update(JSON.stringify([id, ts, ...selection]))
    .digest('base64url')
    .slice(0, 8);

/** The cursor that goes on after an item. */
export const cursorAfter = (last: Position, selection: Selection): string =>
  Buffer.from(`${last.ts.toString(36)}.${last.id}.${mark(last, selection)}`).toString('base64url');

/** The position of a cursor. Throws `McpError` `bad_cursor` for one that is damaged or of another selection. */
export function positionOf(cursor: string, selection: Selection): Position {
  const [, ts = '', id = '', given] = FORM.exec(Buffer.from(cursor, 'base64url').toString('latin1')) ?? [];
  const position = { id, ts: Number.parseInt(ts, 36) };
  // Compared as text: the decoder ignores what does not belong into a cursor.
  if (isUlid(id) && given === mark(position, selection) && cursorAfter(position, selection) === cursor) return position;
  throw new McpError('bad_cursor', 'the cursor is not one that a call with these arguments gave');
}
