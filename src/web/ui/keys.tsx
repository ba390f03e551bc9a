/** Keyboard shortcuts of the whole page. */
import type { ItemRow } from '../link/messages.js';
import { edit, remove, copyItem } from './actions.js';
import { Dialog, dialogs, openDialog, useListening, type Closable } from './kit.js';
import { isRevoked, link } from './link.js';
import { askMove } from './list.js';
import { itemId, leave, page, focusComposer, focusSearch, moveInList } from './route.js';
import * as text from './strings.js';

const isTyping = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));

/** The item that a shortcut applies to: the row with the focus, else the open item. */
const currentId = (): string | null =>
  document.activeElement?.closest('.row')?.querySelector<HTMLElement>('.row-open')?.dataset['id'] ?? itemId.value;

/** Runs `act` with the current item's newest state, requested from the engine once. */
function withCurrent(act: (item: ItemRow) => void): void {
  const id = currentId();
  if (id === null) return;
  const end = link().watch('item', { id }, (item) => {
    end();
    if (item !== null) act(item);
  });
}

/** As `withCurrent`, for what changes the item. */
function changing(act: (item: ItemRow) => void): void {
  if (!isRevoked.value) withCurrent(act);
}

const open = (item: ItemRow): void => {
  if (item.href !== null) window.open(item.href, '_blank', 'noopener,noreferrer');
};

const KEYS: Readonly<Record<string, () => void>> = {
  '/': () => focusSearch.current(),
  n: () => focusComposer.current(),
  j: () => moveInList.current(1),
  k: () => moveInList.current(-1),
  ArrowDown: () => moveInList.current(1),
  ArrowUp: () => moveInList.current(-1),
  c: () => withCurrent((item) => item.file === null && void copyItem(item)),
  o: () => withCurrent(open),
  e: () => changing(edit),
  // The key may have been pressed twice before the first dialog is there.
  m: () => changing((item) => dialogs.peek().length === 0 && askMove(item)),
  Delete: () => changing((item) => void remove(item.id)),
  '?': () => openDialog(KeysDialog),
  Escape: () => (itemId.value !== null || page.value !== null) && leave(),
};

/** Handles shortcuts while mounted, except in a text field or while a dialog is open. */
export function useKeys(): void {
  useListening({
    keydown: (event) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
      if (document.querySelector('dialog[open], [popover]:popover-open') !== null) return;
      const act = Object.hasOwn(KEYS, event.key) ? KEYS[event.key] : undefined;
      // Arrow keys belong to the focused element, if there is one.
      const elsewhere = event.key.startsWith('Arrow') && document.activeElement !== document.body;
      if (act === undefined || elsewhere || (page.value !== null && event.key !== 'Escape' && event.key !== '?'))
        return;
      event.preventDefault();
      act();
    },
  });
}

/** Lists the shortcuts. */
export function KeysDialog({ onClose }: Closable) {
  return (
    <Dialog title={text.keys.title} onClose={onClose}>
      <dl class="keys">
        {text.keys.rows.map(([key, what]) => (
          <div key={key}>
            <dt>
              {key.split(' ').map((part) => (
                <kbd key={part}>{part}</kbd>
              ))}
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
