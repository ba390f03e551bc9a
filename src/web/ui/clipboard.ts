/** The clipboard: what is copied, and secrets that leave it again. */
import { signal } from '@preact/signals';
import type { ItemRow } from '../link/messages.js';
import { toast } from './kit.js';
import { call, problemOf } from './link.js';
import { text } from './strings.js';

/** Time that a secret stays on the clipboard. */
const SECRET_MS = 45_000;

/** When the secret that was copied is taken off the clipboard; null: none is there. */
export const clearsAt = signal<number | null>(null);
let timer: ReturnType<typeof setTimeout> | undefined;

/** Copies a text that is known, or one that is fetched while the person's click still counts. */
async function write(value: string | Promise<string>): Promise<void> {
  if (typeof value === 'string') return navigator.clipboard.writeText(value);
  if (typeof ClipboardItem === 'undefined') return write(await value);
  const blob = value.then((whole) => new Blob([whole], { type: 'text/plain' }));
  await navigator.clipboard.write([new ClipboardItem({ 'text/plain': blob })]);
}

/** Copies, and says so. A secret is taken off the clipboard after `SECRET_MS`. */
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

/** Copies what an item gives; of a password its secret, which the page does not learn before. */
export const copyItem = (item: Pick<ItemRow, 'id' | 'type' | 'copy'>): Promise<void> =>
  copy(item.copy ?? call('copyText', item.id), item.type === 'password');

function forgetSecret(): void {
  clearTimeout(timer);
  clearsAt.value = null;
}

/**
 * Takes the secret off the clipboard, or whatever replaced it there: to look first, the browser would ask the person. A
 * page in the background may not write to it, and does it when it is looked at again.
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
    // Refused without a person's touch: with the next one.
    addEventListener('pointerdown', () => void clearClipboard(), { once: true });
  }
}
