/** One item in the list. */
import { signal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import type { ItemRow } from '../link/messages.js';
import { edit, keep, remove, toMove } from './actions.js';
import { copyItem } from './clipboard.js';
import { Clock, Copy, Download, ExternalLink, FolderInput, Pencil, Trash2, Undo2 } from 'lucide-preact';
import { KIND_ICONS } from './kinds.js';
import { Button, OneLine, When } from './kit.js';
import { isRevoked } from './link.js';
import { Menu, type MenuEntry } from './menu.js';
import { hashOf, binId, openItem } from './route.js';
import { download } from './content.js';
import { text } from './strings.js';

const words = text.list;

/** The current time, updated twice a second while something counts down. */
const second = signal(Date.now());
let counting = 0;
let ticker: ReturnType<typeof setInterval> | undefined;

/** Seconds until a moment, counted down. */
export function SecondsTo({ at, children }: { at: number; children: (seconds: number) => string }) {
  useEffect(() => {
    second.value = Date.now();
    if (counting++ === 0) ticker = setInterval(() => (second.value = Date.now()), 500);
    return () => {
      if (--counting === 0) clearInterval(ticker);
    };
  }, []);
  return (
    <span class="numbers">
      {children(Math.max(0, Math.ceil((at - Math.min(Date.now(), second.value + 500)) / 1_000)))}
    </span>
  );
}

/** The label of copying an item. */
export const copyLabel = ({ type }: Pick<ItemRow, 'type'>): string =>
  type === 'password' ? words.copySecret : text.kit.copy;

/** The menu entries of an item. */
export function entriesOf(item: ItemRow): readonly MenuEntry[] {
  return [
    item.file === null
      ? { label: copyLabel(item), icon: Copy, onSelect: () => void copyItem(item) }
      : { label: words.download, icon: Download, onSelect: () => void download(item) },
    ...(item.href === null ? [] : [{ label: words.open, icon: ExternalLink, href: item.href }]),
    ...(isRevoked.value ? [] : changesOf(item)),
  ];
}

const changesOf = (item: ItemRow): readonly MenuEntry[] => [
  { label: words.edit, icon: Pencil, onSelect: () => edit(item) },
  { label: words.move, icon: FolderInput, onSelect: () => (toMove.value = item) },
  null,
  { label: words.remove, icon: Trash2, danger: true, onSelect: () => void remove(item.id) },
];

interface RowProps {
  readonly item: ItemRow;
  /** The item is open beside the list. */
  readonly open: boolean;
  /** The one row that Tab reaches; keys move from it to the others. */
  readonly reachable: boolean;
}

/** One item of the list. */
export function Row({ item, open, reachable }: RowProps) {
  if (item.removeAt !== null) return <RemovedRow item={item} at={item.removeAt} />;
  const Sign = KIND_ICONS[item.type];
  const size = item.file?.size ?? null;
  return (
    <div class={`row${open ? ' open' : ''}`}>
      <a
        class="row-open"
        href={hashOf({ binId: binId.value, itemId: item.id })}
        data-id={item.id}
        tabIndex={reachable ? 0 : -1}
        aria-current={open ? 'true' : undefined}
        onClick={(event) => {
          if (event.ctrlKey || event.metaKey || event.shiftKey) return;
          event.preventDefault();
          openItem(item.id);
        }}
      >
        <span class="glyph row-kind">
          <Sign />
          <span class="sr">{words.kind[item.type]}</span>
        </span>
        <span class="row-words">
          <OneLine value={item.title} class="row-title" />
          <span class="row-detail">
            {item.detail !== '' && item.file === null && <OneLine value={item.detail} />}
            {size !== null && <span class="row-size numbers">{text.size(size)}</span>}
            <span class="row-when-below">
              <When at={item.ts} />
            </span>
          </span>
        </span>
        <span class="row-when">
          {item.pending ? (
            <span class="pending" title={words.pending}>
              <Clock />
              <span class="sr">{words.pending}</span>
            </span>
          ) : (
            <span class="row-when-beside">
              <When at={item.ts} />
            </span>
          )}
        </span>
      </a>
      <span class="row-acts">
        <RowAct item={item} tabIndex={reachable ? 0 : -1} />
        <Menu label={words.more(item.title)} entries={entriesOf(item)} tabIndex={reachable ? 0 : -1} />
      </span>
    </div>
  );
}

/** The most likely action on an item: download, open or copy. */
function RowAct({ item, tabIndex }: { item: ItemRow; tabIndex: number }) {
  if (item.file !== null) {
    const label = `${words.download}: ${item.title}`;
    return <Button kind="icon" icon={Download} label={label} tabIndex={tabIndex} onClick={() => void download(item)} />;
  }
  if (item.href !== null)
    return (
      <a
        class="button icon"
        href={item.href}
        target="_blank"
        rel="noopener noreferrer"
        aria-label={`${words.open}: ${item.title}`}
        title={words.open}
        tabIndex={tabIndex}
      >
        <ExternalLink />
      </a>
    );
  return (
    <Button
      kind="icon"
      icon={Copy}
      label={`${copyLabel(item)}: ${item.title}`}
      tabIndex={tabIndex}
      onClick={() => void copyItem(item)}
    />
  );
}

function RemovedRow({ item, at }: { item: ItemRow; at: number }) {
  return (
    <div class="row removed">
      <span class="glyph row-kind">
        <Trash2 />
      </span>
      <span class="row-words">
        <OneLine value={item.title} class="row-title" />
        <span class="row-detail">
          <SecondsTo at={at}>{words.removed}</SecondsTo>
        </span>
      </span>
      <Button kind="quiet" icon={Undo2} label={`${words.undo}: ${item.title}`} onClick={() => void keep(item.id)}>
        {words.undo}
      </Button>
    </div>
  );
}
