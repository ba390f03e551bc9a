/** What a person does with items, from a list, a menu or the keyboard. */
import { signal } from '@preact/signals';
import { DEFAULT_BIN } from '../../protocol/limits.js';
import type { ItemRow } from '../link/messages.js';
import { honest } from './honest.js';
import { toast } from './kit.js';
import { bins, call, problemOf } from './link.js';
import { openItem } from './route.js';
import { text } from './strings.js';

/** Does something of the engine, and says it where that fails. True where it was done. */
export async function attempt(work: Promise<unknown>): Promise<boolean> {
  try {
    await work;
    return true;
  } catch (error) {
    toast(text.problem(problemOf(error)));
    return false;
  }
}

/** Deletes in some seconds; the row and the view say so and offer the way back. */
export const remove = (id: string): Promise<boolean> => attempt(call('remove', { ids: [id] }));
export const keep = (id: string): Promise<boolean> => attempt(call('keep', { ids: [id] }));

/** Moves at once, and offers the way back. */
export async function move(item: Pick<ItemRow, 'id' | 'binId'>, binId: string): Promise<void> {
  if (item.binId === binId || !(await attempt(call('move', { ids: [item.id], binId })))) return;
  toast(text.list.moved(binName(binId)), {
    label: text.list.undo,
    run: () => void attempt(call('move', { ids: [item.id], binId: item.binId })),
  });
}

/** A bin's name as it is shown; a bin without a readable one is named by what it is. */
export function binName(id: string): string {
  const name = bins.value?.find((one) => one.id === id)?.name ?? '';
  if (name !== '') return honest(name);
  return id === DEFAULT_BIN ? text.list.defaultBin : text.list.namelessBin;
}

/** An item whose fields are to be edited as soon as its view is there. */
export const toEdit = signal<string | null>(null);

/** Opens an item with its fields. */
export function edit({ id }: Pick<ItemRow, 'id'>): void {
  toEdit.value = id;
  openItem(id);
}

/** An item that a person is choosing a bin for. */
export const toMove = signal<ItemRow | null>(null);
