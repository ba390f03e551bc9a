/** The page's entry: checks the browser's features, runs the engine if this tab leads, renders the app. */
import { render } from 'preact';
import { scriptAddress } from '../script.js';
import { App, engineGone } from './app.js';
import { takeFragment } from './begin.js';
import { ignoreStrayClicks, toast } from './kit.js';
import { importing } from './link.js';
import { metaContent } from './meta.js';
import { startServiceWorker } from './update.js';
import { startRouting } from './route.js';
import * as text from './strings.js';
import { UnableScreen, whatIsMissing } from './unable.js';
import { asksToLeave, startAsking } from './unsaved.js';

/** The tab that holds this lock runs the engine for all tabs of this origin. */
const LEADER = 'service-web-leader';

/** The address of a script, from the page's head. */
const scriptOf = (name: 'engine' | 'sw'): string => scriptAddress(metaContent(name));

/** Runs the engine once no other tab does, for as long as this page lives. */
function lead(): void {
  const run = (): Promise<void> => {
    const worker = new Worker(scriptOf('engine'), { type: 'module', name: 'engine' });
    // An import ends with the engine. Watched here, as no screen may show it.
    importing.subscribe(() => undefined);
    asksToLeave(() => importing.value != null && !engineGone.value);
    // Resolved when the worker has failed, so that another tab leads; otherwise the browser ends it with the page.
    return new Promise((resolve) => {
      worker.addEventListener('error', (event) => {
        event.preventDefault();
        worker.terminate();
        engineGone.value = true;
        resolve();
      });
    });
  };
  navigator.locks.request(LEADER, run).catch(() => (engineGone.value = true));
}

/** Shows why a share was refused, if the service worker has redirected here for that (worker/main.ts). */
function showRefusedShare(): void {
  const [, reason = ''] = /^#\/shared\?refused=(\w+)$/.exec(location.hash) ?? [];
  const message = new Map<string, string>(Object.entries(text.notices.notShared)).get(reason);
  if (message === undefined) return;
  toast(message);
  history.replaceState(null, '', '#/');
}

function start(): void {
  takeFragment();
  showRefusedShare();
  // A link opened in a tab that has the app only changes the hash and does not reload the page.
  addEventListener('hashchange', takeFragment);
  const root = document.getElementById('app');
  if (root === null) throw new Error('no #app');
  if (whatIsMissing(globalThis).length > 0) {
    render(<UnableScreen />, root);
    return;
  }
  startRouting();
  ignoreStrayClicks();
  startAsking();
  lead();
  // Registration may fail in a private window.
  startServiceWorker(scriptOf('sw')).catch(() => undefined);
  render(<App />, root);
}

start();
