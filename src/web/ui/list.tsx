/** The list: what is seen of it is in the page, the rest is asked of the engine when it comes near. */
import { useComputed, useSignal, type ReadonlySignal } from '@preact/signals';
import type { JSX, RefObject } from 'preact';
import { useEffect, useLayoutEffect, useMemo, useRef } from 'preact/hooks';
import type { ContentType } from '../../protocol/item.js';
import type { ItemRow, ListPage } from '../link/messages.js';
import { bins } from './link.js';
import { link } from './link.js';
import { Button, EmptyState } from './kit.js';
import { Inbox, Search } from './icons.js';
import { Row } from './row.js';
import { binId, itemId, openItem } from './route.js';
import { filters, focusList, moveInList, query } from './state.js';
import { text } from './strings.js';
import { PAGE_ROWS, pageOffset, shiftOf, visibleRows } from './window.js';

/** The filter of the list, as the engine takes it. */
interface Filter {
  readonly binId?: string;
  readonly types?: readonly ContentType[];
  readonly text?: string;
}

const NOTHING: ListPage = { items: [], offset: 0, total: 0 };

/** What the engine says of the list, for a filter and a place in it. The last page stays until the next is there. */
function useList(filter: Filter, offset: number): ReadonlySignal<{ page: ListPage; known: boolean }> {
  const value = useSignal({ page: NOTHING, known: false });
  const key = JSON.stringify(filter);
  useMemo(() => {
    value.value = { page: value.peek().page, known: false };
  }, [key]);
  useEffect(
    () =>
      link().watch('list', { ...filter, offset, limit: PAGE_ROWS }, (page) => (value.value = { page, known: true })),
    [key, offset],
  );
  return value;
}

/** Height of a row in pixels: a token, so that it grows with the text. */
const rowHeight = (): number =>
  parseFloat(getComputedStyle(document.documentElement).getPropertyValue('--row')) *
  parseFloat(getComputedStyle(document.documentElement).fontSize);

/** The part of the list that is looked at. */
function useView(box: RefObject<HTMLDivElement>) {
  const view = useSignal({ top: 0, height: 800, row: rowHeight() });
  useLayoutEffect(() => {
    const element = box.current;
    if (element === null) return undefined;
    const look = (): void => {
      view.value = { top: Math.max(0, element.scrollTop), height: element.clientHeight, row: rowHeight() };
    };
    const sizes = new ResizeObserver(look);
    sizes.observe(element);
    element.addEventListener('scroll', look, { passive: true });
    look();
    return () => {
      sizes.disconnect();
      element.removeEventListener('scroll', look);
    };
  }, []);
  return view;
}

/** The items of the place and filter that are chosen. */
export function List(): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const rows = useRef<HTMLUListElement>(null);
  const filter = useMemo<Filter>(
    () => ({
      ...(binId.value === null ? {} : { binId: binId.value }),
      ...(filters.value.length === 0 ? {} : { types: filters.value }),
      ...(query.value.trim() === '' ? {} : { text: query.value.trim() }),
    }),
    [binId.value, filters.value, query.value],
  );
  const view = useView(box);
  const total = useSignal(0);
  const range = useComputed(() => visibleRows({ ...view.value, total: total.value }));
  const offset = useComputed(() => pageOffset(range.value));
  const { page, known } = useList(filter, offset.value).value;
  total.value = page.total;
  useStandStill({ box, page, filter, view });
  const { first, end } = range.value;
  useLayoutEffect(() => {
    rows.current?.style.setProperty('padding-block-start', `${first * view.value.row}px`);
    rows.current?.style.setProperty('block-size', `${page.total * view.value.row}px`);
  }, [first, page.total, view.value.row]);
  const seen = useMemo(
    () => Array.from({ length: Math.max(0, end - first) }, (_, at) => page.items[first + at - page.offset]),
    [first, end, page],
  );
  const current = useCurrent({ box, page, first, view });
  return (
    <div class="list-box" ref={box} tabIndex={-1} onKeyDown={current.onKeyDown}>
      {page.total === 0 && known ? (
        <NothingHere filtered={filters.value.length > 0 || query.value.trim() !== ''} />
      ) : (
        <ul ref={rows} class="list-rows" role="list" aria-label={text.list.label} aria-busy={!known}>
          {seen.map((item, at) => (
            <li
              key={item?.id ?? `at${first + at}`}
              class="list-place"
              aria-setsize={page.total}
              aria-posinset={first + at + 1}
            >
              {item === undefined ? (
                <span class="row-blank" aria-hidden="true" />
              ) : (
                <Row item={item} open={item.id === itemId.value} reachable={item.id === current.id} />
              )}
            </li>
          ))}
        </ul>
      )}
      <p class="sr" role="status">
        {known ? text.list.found(page.total) : ''}
      </p>
    </div>
  );
}

type View = ReadonlySignal<{ readonly top: number; readonly height: number; readonly row: number }>;

/** Rows that come and go above do not move what is looked at; another filter begins at the top. */
function useStandStill(of: { box: RefObject<HTMLDivElement>; page: ListPage; filter: Filter; view: View }): void {
  const { box, page, filter, view } = of;
  const anchor = useRef<{ id: string; at: number } | null>(null);
  const filterBefore = useRef(filter);
  useLayoutEffect(() => {
    const element = box.current;
    if (element === null) return;
    if (filterBefore.current !== filter) {
      filterBefore.current = filter;
      anchor.current = null;
      element.scrollTop = 0;
      return;
    }
    const by = shiftOf(anchor.current, page, view.peek());
    if (by !== 0) element.scrollTop += by;
  }, [page, filter]);
  // The first row that is seen as a whole, as it is now.
  useLayoutEffect(() => {
    const at = Math.ceil(view.value.top / view.value.row);
    const item = page.items[at - page.offset];
    anchor.current = item === undefined ? null : { id: item.id, at };
  }, [page, view.value]);
}

/** The row that the keyboard is at. It is by its place where its item is gone. */
function useCurrent(of: { box: RefObject<HTMLDivElement>; page: ListPage; first: number; view: View }) {
  const { box, page, first, view } = of;
  const at = useRef<{ id: string; at: number } | null>(null);
  const focusNext = useRef(false);
  let known = at.current === null ? -1 : page.items.findIndex(({ id }) => id === at.current?.id);
  if (known >= 0) at.current = { id: at.current?.id ?? '', at: page.offset + known };
  // Gone, or not there before: what is in its place now.
  else if (at.current !== null) {
    const there = page.items[Math.min(at.current.at, page.total - 1) - page.offset];
    if (there !== undefined) {
      at.current = { id: there.id, at: Math.min(at.current.at, page.total - 1) };
      known = at.current.at - page.offset;
    }
  }
  const top = Math.max(first, Math.ceil(view.value.top / view.value.row));
  const seen = at.current !== null && known >= 0 && at.current.at >= first;
  const id = seen ? at.current?.id : page.items[top - page.offset]?.id;
  const step = (by: number, focus: boolean): void => {
    const before =
      at.current?.at ??
      (itemId.value === null ? top - 1 : page.offset + page.items.findIndex((one) => one.id === itemId.value));
    const next = Math.max(0, Math.min(page.total - 1, before + by));
    const item: ItemRow | undefined = page.items[next - page.offset];
    const element = box.current;
    if (element === null || page.total === 0) return;
    const { row, height } = view.value;
    const [above, below] = [next * row, (next + 1) * row];
    if (above < element.scrollTop) element.scrollTop = above;
    else if (below > element.scrollTop + height) element.scrollTop = below - height;
    at.current = { id: item?.id ?? '', at: next };
    focusNext.current = focus;
    if (item !== undefined && itemId.value !== null) openItem(item.id);
    moved.value += 1;
  };
  const moved = useSignal(0);
  useLayoutEffect(() => {
    if (!focusNext.current) return;
    const row = box.current?.querySelector<HTMLElement>('.row-open[tabindex="0"]');
    if (row == null || at.current === null || row.dataset['id'] !== at.current.id) return;
    focusNext.current = false;
    row.focus({ preventScroll: true });
  });
  void moved.value;
  moveInList.current = (by) => step(by, true);
  focusList.current = () => step(0, true);
  const onKeyDown = (event: KeyboardEvent): void => {
    const focused = (event.target as HTMLElement).closest<HTMLElement>('.row-open')?.dataset['id'];
    if (focused !== undefined && focused !== at.current?.id) {
      const index = page.items.findIndex((one) => one.id === focused);
      if (index >= 0) at.current = { id: focused, at: page.offset + index };
    }
    const rows = Math.max(1, Math.floor(view.value.height / view.value.row) - 1);
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: rows, PageUp: -rows, Home: -page.total, End: page.total }[
      event.key
    ];
    if (by === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    step(by, true);
  };
  return { id, onKeyDown };
}

function NothingHere({ filtered }: { readonly filtered: boolean }): JSX.Element {
  if (filtered)
    return (
      <EmptyState icon={Search} title={text.list.notFoundTitle}>
        <p>{text.list.notFound}</p>
        <Button
          kind="quiet"
          onClick={() => {
            filters.value = [];
            query.value = '';
          }}
        >
          {text.list.showAll}
        </Button>
      </EmptyState>
    );
  return (
    <EmptyState icon={Inbox} title={text.list.noneTitle}>
      <p>{text.list.none}</p>
      {bins.value === undefined && null}
    </EmptyState>
  );
}
