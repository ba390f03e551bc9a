/**
 * Actions on items, for lists, menus and the keyboard; and copying, where secrets are cleared from the clipboard after
 * a time.
 */
import { signal } from '@preact/signals';
import { DEFAULT_BIN } from '../../protocol/limits.js';
import type { ItemRow } from '../link/messages.js';
import { dropOffers, toast } from './kit.js';
import { bins, call, problemOf } from './link.js';
import { openItem } from './route.js';
import * as text from './strings.js';

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
export function remove(id: string): Promise<boolean> {
  // Else the message of a move just before would offer another "Undo" beside that of the row.
  dropOffers(id);
  return attempt(call('remove', id));
}
export const undoRemove = (id: string): Promise<boolean> => attempt(call('undoRemove', id));

/** Moves at once, and offers to undo it. */
export async function move(item: Pick<ItemRow, 'id' | 'binId'>, binId: string): Promise<void> {
  if (item.binId === binId || !(await attempt(call('move', { id: item.id, binId })))) return;
  toast(text.list.moved(binName(binId)), {
    of: item.id,
    label: text.list.undo,
    run: () => void attempt(call('move', { id: item.id, binId: item.binId })),
  });
}

/** A bin's name as shown; a generic name if the bin has no readable one. */
export function binName(id: string): string {
  const name = bins.value?.find((one) => one.id === id)?.name ?? '';
  if (name !== '') return text.safeText(name);
  return id === DEFAULT_BIN ? text.list.defaultBin : text.list.namelessBin;
}

/** The item whose view starts with its fields being edited. */
export const toEdit = signal<string | null>(null);

/** Opens an item for editing. */
export function edit({ id }: Pick<ItemRow, 'id'>): void {
  toEdit.value = id;
  openItem(id);
}

/** Time that a secret stays on the clipboard. */
const SECRET_MS = 45_000;

/** When the copied secret is cleared from the clipboard; null: none was copied. */
export const clearsAt = signal<number | null>(null);
let timer: ReturnType<typeof setTimeout> | undefined;

/** Copies a text, or one that is still being fetched, without losing the user activation of the click. */
async function write(value: string | Promise<string>): Promise<void> {
  if (typeof value === 'string') return navigator.clipboard.writeText(value);
  if (typeof ClipboardItem === 'undefined') return write(await value);
  const blob = value.then((whole) => new Blob([whole], { type: 'text/plain' }));
  await navigator.clipboard.write([new ClipboardItem({ 'text/plain': blob })]);
}

/** Copies, and shows a message. A secret is cleared after `SECRET_MS`. */
export async function copy(value: string | Promise<string>, secret: boolean): Promise<void> {
  try {
    await write(value);
    // Only now: of a copy that fails, the clipboard still has the secret before it.
    forgetSecret();
    if (secret) {
      clearsAt.value = Date.now() + SECRET_MS;
      timer = setTimeout(() => void clearClipboard(), SECRET_MS);
    } else toast(text.kit.copied);
  } catch (error) {
    // The browser's own refusals have no code that says more.
    toast(error instanceof DOMException ? text.kit.notCopied : text.list.notCopied(problemOf(error)));
  }
}

/** Copies an item's text; for a password its secret, which the page fetches only now. */
export const copyItem = (item: Pick<ItemRow, 'id' | 'type' | 'copy'>): Promise<void> =>
  copy(item.copy ?? call('copyText', item.id), item.type === 'password');

function forgetSecret(): void {
  clearTimeout(timer);
  clearsAt.value = null;
}

/**
 * Clears the clipboard, even if something else has replaced the secret: reading it first would need the user's
 * permission. A page in the background may not write to it, and clears it when it has the focus again.
 */
export async function clearClipboard(): Promise<void> {
  if (clearsAt.value === null) return;
  if (!document.hasFocus()) {
    addEventListener('focus', () => void clearClipboard(), { once: true });
    return;
  }
  try {
    await navigator.clipboard.writeText('');
    forgetSecret();
    toast(text.list.cleared);
  } catch {
    // Refused without user activation: repeated at the next click or touch.
    addEventListener('pointerdown', () => void clearClipboard(), { once: true });
  }
}
