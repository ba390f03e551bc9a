/** What a person has set on the page, shared by its parts. Nothing of it is kept. */
import { signal } from '@preact/signals';
import type { ContentType } from '../../protocol/item.js';

/** Kinds that the list is narrowed to; none: all. */
export const filters = signal<readonly ContentType[]>([]);
/** What is searched for. */
export const query = signal('');
/** The search is shown also where there is little room. */
export const searching = signal(false);
/** The side bar is shown over the list, where there is no room beside it. */
export const drawer = signal(false);
/** The table of keys is shown. */
export const showingKeys = signal(false);

/** What the keyboard reaches from anywhere; set by the part that has it. */
export const moveInList: { current: (by: number) => void } = { current: () => undefined };
export const focusList: { current: () => void } = { current: () => undefined };
export const focusSearch: { current: () => void } = { current: () => undefined };
export const focusComposer: { current: () => void } = { current: () => undefined };
/** Takes files, as dropped or pasted anywhere. */
export const takeFiles: { current: (files: readonly File[], binId?: string) => void } = { current: () => undefined };
