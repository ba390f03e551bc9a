/** A button that opens a list of things to do. */
import type { ComponentChildren, JSX } from 'preact';
import { useId, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { Check, EllipsisVertical, type Icon } from './icons.js';

/** One entry of a menu; null: a line between groups. */
export type MenuEntry = {
  readonly label: string;
  readonly icon?: Icon;
  readonly danger?: boolean;
  /** An address outside of this app. */
  readonly href?: string;
  /** Set: one of several, this one chosen or not. */
  readonly checked?: boolean;
  readonly onSelect?: () => void;
} | null;

interface MenuProps {
  /** What the button is for. */
  readonly label: string;
  readonly entries: readonly MenuEntry[];
  readonly class?: string;
  /** Instead of an icon alone. */
  readonly children?: ComponentChildren;
  readonly tabIndex?: number;
}

/** Puts a popover under its button, or above where there is no room below; by script, as anchors are too new. */
function place(button: HTMLElement, menu: HTMLElement): void {
  const from = button.getBoundingClientRect();
  const size = menu.getBoundingClientRect();
  const rightToLeft = getComputedStyle(button).direction === 'rtl';
  // Under an icon it ends where the icon does, under words it begins with them.
  const left = rightToLeft !== button.classList.contains('chip') ? from.left : from.right - size.width;
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

/** Shows the menu while it is open, with the focus in it. */
function useMenu() {
  const [open, setOpen] = useState(false);
  const menu = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  useLayoutEffect(() => {
    const [element, from] = [menu.current, button.current];
    if (!open || element === null || from === null) return undefined;
    const onToggle = (event: Event): void => {
      if ((event as ToggleEvent).newState === 'closed') setOpen(false);
    };
    const leave = (): void => element.hidePopover();
    const listening = new AbortController();
    const untilAborted = { signal: listening.signal };
    element.addEventListener('toggle', onToggle, untilAborted);
    addEventListener('scroll', leave, { capture: true, passive: true, ...untilAborted });
    element.showPopover();
    place(from, element);
    element.querySelector<HTMLElement>('[role^=menuitem]')?.focus({ preventScroll: true });
    return () => listening.abort();
  }, [open]);
  return { open, setOpen, menu, button };
}

/** A button that opens a menu. Its entries are rendered while it is open. */
export function Menu({ label, entries, class: name, children, tabIndex }: MenuProps): JSX.Element {
  const { open, setOpen, menu, button } = useMenu();
  const id = useId();
  const choose = (entry: NonNullable<MenuEntry>): void => {
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

function MenuItem({
  entry,
  onChoose,
}: {
  entry: NonNullable<MenuEntry>;
  onChoose: (entry: NonNullable<MenuEntry>) => void;
}) {
  const { icon: Sign, checked } = entry;
  const shared = {
    role: checked === undefined ? ('menuitem' as const) : ('menuitemradio' as const),
    class: entry.danger === true ? 'danger' : undefined,
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
