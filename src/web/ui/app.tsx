/** The whole page: the phase of the engine and the address determine which screen is shown. */
import { signal, useSignal } from '@preact/signals';
import { RefreshCw, Inbox, MenuIcon, Search, X } from 'lucide-preact';
import { useEffect, useLayoutEffect, useMemo, useRef } from 'preact/hooks';
import { CONTENT_TYPES, type ContentType } from '../../protocol/item.js';
import type { Phase } from '../link/messages.js';
import { toEdit, clearClipboard, clearsAt, binName } from './actions.js';
import { BeginScreen } from './begin.js';
import { Composer, forgetTyped } from './composer.js';
import { DropZone } from './drop.js';
import { KIND_ICONS } from './fields.js';
import { useKeys } from './keys.js';
import {
  Button,
  closeDialogs,
  Dialogs,
  EmptyState,
  SecondsTo,
  Toasts,
  later,
  openDialog,
  useListening,
} from './kit.js';
import { call, isOut, isRevoked, phase, shared } from './link.js';
import { List } from './list.js';
import { LockScreen } from './lock.js';
import { Notices, Uploads } from './notices.js';
import { itemId, page, binId, focusList, query, filters, focusSearch, searching } from './route.js';
import { Drawer, Sidebar, Status } from './sidebar.js';
import * as text from './strings.js';
import { StoreFailed } from './unable.js';
import { drafts } from './unsaved.js';

const words = text.list;

/** The pages beside the list. */
const Page = later(async () => (await import('./pages.js')).Page);

/** The worker that holds the device has died in this tab. */
export const engineGone = signal(false);

/** The screen of the phase, and what is shown over all screens. */
export function App() {
  return (
    <>
      {engineGone.value ? <EngineGone /> : <Screens />}
      <SharedWaiting />
      <Toasts />
    </>
  );
}

/** Says that shares are waiting while no device is open to put them. */
function SharedWaiting() {
  const count = shared.value?.count ?? 0;
  if (count === 0 || phase.value?.phase === 'open') return null;
  return (
    <p class="screen-foot small quiet" role="status">
      {text.frame.sharedWaiting(count)}
    </p>
  );
}

/** By the phase. */
const SCREENS = {
  // Too short for a progress indicator, which would only flicker.
  starting: () => <main class="screen" aria-busy="true" />,
  empty: BeginScreen,
  locked: LockScreen,
  failed: StoreFailed,
  revoked: Open,
  open: Open,
} as const satisfies Readonly<Record<Phase['phase'], unknown>>;

/**
 * Once locked or signed out, the page keeps nothing of what was shown or typed. It does while another tab takes over:
 * the device is open again at once.
 */
function forgetShown(): void {
  forgetTyped();
  toEdit.value = null;
  query.value = '';
  filters.value = [];
  searching.value = false;
  drafts.clear();
}

function Screens() {
  const now = phase.value?.phase ?? 'starting';
  const out = isOut.value;
  useLayoutEffect(() => {
    if (out) forgetShown();
  }, [out]);
  // Closed before the next screen is there, to which a dialog would not leave the focus.
  useMemo(closeDialogs, [now]);
  const Shown = SCREENS[now];
  return (
    <>
      <Shown />
      <Dialogs />
    </>
  );
}

/** Wait after the list is shown before the pages beside it are loaded. */
const PAGES_AFTER_MS = 2_000;

/** Least time between reports of the user's activity to the engine. */
const TOUCH_MS = 20_000;

/** Reports the user's activity to the engine, which postpones the lock. */
function useTouch(): void {
  const last = useRef(0);
  const touch = (): void => {
    if (Date.now() - last.current < TOUCH_MS) return;
    last.current = Date.now();
    // The next activity is reported again.
    call('touched').catch(() => undefined);
  };
  useListening({ pointerdown: touch, keydown: touch, wheel: touch, touchmove: touch }, { passive: true });
  useEffect(touch, []);
}

/**
 * Has the engine check its connection, or shorten its wait, when the system reports a change of the network, and when
 * a page that the system may have suspended is shown again.
 */
function useReconnect(): void {
  // Without an open device there is nothing to reconnect.
  const reconnect = (): void => void call('reconnect').catch(() => undefined);
  const visible = (): void => {
    if (document.visibilityState === 'visible') reconnect();
  };
  useListening({ online: reconnect, offline: reconnect, visibilitychange: visible });
}

function Open() {
  useKeys();
  useTouch();
  useReconnect();
  useEffect(() => void navigator.storage?.persist?.().catch(() => false), []);
  // So that the pages open at once, also without a network.
  useEffect(() => {
    const timer = setTimeout(Page.ahead, PAGES_AFTER_MS);
    return () => clearTimeout(timer);
  }, []);
  return (
    <div class={`app${itemId.value === null ? '' : ' with-item'}`}>
      {page.value === null && (
        <button type="button" class="button skip" onClick={() => focusList.current()}>
          {text.frame.skip}
        </button>
      )}
      <aside class="side">
        <Sidebar />
      </aside>
      <main class="main">
        {isRevoked.value && <Page page="revoked" />}
        {page.value === null || isRevoked.value ? <Browse /> : <Page page={page.value} />}
      </main>
      {!isRevoked.value && <DropZone />}
      {clearsAt.value !== null && <ClipboardBar at={clearsAt.value} />}
    </div>
  );
}

/** Says that a secret is on the clipboard, and for how long. */
function ClipboardBar({ at }: { at: number }) {
  return (
    <div class="toasts stack tight">
      <div class="toast line">
        <span class="grow">
          <SecondsTo at={at}>{text.list.secretCopied}</SecondsTo>
        </span>
        <Button onClick={() => void clearClipboard()} label={text.list.clearNow} />
      </div>
    </div>
  );
}

function EngineGone() {
  return (
    <main class="screen">
      <EmptyState icon={RefreshCw} title={text.frame.engineGone} lead={text.frame.engineGoneHow}>
        <Button kind="primary" onClick={() => location.reload()} label={text.frame.reload} />
      </EmptyState>
    </main>
  );
}

/** Time without a key press after which the search begins. */
const SEARCH_REST_MS = 80;

/** Not part of the first view; loaded right after it. */
const ItemView = later(async () => (await import('./item.js')).ItemView);

/** The main screen. */
function Browse() {
  useEffect(ItemView.ahead, []);
  // After another screen or a closed item the list takes the focus; a page just loaded focuses nothing.
  useLayoutEffect(() => {
    const lost = document.activeElement === document.body && navigator.userActivation.hasBeenActive;
    if (itemId.value === null && lost) focusList.current();
  }, [itemId.value]);
  const name = binId.value === null ? text.frame.all : binName(binId.value);
  // A revoked device has no connection and takes no new items.
  return (
    <div class="browse">
      <section class="pane-list" aria-label={name}>
        <header class="list-head line wrap">
          <span class="narrow-only">
            <Button kind="icon" icon={MenuIcon} label={text.frame.menu} onClick={() => openDialog(Drawer)} />
          </span>
          <h1 class="clip grow">
            <bdi>{name}</bdi>
          </h1>
          {!searching.value && (
            <span class="narrow-only">
              <Button kind="icon" icon={Search} label={words.search} onClick={() => focusSearch.current()} />
            </span>
          )}
        </header>
        {!isRevoked.value && <Status short />}
        {!isRevoked.value && <Composer />}
        <SearchField name={name} />
        <Chips />
        <Uploads />
        <Notices />
        <List />
      </section>
      <section class="pane-item" aria-label={text.item.label}>
        {itemId.value === null ? (
          <EmptyState icon={Inbox} title={text.item.choose} lead={text.item.chooseHow} />
        ) : (
          <ItemView key={itemId.value} id={itemId.value} />
        )}
      </section>
    </div>
  );
}

function SearchField({ name }: { name: string }) {
  const field = useRef<HTMLInputElement>(null);
  const typed = useSignal(query.value);
  focusSearch.current = () => {
    searching.value = true;
    requestAnimationFrame(() => field.current?.focus());
  };
  // Another component may clear the query. Later than at once, it would undo what was typed meanwhile.
  useLayoutEffect(() => query.subscribe((now) => void (typed.value = now)), []);
  useEffect(() => {
    const rest = setTimeout(() => (query.value = typed.value), SEARCH_REST_MS);
    return () => clearTimeout(rest);
  }, [typed.value]);
  const end = (): void => {
    typed.value = '';
    query.value = '';
    searching.value = false;
  };
  return (
    <div class={`search${searching.value ? ' shown' : ''}`} role="search">
      <Search />
      <input
        ref={field}
        type="search"
        dir={typed.value === '' ? undefined : 'auto'}
        autocomplete="off"
        enterkeyhint="search"
        aria-label={words.searchIn(name)}
        placeholder={words.searchIn(name)}
        value={typed.value}
        onInput={(event) => (typed.value = event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === 'Escape') {
            event.preventDefault();
            event.stopPropagation();
            end();
            focusList.current();
          } else if (event.key === 'ArrowDown' || event.key === 'Enter') {
            event.preventDefault();
            query.value = typed.value;
            focusList.current();
          }
        }}
      />
      {(typed.value !== '' || searching.value) && <Button kind="icon" icon={X} label={words.clear} onClick={end} />}
    </div>
  );
}

/** Filters by kind; several may be active. */
function Chips() {
  const toggle = (type: ContentType): void => {
    filters.value = filters.value.includes(type)
      ? filters.value.filter((one) => one !== type)
      : [...filters.value, type];
  };
  return (
    <div class="chips" role="group" aria-label={words.kindsLabel}>
      <button type="button" class="chip" aria-pressed={filters.value.length === 0} onClick={() => (filters.value = [])}>
        {words.allKinds}
      </button>
      {CONTENT_TYPES.map((type) => {
        const Sign = KIND_ICONS[type];
        return (
          <button
            key={type}
            type="button"
            class="chip"
            aria-pressed={filters.value.includes(type)}
            onClick={() => toggle(type)}
          >
            <Sign />
            {words.kinds(type)}
          </button>
        );
      })}
    </div>
  );
}
