/**
 * The service worker: opens the app without a network, gives the page the content of files as a stream, and takes what
 * other apps share. It holds no keys and no device, and decrypts nothing: content comes from the engine (`link`).
 */
import { Link } from '../link/client.js';
import { Content, type Answer } from './content.js';
import { takeShare } from './share.js';
import { fill, prune, shellFile } from './shell.js';

const scope = self as unknown as WorkerScope;
const SHARE = '/web/share';
const CONTENT = '/web/content/';
/** A browser ends a service worker after half a minute without events, and with it the streams. */
const STAY_MS = 15_000;

/** Several times an upload part (5 MiB), so that garbage is collected after fewer parts. */
const COUNTED_BYTES = 32 * 1024 * 1024;

let link: Link | undefined;
const content = new Content(() => (link ??= new Link()));
let streams = 0;
let asking: ReturnType<typeof setInterval> | undefined;

/** While content is read, requests a message from the pages at intervals, because each message is an event. */
async function lasting({ over }: Answer): Promise<void> {
  streams++;
  asking ??= setInterval(() => {
    scope.clients
      .matchAll({ includeUncontrolled: true, type: 'window' })
      .then((tabs) => {
        for (const tab of tabs) tab.postMessage({ kind: 'stay' });
      })
      // Repeated after the same time; without a message a long stream may be cut off, which the reader notices.
      .catch(() => undefined);
  }, STAY_MS);
  await over;
  if (--streams > 0) return;
  clearInterval(asking);
  asking = undefined;
}

/**
 * Chromium keeps the body of each request of a fetch event until this worker's garbage is collected. The bodies do not
 * count towards the next collection, so a large file that is uploaded in parts would stay in memory whole. The buffer
 * allocated here counts; as it is never touched, it takes no memory.
 */
function urgeCollection(): void {
  new ArrayBuffer(COUNTED_BYTES);
}

/** The response; undefined: the browser sends the request to the server, as without a service worker. */
function answered(event: FetchEvent): Promise<Response> | undefined {
  const { request } = event;
  if (request.method === 'PUT') urgeCollection();
  const { origin, pathname } = new URL(request.url);
  if (origin !== scope.location.origin) return undefined;
  if (request.method === 'POST') return pathname === SHARE ? takeShare(request, origin) : undefined;
  if (request.method !== 'GET') return undefined;
  if (pathname.startsWith(CONTENT)) {
    const answer = content.answer(request);
    event.waitUntil(answer.then(lasting));
    return answer.then(({ response }) => response);
  }
  // The browser looks for a newer service worker at each navigation, so the page need not be requested again.
  if (pathname === '/' ? request.mode === 'navigate' : /^\/(?:web\/[^/]+|manifest\.webmanifest)$/.test(pathname))
    return shellFile(pathname, request);
  return undefined;
}

scope.addEventListener('install', (event) => event.waitUntil(fill()));
scope.addEventListener('activate', (event) => event.waitUntil(prune().then(() => scope.clients.claim())));
scope.addEventListener('message', (event) => {
  const { data } = event;
  const update = typeof data === 'object' && data !== null && 'kind' in data && data.kind === 'update';
  if (update) event.waitUntil(scope.skipWaiting());
});
scope.addEventListener('fetch', (event) => {
  const answer = answered(event);
  if (answer !== undefined) event.respondWith(answer);
});

/** An event that can be extended until its work is done. */
export interface LongEvent extends Event {
  waitUntil(work: Promise<unknown>): void;
}

/** A request of a page. Without `respondWith` the browser does what it would do without a service worker. */
export interface FetchEvent extends LongEvent {
  readonly request: Request;
  respondWith(response: Promise<Response>): void;
}

interface Events {
  readonly install: LongEvent;
  readonly activate: LongEvent;
  readonly fetch: FetchEvent;
  readonly message: LongEvent & MessageEvent<unknown>;
}

/** A tab. */
interface Client {
  postMessage(message: unknown): void;
}

/** The global scope. */
export interface WorkerScope {
  readonly location: { readonly origin: string };
  readonly clients: {
    claim(): Promise<void>;
    matchAll(options: { readonly includeUncontrolled: boolean; readonly type: 'window' }): Promise<readonly Client[]>;
  };
  skipWaiting(): Promise<void>;
  addEventListener<N extends keyof Events>(name: N, listener: (event: Events[N]) => void): void;
}
