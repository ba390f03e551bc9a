/** Copying to the clipboard; secrets are cleared from it after a time. */
import { signal } from '@preact/signals';
import type { ItemRow } from '../link/messages.js';
import { toast } from './kit.js';
import { call, problemOf } from './link.js';
import { text } from './strings.js';

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
  forgetSecret();
  try {
    await write(value);
    if (secret) {
      clearsAt.value = Date.now() + SECRET_MS;
      timer = setTimeout(() => void clearClipboard(), SECRET_MS);
    } else toast(text.kit.copied);
  } catch (error) {
    toast(text.list.notCopied(problemOf(error)));
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
