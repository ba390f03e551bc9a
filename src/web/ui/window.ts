/** Which part of a long list is in the page, and which part is asked of the engine. Pure. */

/** Rows that are in the page beyond what is seen, at both ends. */
const MARGIN = 6;
/** Rows of one question; the engine's bound. */
export const PAGE_ROWS = 200;
const STEP = 50;

export interface Range {
  readonly first: number;
  /** After the last one. */
  readonly end: number;
}

/** The rows that are in the page, of `total` rows of one height. */
export function visibleRows(view: { top: number; height: number; row: number; total: number }): Range {
  const { top, height, row, total } = view;
  const first = Math.max(0, Math.min(Math.floor(top / row), total - 1) - MARGIN);
  return { first, end: Math.min(total, Math.ceil((top + height) / row) + MARGIN) };
}

/** Where the question begins, so that the rows are in it with some to spare, and small moves ask the same. */
export const pageOffset = ({ first, end }: Range): number =>
  Math.max(0, Math.floor(((first + end) / 2 - PAGE_ROWS / 2) / STEP) * STEP);

/**
 * Pixels by which the view moves so that what a person looks at stays where it is, when rows before it come or go.
 * `anchor`: the first row seen, by id and place. At the very top nothing moves: new rows are to be seen.
 */
export function shiftOf(
  anchor: { readonly id: string; readonly at: number } | null,
  page: { readonly offset: number; readonly items: readonly { readonly id: string }[] },
  view: { top: number; row: number },
): number {
  if (anchor === null || view.top < view.row / 2) return 0;
  const at = page.items.findIndex(({ id }) => id === anchor.id);
  return at < 0 ? 0 : (page.offset + at - anchor.at) * view.row;
}
