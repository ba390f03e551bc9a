/**
 * The service worker: opens the app without a network, gives the page the content of files as a stream, and takes what
 * other apps share. It holds no keys and no device, and decrypts nothing: content comes from the engine (`link`).
 */
import { discard } from '../../protocol/bytes.js';
import { UPLOAD_PART_BYTES } from '../../protocol/limits.js';
import { Link } from '../link/client.js';
import { Content, type Answer } from './content.js';
import { Shared, type NewShare, type ShareRefusal } from '../engine/shared.js';

const scope = self as unknown as WorkerScope;
const SHARE = '/web/share';
const CONTENT = '/web/content/';
/** A browser ends a service worker after half a minute without events, and with it the streams. */
const STAY_MS = 15_000;

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

/** The response; undefined: the browser sends the request to the server, as without a service worker. */
function answered(event: FetchEvent): Promise<Response> | undefined {
  const { request } = event;
  // Chromium keeps the body of each request of a fetch event until this worker's garbage is collected. Twice the size of
  // a part, so that each part suggests a collection: with one after every second part up to 128 MiB piled up.
  if (request.method === 'PUT') discard(2 * UPLOAD_PART_BYTES);
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
interface LongEvent extends Event {
  waitUntil(work: Promise<unknown>): void;
}

/** A request of a page. Without `respondWith` the browser does what it would do without a service worker. */
interface FetchEvent extends LongEvent {
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

/** The used part of the global scope: TypeScript's libraries for workers and for pages conflict. */
interface WorkerScope {
  readonly location: { readonly origin: string };
  readonly clients: {
    claim(): Promise<void>;
    matchAll(options: { readonly includeUncontrolled: boolean; readonly type: 'window' }): Promise<readonly Client[]>;
  };
  skipWaiting(): Promise<void>;
  addEventListener<N extends keyof Events>(name: N, listener: (event: Events[N]) => void): void;
}

// What another app shares into this one (Web Share Target) arrives as a form. It is stored in this browser and never
// sent to the server in this form: the engine puts it as items when a device is open.

const textOf = (form: FormData, name: string): string => {
  const value = form.get(name);
  return typeof value === 'string' ? value.trim() : '';
};

async function shareIn(request: Request): Promise<NewShare> {
  const form = await request.formData();
  const files = form.getAll('files').filter((part): part is File => typeof part !== 'string');
  // An app that shares no file may send an empty one without a name.
  return {
    ...{ title: textOf(form, 'title'), text: textOf(form, 'text'), url: textOf(form, 'url') },
    files: files.filter(({ name, size }) => size > 0 || name !== ''),
  };
}

/**
 * True if another site has sent the form. The system sends the origin `null`, but so does a site that hides its own: a
 * stored share can still come from any site that was open.
 */
function isForeign({ headers }: Request, own: string): boolean {
  const origin = headers.get('origin');
  return origin !== null && origin !== 'null' && origin !== own;
}

async function stored(request: Request): Promise<ShareRefusal | null> {
  const share = await shareIn(request);
  const shared = await Shared.open();
  return shared.add(share).finally(() => shared.close());
}

/** Stores the share, and redirects to the page that shows waiting shares, with the reason if it was refused. */
async function takeShare(request: Request, own: string): Promise<Response> {
  const refused = isForeign(request, own) ? 'foreign' : await stored(request).catch(() => 'unreadable' as const);
  return Response.redirect(refused === null ? '/#/shared' : `/#/shared?refused=${refused}`, 303);
}

// The app's own files, cached so that it opens at once, also without a network.

declare const __SHELL__: readonly string[];
declare const __VERSION__: string;

const CACHES = 'service-web-shell-';
const CACHE = `${CACHES}${__VERSION__}`;

/** Caches all files, or rejects: then the browser retries later, and the previous version stays active. */
async function fill(): Promise<void> {
  const files = await Promise.all(__SHELL__.map(async (path) => [path, await read(path)] as const));
  const index = await files
    .find(([path]) => path === '/')?.[1]
    .clone()
    .text();
  // The server was updated in between: its page names the files of another version.
  const named = index?.match(/\/web\/[^"]+\.(?:js|css)(?=")/g) ?? [];
  const strays = named.filter((path) => !__SHELL__.includes(path));
  if (named.length === 0 || strays.length > 0) throw new Error(`the page names ${strays.join(', ') || 'nothing'}`);
  const cache = await caches.open(CACHE);
  await Promise.all(files.map(([path, file]) => cache.put(path, file)));
}

async function read(path: string): Promise<Response> {
  // The server serves the page at `/` only to a client that accepts HTML.
  const headers = path === '/' ? { accept: 'text/html' } : undefined;
  // Names under `/web/` contain a hash of the content.
  const file = await fetch(path, { headers, cache: path.startsWith('/web/') ? 'default' : 'reload' });
  if (!file.ok || file.redirected) throw new Error(`${path} answers with ${file.status}`);
  return file;
}

/** Removes the caches of other versions. */
async function prune(): Promise<void> {
  const others = (await caches.keys()).filter((name) => name.startsWith(CACHES) && name !== CACHE);
  await Promise.all(others.map((name) => caches.delete(name)));
}

/** The cached file, else the server's: the browser may have removed the cache. */
async function shellFile(path: string, request: Request): Promise<Response> {
  const cache = await caches.open(CACHE);
  return (await cache.match(path, { ignoreVary: true })) ?? fetch(request);
}
