/** The whole page: which screen is shown follows from what this browser is, and from the address. */
import { signal } from '@preact/signals';
import type { JSX } from 'preact';
import { useEffect } from 'preact/hooks';
import { BeginScreen } from './begin.js';
import { Browse } from './browse.js';
import { clearClipboard, clearsAt } from './clipboard.js';
import { DropZone } from './drop.js';
import { RefreshCw } from './icons.js';
import { KeysDialog, useKeys } from './keys.js';
import { Button, EmptyState, Toasts } from './kit.js';
import { call, phase, shared } from './link.js';
import { later } from './later.js';
import { LockScreen } from './lock.js';
import { itemId, page } from './route.js';
import { SecondsTo } from './row.js';
import { Drawer, Sidebar } from './sidebar.js';
import { drawer, focusList, query, showingKeys } from './state.js';
import { toEdit, toMove } from './actions.js';
import { text } from './strings.js';
import { StoreFailed } from './unable-screens.js';
import { forgetDrafts } from './unsaved.js';

const words = text.frame;

/** The pages beside the list. */
const Page = later(async () => (await import('./pages.js')).Page);

/** The worker that holds the device has died in this tab. */
export const engineGone = signal(false);

/** The whole page: the screen of the phase, and what lies over all screens. */
export function App(): JSX.Element {
  return (
    <>
      {engineGone.value ? <EngineGone /> : <Screens />}
      <SharedWaiting />
      <Toasts />
    </>
  );
}

/** What was shared into the app before it could be put. */
function SharedWaiting(): JSX.Element | null {
  const count = shared.value?.count ?? 0;
  if (count === 0 || phase.value?.phase === 'open') return null;
  return (
    <p class="screen-foot small quiet" role="status">
      {words.sharedWaiting(count)}
    </p>
  );
}

function Screens(): JSX.Element | null {
  const now = phase.value;
  switch (now?.phase) {
    case undefined:
    case 'starting':
      // It takes less than a blink; a sign of it would only flicker.
      return <main class="screen" aria-busy="true" />;
    case 'empty':
      return <BeginScreen />;
    case 'locked':
      return <LockScreen />;
    case 'failed':
      return <StoreFailed />;
    case 'revoked':
      return <Open revoked />;
    case 'open':
      return <Open />;
  }
}

/** When the list is there, the pages beside it are loaded too. */
const PAGES_AFTER_MS = 2_000;

/** Activity of a person counts at most this often for the lock. */
const TOUCH_MS = 20_000;

/** Tells the engine that somebody is there, so that the lock waits. */
function useTouch(): void {
  useEffect(() => {
    let last = 0;
    const touch = (): void => {
      if (Date.now() - last < TOUCH_MS) return;
      last = Date.now();
      // The next touch tells it again.
      call('touched').catch(() => undefined);
    };
    const listening = new AbortController();
    for (const name of ['pointerdown', 'keydown', 'wheel', 'touchmove'])
      addEventListener(name, touch, { passive: true, signal: listening.signal });
    touch();
    return () => listening.abort();
  }, []);
}

function Open({ revoked = false }: { readonly revoked?: boolean }): JSX.Element {
  useKeys();
  useTouch();
  useEffect(() => void navigator.storage?.persist?.().catch(() => false), []);
  // Locked or signed out, the page remembers nothing of what was looked at.
  useEffect(
    () => () => {
      toMove.value = null;
      toEdit.value = null;
      query.value = '';
      forgetDrafts();
    },
    [],
  );
  // So that they are there at once, and without a network.
  useEffect(() => {
    const timer = setTimeout(Page.ahead, PAGES_AFTER_MS);
    return () => clearTimeout(timer);
  }, []);
  return (
    <div class={`app${itemId.value === null ? '' : ' with-item'}${page.value === null ? '' : ' with-page'}`}>
      {page.value === null && (
        <button type="button" class="button skip" onClick={() => focusList.current()}>
          {words.skip}
        </button>
      )}
      <aside class="side">
        <Sidebar />
      </aside>
      <main class="main">
        {revoked && <Page page="revoked" />}
        {page.value === null ? <Browse /> : <Page page={page.value} />}
      </main>
      {drawer.value && <Drawer />}
      {showingKeys.value && <KeysDialog />}
      <DropZone />
      {clearsAt.value !== null && <ClipboardBar at={clearsAt.value} />}
    </div>
  );
}

/** Says that a secret is on the clipboard, and until when. */
function ClipboardBar({ at }: { readonly at: number }): JSX.Element {
  return (
    <div class="toasts">
      <div class="toast">
        <span class="grow">
          <SecondsTo at={at}>{text.list.secretCopied}</SecondsTo>
        </span>
        <Button onClick={() => void clearClipboard()}>{text.list.clearNow}</Button>
      </div>
    </div>
  );
}

function EngineGone(): JSX.Element {
  return (
    <main class="screen">
      <EmptyState icon={RefreshCw} title={words.engineGone}>
        <p>{words.engineGoneHow}</p>
        <Button kind="primary" onClick={() => location.reload()}>
          {words.reload}
        </Button>
      </EmptyState>
    </main>
  );
}
