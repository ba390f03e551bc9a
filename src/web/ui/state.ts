/** State of the page that its components share. None of it is stored. */
import { signal } from '@preact/signals';
import type { ContentType } from '../../protocol/item.js';

/** Kinds that the list is filtered by; none: all. */
export const filters = signal<readonly ContentType[]>([]);
/** The search text. */
export const query = signal('');
/** The search field is shown even on a narrow screen. */
export const searching = signal(false);
/** The side bar is shown over the list (`Drawer`). */
export const drawer = signal(false);
/** The table of keys is shown. */
export const showingKeys = signal(false);

/** Targets of keyboard shortcuts; set by the component that implements them. */
export const moveInList: { current: (by: number) => void } = { current: () => undefined };
export const focusList: { current: () => void } = { current: () => undefined };
export const focusSearch: { current: () => void } = { current: () => undefined };
export const focusComposer: { current: () => void } = { current: () => undefined };
/** Receives files dropped or pasted anywhere. */
export const takeFiles: { current: (files: readonly File[], binId?: string) => void } = { current: () => undefined };
