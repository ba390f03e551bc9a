/** The app's own files, cached so that it opens at once, also without a network. */

declare const __SHELL__: readonly string[];
declare const __VERSION__: string;

const PREFIX = 'service-web-shell-';
const NAME = `${PREFIX}${__VERSION__}`;

const isHashed = (path: string): boolean => path.startsWith('/web/');

/** Caches all files, or rejects: then the browser retries later, and the previous version stays active. */
export async function fill(): Promise<void> {
  const files = await Promise.all(__SHELL__.map(async (path) => [path, await read(path)] as const));
  const index = await files
    .find(([path]) => path === '/')?.[1]
    .clone()
    .text();
  // The server was updated in between: its page names the files of another version.
  const named = index?.match(/\/web\/[^"]+\.(?:js|css)(?=")/g) ?? [];
  const strays = named.filter((path) => !__SHELL__.includes(path));
  if (named.length === 0 || strays.length > 0) throw new Error(`the page names ${strays.join(', ') || 'nothing'}`);
  const cache = await caches.open(NAME);
  await Promise.all(files.map(([path, file]) => cache.put(path, file)));
}

async function read(path: string): Promise<Response> {
  // The server serves the page at `/` only to a client that accepts HTML.
  const headers = path === '/' ? { accept: 'text/html' } : undefined;
  const file = await fetch(path, { headers, cache: isHashed(path) ? 'default' : 'reload' });
  if (!file.ok || file.redirected) throw new Error(`${path} answers with ${file.status}`);
  return file;
}

/** Removes the caches of other versions. */
export async function prune(): Promise<void> {
  const others = (await caches.keys()).filter((name) => name.startsWith(PREFIX) && name !== NAME);
  await Promise.all(others.map((name) => caches.delete(name)));
}

/** The cached file, else the server's: the browser may have removed the cache. */
export async function shellFile(path: string, request: Request): Promise<Response> {
  const cache = await caches.open(NAME);
  return (await cache.match(path, { ignoreVary: true })) ?? fetch(request);
}
