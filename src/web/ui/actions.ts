/** Actions on items, for lists, menus and the keyboard. */
import { signal } from '@preact/signals';
import { DEFAULT_BIN } from '../../protocol/limits.js';
import type { ItemRow } from '../link/messages.js';
import { honest } from './honest.js';
import { toast } from './kit.js';
import { bins, call, problemOf } from './link.js';
import { openItem } from './route.js';
import { text } from './strings.js';

/** Awaits a call of the engine, and shows a toast if it fails. True if it succeeded. */
export async function attempt(work: Promise<unknown>): Promise<boolean> {
  try {
    await work;
    return true;
  } catch (error) {
    toast(text.problem(problemOf(error)));
    return false;
  }
}

/** Deletes in some seconds; until then the row and the view offer to undo it. */
export const remove = (id: string): Promise<boolean> => attempt(call('remove', { ids: [id] }));
export const keep = (id: string): Promise<boolean> => attempt(call('keep', { ids: [id] }));

/** Moves at once, and offers to undo it. */
export async function move(item: Pick<ItemRow, 'id' | 'binId'>, binId: string): Promise<void> {
  if (item.binId === binId || !(await attempt(call('move', { ids: [item.id], binId })))) return;
  toast(text.list.moved(binName(binId)), {
    label: text.list.undo,
    run: () => void attempt(call('move', { ids: [item.id], binId: item.binId })),
  });
}

/** A bin's name as shown; a generic name if the bin has no readable one. */
export function binName(id: string): string {
  const name = bins.value?.find((one) => one.id === id)?.name ?? '';
  if (name !== '') return honest(name);
  return id === DEFAULT_BIN ? text.list.defaultBin : text.list.namelessBin;
}

/** The item whose view starts with its fields being edited. */
export const toEdit = signal<string | null>(null);

/** Opens an item for editing. */
export function edit({ id }: Pick<ItemRow, 'id'>): void {
  toEdit.value = id;
  openItem(id);
}

/** The item that the user is choosing a bin for. */
export const toMove = signal<ItemRow | null>(null);
