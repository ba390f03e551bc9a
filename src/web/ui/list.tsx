/**
 * The list and its rows: only visible rows are rendered, and further pages are requested from the engine when they come
 * near.
 */
import { useComputed, useSignal, type ReadonlySignal } from '@preact/signals';
import * as icons from 'lucide-preact';
import type { RefObject } from 'preact';
import { useEffect, useLayoutEffect, useMemo, useReducer, useRef } from 'preact/hooks';
import type { ListPage, ListParams, ItemRow } from '../link/messages.js';
import { binName, copyItem, edit, move, remove, undoRemove } from './actions.js';
import { BinDialog } from './bin-dialog.js';
import { download } from './content.js';
import { KIND_ICONS } from './fields.js';
import { BinSign, Button, Dialog, EmptyState, follows, OneLine, openDialog, SecondsTo, When } from './kit.js';
import type { Closable } from './kit.js';
import { bins, link, isRevoked } from './link.js';
import { Menu, type Entry, type MenuEntry } from './menu.js';
import { binId, itemId, openItem, hashOf, filters, focusList, moveInList, query } from './route.js';
import * as text from './strings.js';

const words = text.list;

/** Rows rendered beyond the visible ones, at both ends. */
const MARGIN = 6;
/** Rows of one request; the engine's bound. */
export const PAGE_ROWS = 200;
const STEP = 50;

interface Range {
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

/** The filter of the list, as the engine takes it. */
type Filter = Omit<ListParams, 'offset' | 'limit'>;

const NOTHING: ListPage = { items: [], offset: 0, total: 0 };

/** A page of the list, for a filter and an offset. The last page stays until the next is there (`known`). */
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

/** Height of a row in pixels, from a style token in units of the font size. */
const rowHeight = (): number =>
  parseFloat(getComputedStyle(document.documentElement).getPropertyValue('--row')) *
  parseFloat(getComputedStyle(document.documentElement).fontSize);

/** The visible part of the list, in pixels. */
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

/** The items of the chosen bin and filters. */
export function List() {
  const box = useRef<HTMLDivElement>(null);
  const rows = useRef<HTMLUListElement>(null);
  const filter = useMemo<Filter>(
    () => ({
      binId: binId.value ?? undefined,
      types: filters.value.length === 0 ? undefined : filters.value,
      text: query.value.trim(),
    }),
    [binId.value, filters.value, query.value],
  );
  const view = useView(box);
  const total = useSignal(0);
  const range = useComputed(() => visibleRows({ ...view.value, total: total.value }));
  const offset = useComputed(() => pageOffset(range.value));
  const { page, known } = useList(filter, offset.value).value;
  total.value = page.total;
  useStandStill(box, page, filter, view);
  const { first, end } = range.value;
  useLayoutEffect(() => {
    rows.current?.style.setProperty('padding-block-start', `${first * view.value.row}px`);
    rows.current?.style.setProperty('block-size', `${page.total * view.value.row}px`);
  }, [first, page.total, view.value.row]);
  const seen = useMemo(
    () => Array.from({ length: Math.max(0, end - first) }, (_, at) => page.items[first + at - page.offset]),
    [first, end, page],
  );
  const current = useCurrent(box, page, first, view);
  return (
    <div class="list-box" ref={box} tabIndex={-1} onKeyDown={current.onKeyDown}>
      {page.total === 0 && known ? (
        <NothingHere filtered={filters.value.length > 0 || query.value.trim() !== ''} />
      ) : (
        <ul ref={rows} class="list-rows" role="list" aria-label={words.label} aria-busy={!known}>
          {seen.map((item, at) => (
            <li
              key={item?.id ?? `at${first + at}`}
              class="list-place"
              data-place={item?.id}
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
        {known ? words.found(page.total) : ''}
      </p>
    </div>
  );
}

/** An item, and its index in the whole list. */
interface At {
  readonly id: string;
  readonly at: number;
}

type View = ReadonlySignal<{ readonly top: number; readonly height: number; readonly row: number }>;

/** Keeps visible rows in place when rows above are added or removed; another filter scrolls to the top. */
function useStandStill(box: RefObject<HTMLDivElement>, page: ListPage, filter: Filter, view: View): void {
  const anchor = useRef<At | null>(null);
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
  // The first fully visible row.
  useLayoutEffect(() => {
    const at = Math.ceil(view.value.top / view.value.row);
    const item = page.items[at - page.offset];
    anchor.current = item === undefined ? null : { id: item.id, at };
  }, [page, view.value]);
}

/** Where a row is in a page; for a row that is not in it, the row now at its index. */
function placeIn(page: ListPage, row: At | null): At | null {
  if (row === null) return null;
  const found = page.items.findIndex(({ id }) => id === row.id);
  if (found >= 0) return { id: row.id, at: page.offset + found };
  const at = Math.min(row.at, page.total - 1);
  const there = page.items[at - page.offset];
  return there === undefined ? row : { id: there.id, at };
}

/** Scrolls no further than needed to make a row fully visible. */
function reveal(element: HTMLElement, at: number, { row, height }: View['value']): void {
  if (at * row < element.scrollTop) element.scrollTop = at * row;
  else if ((at + 1) * row > element.scrollTop + height) element.scrollTop = (at + 1) * row - height;
}

const STEPS: Readonly<Record<string, (rows: number, total: number) => number>> = {
  ArrowDown: () => 1,
  ArrowUp: () => -1,
  PageDown: (rows) => rows,
  PageUp: (rows) => -rows,
  Home: (_, total) => -total,
  End: (_, total) => total,
};

/** The current row of the keyboard: Tab reaches this row, keys move from it to the others. */
function useCurrent(box: RefObject<HTMLDivElement>, page: ListPage, first: number, view: View) {
  const current = useRef<At | null>(null);
  const focusNext = useRef(false);
  const [, render] = useReducer((turn: number) => turn + 1, 0);
  // The focus is lost with a row that is removed or replaced, so it is restored below.
  const had = box.current?.contains(document.activeElement) === true;
  const focused = had ? document.activeElement?.closest<HTMLElement>('.list-place')?.dataset['place'] : undefined;
  current.current = placeIn(page, current.current);
  const top = Math.max(first, Math.ceil(view.value.top / view.value.row));
  const seen = current.current !== null && current.current.at >= first;
  const id = seen ? current.current?.id : page.items[top - page.offset]?.id;
  const step = (by: number): void => {
    const element = box.current;
    if (element === null || page.total === 0) return;
    const open = page.items.findIndex((one) => one.id === itemId.value);
    const before = current.current?.at ?? (open < 0 ? top - 1 : page.offset + open);
    const at = Math.max(0, Math.min(page.total - 1, before + by));
    const item = page.items[at - page.offset];
    reveal(element, at, view.value);
    current.current = { id: item?.id ?? '', at };
    focusNext.current = true;
    if (item !== undefined && itemId.value !== null) openItem(item.id);
    render(undefined);
  };
  // A row far away must be rendered before it can get the focus.
  useLayoutEffect(() => {
    const row = focusNext.current ? box.current?.querySelector<HTMLElement>('.row-open[tabindex="0"]') : null;
    if (row == null || row.dataset['id'] !== current.current?.id) return;
    focusNext.current = false;
    row.focus({ preventScroll: true });
  });
  useLayoutEffect(() => {
    if (!had || document.activeElement !== document.body) return;
    const places = [...(box.current?.querySelectorAll<HTMLElement>('.list-place') ?? [])];
    const place =
      places.find((one) => one.dataset['place'] === focused) ?? places.find((one) => one.dataset['place'] === id);
    (place?.querySelector<HTMLElement>('.row-open, button') ?? box.current)?.focus({ preventScroll: true });
  });
  moveInList.current = step;
  focusList.current = () => {
    if (page.total === 0) box.current?.focus({ preventScroll: true });
    else step(0);
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    const by = Object.hasOwn(STEPS, event.key) ? STEPS[event.key] : undefined;
    if (by === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    const focused = (event.target as HTMLElement).closest('.row')?.querySelector<HTMLElement>('.row-open');
    const at = page.items.findIndex((one) => one.id === focused?.dataset['id']);
    if (at >= 0) current.current = { id: page.items[at]?.id ?? '', at: page.offset + at };
    event.preventDefault();
    event.stopPropagation();
    step(by(Math.max(1, Math.floor(view.value.height / view.value.row) - 1), page.total));
  };
  return { id, onKeyDown };
}

function NothingHere({ filtered }: { filtered: boolean }) {
  if (filtered)
    return (
      <EmptyState icon={icons.Search} title={words.notFoundTitle} lead={words.notFound}>
        <Button
          kind="quiet"
          onClick={() => {
            filters.value = [];
            query.value = '';
          }}
          label={words.showAll}
        />
      </EmptyState>
    );
  return <EmptyState icon={icons.Inbox} title={words.noneTitle} lead={words.none} />;
}

/** Downloads a file, or copies any other item. */
export function takeOf(item: ItemRow): Entry {
  if (item.file !== null) return { label: words.download, icon: icons.Download, onSelect: () => void download(item) };
  const label = item.type === 'password' ? words.copySecret : text.kit.copy;
  return { label, icon: icons.Copy, onSelect: () => void copyItem(item) };
}

/** The menu entries of an item. */
export function entriesOf(item: ItemRow): readonly MenuEntry[] {
  const changes = [
    { label: words.edit, icon: icons.Pencil, onSelect: () => edit(item) },
    { label: words.move, icon: icons.FolderInput, onSelect: () => askMove(item) },
    null,
    { label: words.remove, icon: icons.Trash2, danger: true, onSelect: () => void remove(item.id) },
  ];
  return [
    takeOf(item),
    ...(item.href === null ? [] : [{ label: words.open, icon: icons.ExternalLink, href: item.href }]),
    ...(isRevoked.value ? [] : changes),
  ];
}

/** Chooses another bin for an item. */
export const askMove = (item: ItemRow): void => void openDialog((dialog) => <MoveDialog {...dialog} item={item} />);

function MoveDialog({ item, onClose }: Closable & { item: ItemRow }) {
  const moveTo = (binId: string): void => void move(item, binId);
  const create = (): void => {
    onClose();
    openDialog((dialog) => <BinDialog {...dialog} onMade={moveTo} />);
  };
  return (
    <Dialog
      title={words.moveTitle}
      onClose={onClose}
      actions={<Button icon={icons.Plus} onClick={create} label={text.bins.create} />}
    >
      <ul class="bin-choice">
        {(bins.value ?? []).map((bin) => (
          <li key={bin.id}>
            <button
              type="button"
              class="nav-link line grow"
              aria-current={bin.id === item.binId ? 'true' : undefined}
              onClick={() => {
                onClose();
                moveTo(bin.id);
              }}
            >
              <BinSign emoji={bin.emoji} />
              <bdi class="grow clip">{binName(bin.id)}</bdi>
              {bin.id === item.binId && <icons.Check />}
            </button>
          </li>
        ))}
      </ul>
    </Dialog>
  );
}

interface RowProps {
  readonly item: ItemRow;
  /** The item is open beside the list. */
  readonly open: boolean;
  /** The one row that Tab reaches; keys move from it to the others. */
  readonly reachable: boolean;
}

/** One item of the list. */
function Row({ item, open, reachable }: RowProps) {
  if (item.removeAt !== null) return <RemovedRow item={item} at={item.removeAt} />;
  const Sign = KIND_ICONS[item.type];
  const size = item.file?.size ?? null;
  return (
    <div class={`row${open ? ' open' : ''}`}>
      <a
        class="row-open line grow"
        href={hashOf({ binId: binId.value, itemId: item.id })}
        data-id={item.id}
        tabIndex={reachable ? 0 : -1}
        aria-current={open ? 'true' : undefined}
        onClick={follows(() => openItem(item.id))}
      >
        <span class="glyph row-kind">
          <Sign />
          <span class="sr">{words.kind[item.type]}</span>
        </span>
        <span class="row-words grow">
          <OneLine value={item.title} class="row-title" />
          <span class="row-detail small quiet">
            {item.detail !== '' && item.file === null && <OneLine value={item.detail} />}
            {size !== null && <span class="row-size numbers">{text.size(size)}</span>}
            <span class="row-when-below">
              <When at={item.ts} />
            </span>
          </span>
        </span>
        <span class="row-when small quiet">
          {item.pending ? (
            <span class="pending" title={words.pending}>
              <icons.Clock />
              <span class="sr">{words.pending}</span>
            </span>
          ) : (
            <span class="row-when-beside">
              <When at={item.ts} />
            </span>
          )}
        </span>
      </a>
      <span class="row-acts">
        <RowAct item={item} tabIndex={reachable ? 0 : -1} />
        <Menu label={words.more(item.title)} entries={entriesOf(item)} tabIndex={reachable ? 0 : -1} />
      </span>
    </div>
  );
}

/** The most likely action on an item: open, download or copy. */
function RowAct({ item, tabIndex }: { item: ItemRow; tabIndex: number }) {
  if (item.href !== null) {
    const opens = { label: words.open, name: `${words.open}: ${item.title}`, href: item.href, external: true };
    return <Button kind="icon" icon={icons.ExternalLink} {...opens} tabIndex={tabIndex} />;
  }
  const { label, icon, onSelect } = takeOf(item);
  return <Button kind="icon" icon={icon} label={`${label}: ${item.title}`} tabIndex={tabIndex} onClick={onSelect} />;
}

function RemovedRow({ item, at }: { item: ItemRow; at: number }) {
  return (
    <div class="row removed">
      <span class="glyph row-kind">
        <icons.Trash2 />
      </span>
      <span class="row-words grow">
        <OneLine value={item.title} class="row-title" />
        <span class="row-detail small quiet">
          <SecondsTo at={at}>{words.removed}</SecondsTo>
        </span>
      </span>
      <Button
        kind="quiet"
        icon={icons.Undo2}
        name={`${words.undo}: ${item.title}`}
        onClick={() => void undoRemove(item.id)}
        label={words.undo}
      />
    </div>
  );
}
