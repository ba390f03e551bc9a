/** The whole page: the phase of the engine and the address determine which screen is shown. */
import { signal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { BeginScreen } from './begin.js';
import { Browse } from './browse.js';
import { clearClipboard, clearsAt } from './clipboard.js';
import { DropZone } from './drop.js';
import { RefreshCw } from 'lucide-preact';
import { KeysDialog, useKeys } from './keys.js';
import { Button, EmptyState, Toasts } from './kit.js';
import { call, isRevoked, phase, shared } from './link.js';
import { later } from './later.js';
import { LockScreen } from './lock.js';
import { itemId, page } from './route.js';
import { SecondsTo } from './row.js';
import { Drawer, Sidebar } from './sidebar.js';
import { drawer, focusList, query, showingKeys } from './state.js';
import { toEdit, toMove } from './actions.js';
import { text } from './strings.js';
import { StoreFailed } from './unable.js';
import { forgetDrafts } from './unsaved.js';

const words = text.frame;

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
      {words.sharedWaiting(count)}
    </p>
  );
}

function Screens() {
  const now = phase.value;
  switch (now?.phase) {
    case undefined:
    case 'starting':
      // Too short for a progress indicator, which would only flicker.
      return <main class="screen" aria-busy="true" />;
    case 'empty':
      return <BeginScreen />;
    case 'locked':
      return <LockScreen />;
    case 'failed':
      return <StoreFailed />;
    case 'revoked':
    case 'open':
      return <Open />;
  }
}

/** Wait after the list is shown before the pages beside it are loaded. */
const PAGES_AFTER_MS = 2_000;

/** Least time between reports of the user's activity to the engine. */
const TOUCH_MS = 20_000;

/** Reports the user's activity to the engine, which postpones the lock. */
function useTouch(): void {
  useEffect(() => {
    let last = 0;
    const touch = (): void => {
      if (Date.now() - last < TOUCH_MS) return;
      last = Date.now();
      // The next activity is reported again.
      call('touched').catch(() => undefined);
    };
    const listening = new AbortController();
    for (const name of ['pointerdown', 'keydown', 'wheel', 'touchmove'])
      addEventListener(name, touch, { passive: true, signal: listening.signal });
    touch();
    return () => listening.abort();
  }, []);
}

function Open() {
  useKeys();
  useTouch();
  useEffect(() => void navigator.storage?.persist?.().catch(() => false), []);
  // Once locked or signed out, the page keeps nothing of what was shown or typed.
  useEffect(
    () => () => {
      toMove.value = null;
      toEdit.value = null;
      query.value = '';
      forgetDrafts();
    },
    [],
  );
  // So that the pages open at once, also without a network.
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
        {isRevoked.value && <Page page="revoked" />}
        {page.value === null || isRevoked.value ? <Browse /> : <Page page={page.value} />}
      </main>
      {drawer.value && <Drawer />}
      {showingKeys.value && <KeysDialog />}
      <DropZone />
      {clearsAt.value !== null && <ClipboardBar at={clearsAt.value} />}
    </div>
  );
}

/** Says that a secret is on the clipboard, and for how long. */
function ClipboardBar({ at }: { at: number }) {
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

function EngineGone() {
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
