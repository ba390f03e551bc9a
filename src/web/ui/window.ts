/** Which part of a long list is rendered, and which part is requested from the engine. Pure. */

/** Rows rendered beyond the visible ones, at both ends. */
const MARGIN = 6;
/** Rows of one request; the engine's bound. */
export const PAGE_ROWS = 200;
const STEP = 50;

export interface Range {
  readonly first: number;
  /** After the last one. */
  readonly end: number;
}

/** The rows to be rendered, of `total` rows of equal height. */
export function visibleRows(view: { top: number; height: number; row: number; total: number }): Range {
  const { top, height, row, total } = view;
  const first = Math.max(0, Math.min(Math.floor(top / row), total - 1) - MARGIN);
  return { first, end: Math.min(total, Math.ceil((top + height) / row) + MARGIN) };
}

/** Offset of the request: the page covers the rows with a margin, and small moves give the same offset. */
export const pageOffset = ({ first, end }: Range): number =>
  Math.max(0, Math.floor(((first + end) / 2 - PAGE_ROWS / 2) / STEP) * STEP);

/**
 * Pixels to scroll so that the visible rows stay in place when rows before them are added or removed. `anchor`: the
 * first visible row, by id and index. At the very top it is 0, so that new rows become visible.
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
