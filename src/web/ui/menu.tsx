/** A button that opens a menu. */
import type { ComponentChildren } from 'preact';
import { useId, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { Check, EllipsisVertical, type LucideIcon } from 'lucide-preact';

export interface Entry {
  readonly label: string;
  readonly icon?: LucideIcon;
  readonly danger?: boolean;
  /** An address outside of this app. */
  readonly href?: string;
  /** Set: the entry is one of several choices; true: the chosen one. */
  readonly checked?: boolean;
  readonly onSelect?: () => void;
}

/** One entry of a menu; null: a separator between groups. */
export type MenuEntry = Entry | null;

interface MenuProps {
  /** Accessible name of the button. */
  readonly label: string;
  readonly entries: readonly MenuEntry[];
  readonly class?: string;
  /** Content of the button instead of the default icon. */
  readonly children?: ComponentChildren;
  readonly tabIndex?: number;
}

/** Places a popover below its button, or above if there is no room. By script, as CSS anchors are too new. */
function place(button: HTMLElement, menu: HTMLElement): void {
  const from = button.getBoundingClientRect();
  const size = menu.getBoundingClientRect();
  // Aligned with the end of an icon button, or with the start of a text button.
  const left = button.classList.contains('chip') ? from.left : from.right - size.width;
  const below = from.bottom + 4;
  const top = below + size.height + 8 <= innerHeight ? below : Math.max(8, from.top - size.height - 4);
  menu.style.setProperty('--menu-top', `${top}px`);
  menu.style.setProperty('--menu-left', `${Math.max(8, Math.min(left, innerWidth - size.width - 8))}px`);
}

/** Moves the focus among the entries of a menu by the keyboard. */
function moveInMenu(event: KeyboardEvent, menu: HTMLElement): void {
  const entries = [...menu.querySelectorAll<HTMLElement>('[role^=menuitem]')];
  const at = entries.findIndex((entry) => entry === document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: entries.length - 1 }[event.key];
  if (event.key === 'Tab') menu.hidePopover();
  event.stopPropagation();
  if (to === undefined) return;
  event.preventDefault();
  entries[(to + entries.length) % entries.length]?.focus();
}

/** Opens and closes the menu, and moves the focus into it. */
function useMenu() {
  const [open, setOpen] = useState(false);
  const menu = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  useLayoutEffect(() => {
    const [element, from] = [menu.current, button.current];
    if (!open || element === null || from === null) return undefined;
    element.showPopover();
    place(from, element);
    element.querySelector<HTMLElement>('[role^=menuitem]')?.focus({ preventScroll: true });
    const listening = new AbortController();
    const { signal } = listening;
    addEventListener('scroll', () => element.hidePopover(), { capture: true, passive: true, signal });
    // Not closed: on a phone the keyboard leaves when the focus moves into the menu, which changes the window's size.
    addEventListener('resize', () => place(from, element), { signal });
    return () => listening.abort();
  }, [open]);
  return { open, setOpen, menu, button };
}

/** The button and its menu. The entries are rendered only while it is open. */
export function Menu({ label, entries, class: name, children, tabIndex }: MenuProps) {
  const { open, setOpen, menu, button } = useMenu();
  const id = useId();
  const choose = (entry: Entry): void => {
    menu.current?.hidePopover();
    button.current?.focus();
    entry.onSelect?.();
  };
  return (
    <>
      <button
        ref={button}
        type="button"
        class={name ?? 'button icon'}
        aria-label={label}
        title={children === undefined ? label : undefined}
        aria-haspopup="menu"
        aria-expanded={open}
        aria-controls={open ? id : undefined}
        tabIndex={tabIndex}
        onClick={() => setOpen(!open)}
      >
        {children ?? <EllipsisVertical />}
      </button>
      {open && (
        <div
          ref={menu}
          id={id}
          class="menu"
          popover="auto"
          role="menu"
          tabIndex={-1}
          aria-label={label}
          onToggle={(event) => event.newState === 'closed' && setOpen(false)}
          onKeyDown={(event) => moveInMenu(event, event.currentTarget)}
        >
          {entries.map((entry, at) =>
            entry === null ? <hr key={at} /> : <MenuItem key={at} entry={entry} onChoose={choose} />,
          )}
        </div>
      )}
    </>
  );
}

function MenuItem({ entry, onChoose }: { entry: Entry; onChoose: (entry: Entry) => void }) {
  const { icon: Sign, checked } = entry;
  const shared = {
    role: checked === undefined ? ('menuitem' as const) : ('menuitemradio' as const),
    class: entry.danger === true ? 'line danger' : 'line',
    tabIndex: -1,
    'aria-checked': checked,
    onClick: () => onChoose(entry),
  };
  const inside = (
    <>
      {Sign !== undefined && <Sign />}
      <span class="grow">{entry.label}</span>
      {checked === true && <Check />}
    </>
  );
  if (entry.href === undefined)
    return (
      <button type="button" {...shared}>
        {inside}
      </button>
    );
  return (
    <a href={entry.href} target="_blank" rel="noopener noreferrer" {...shared}>
      {inside}
    </a>
  );
}
