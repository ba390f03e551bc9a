/**
 * The place in the app: the part of the address after `#`, which never reaches the server. And the state that
 * components share, of which nothing is stored.
 */
import { computed, signal } from '@preact/signals';
import type { ContentType } from '../../protocol/item.js';

const PAGES = ['devices', 'settings', 'trust'] as const;
type Page = (typeof PAGES)[number];

export interface Place {
  /** Null: the list. */
  readonly page: Page | null;
  /** The bin of the list; null: all. */
  readonly binId: string | null;
  /** The item that is open beside or over the list. */
  readonly itemId: string | null;
}

const decoded = (part: string | undefined): string | null => {
  try {
    return part === undefined || part === '' ? null : decodeURIComponent(part);
  } catch {
    // A malformed address: treated as if the part were absent.
    return null;
  }
};

/** Reads `#/devices`, `#/bin/ID`, `#/item/ID`, `#/bin/ID/item/ID`; anything else is the list of all. */
export function readPlace(hash: string): Place {
  const page = PAGES.find((one) => hash === `#/${one}`) ?? null;
  const [, bin, item] = /^#(?:\/bin\/([^/]+))?(?:\/item\/([^/]+))?\/?$/.exec(hash) ?? [];
  return { page, binId: decoded(bin), itemId: decoded(item) };
}

/** The address of a place. */
export function hashOf({ page = null, binId = null, itemId = null }: Partial<Place>): string {
  const part = (name: string, id: string | null): string => (id === null ? '' : `/${name}/${encodeURIComponent(id)}`);
  return page === null ? `#${part('bin', binId)}${part('item', itemId)}` : `#/${page}`;
}

const place = signal<Place>({ page: null, binId: null, itemId: null });
export const page = computed(() => place.value.page);
export const binId = computed(() => place.value.binId);
export const itemId = computed(() => place.value.itemId);

/** `history.state` of an entry that this app added when opening something: going back closes that. */
const OPENED = 'opened';

const read = (): void => void (place.value = readPlace(location.hash));

/** Starts following the address. */
export function startRouting(): void {
  addEventListener('popstate', read);
  addEventListener('hashchange', read);
  read();
}

/** Goes to a place; `replace`: it replaces the current history entry. */
export function go(to: Partial<Place>, replace = false): void {
  if (replace) history.replaceState(history.state, '', hashOf(to));
  else history.pushState(OPENED, '', hashOf(to));
  read();
}

/** Opens an item. An item opened from another one replaces it, so one step back leads to the list. */
export const openItem = (id: string): void => go({ binId: binId.value, itemId: id }, itemId.value !== null);

/** One step up: from an item to its list, from a page to the list. */
export function leave(): void {
  if (history.state === OPENED) history.back();
  else go({ binId: binId.value }, true);
}

/** Kinds that the list is filtered by; none: all. */
export const filters = signal<readonly ContentType[]>([]);
/** The search text. */
export const query = signal('');
/** The search field is shown even on a narrow screen. */
export const searching = signal(false);

/** Targets of keyboard shortcuts; set by the component that implements them. */
export const moveInList: { current: (by: number) => void } = { current: () => undefined };
export const focusList: { current: () => void } = { current: () => undefined };
export const focusSearch: { current: () => void } = { current: () => undefined };
export const focusComposer: { current: () => void } = { current: () => undefined };
