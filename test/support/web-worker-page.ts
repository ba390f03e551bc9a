/** A page for the tests of the service worker: an engine on the link that has files of every kind, and no device. */
import { serve, type Served } from '../../src/web/link/host.js';
import type { ItemDetail, Phase } from '../../src/web/link/messages.js';
import { answerStay } from '../../src/web/link/stay.js';
import { Shared } from '../../src/web/engine/shared.js';

interface Content {
  readonly mime: string;
  readonly name: string;
  readonly size: number;
  /** Bytes that really come; then it ends. */
  readonly comes?: number;
  /** Fails after so many bytes. */
  readonly fails?: number;
  readonly bytes?: string;
  /** The next chunk never comes. */
  readonly hangs?: boolean;
}

const PDF = `%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 100]>>endobj
trailer<</Root 1 0 R>>
%%EOF`;
const SCRIPT = '<script>document.title = "ran"; top.hostile = true</script>';

const files: Readonly<Record<string, Content>> = {
  PICTVRE: { mime: 'image/png', name: 'Kätzchen "1".png', size: 300_000 },
  EMPTY: { mime: 'text/plain', name: 'empty.txt', size: 0 },
  TEXT: { mime: 'text/plain', name: 'a.txt', size: 5, bytes: 'hello' },
  PAGE: { mime: 'text/html', name: 'a.html', size: SCRIPT.length, bytes: SCRIPT },
  SVG: { mime: 'image/svg+xml', name: 'a.svg', size: SCRIPT.length, bytes: SCRIPT },
  PDF: { mime: 'application/pdf', name: 'a.pdf', size: PDF.length, bytes: PDF },
  FILM: { mime: 'video/mp4', name: 'film.mp4', size: 200_000_000 },
  HANGS: { mime: 'video/mp4', name: 'film.mp4', size: 200_000_000, hangs: true },
  BROKEN: { mime: 'application/zip', name: 'a.zip', size: 300_000, fails: 150_000 },
  ABSENT: { mime: 'application/zip', name: 'a.zip', size: 300_000, fails: 0 },
  SHORT: { mime: 'application/zip', name: 'a.zip', size: 300_000, comes: 200_000 },
  LONG: { mime: 'application/zip', name: 'a.zip', size: 100_000, comes: 200_000 },
};

/** Ids of items are ULIDs. */
const idOf = (name: string): string => `0${name.replace(/[ILOU]/g, 'V')}`.padEnd(26, '0');
const named = (id: string): Content | undefined => Object.entries(files).find(([name]) => idOf(name) === id)?.[1];

const state = { chunks: 0, open: 0, asked: [] as number[], phase: 'open' as Phase['phase'] };

const detailOf = (id: string): ItemDetail | null => {
  const file = named(id);
  if (file === undefined) return null;
  const row = { id, binId: 'inbox', type: 'file', title: file.name, detail: '', ts: 1, pending: false, sender: '' };
  const none = { copy: null, href: null, removeAt: null };
  // The description may say another size than the content has.
  const shown = { name: file.name, mime: file.mime, size: 7 };
  return { ...row, ...none, type: 'file', file: shown, payload: {}, cut: false, version: 3 };
};

const CHUNK = 65_536;

async function* content({ id, from }: { id: string; from: number }, signal: AbortSignal): AsyncGenerator<Uint8Array> {
  const { size = 0, comes = size, fails = Infinity, bytes, hangs } = named(id) ?? {};
  state.open++;
  state.asked.push(from);
  try {
    for (let at = from; at < comes; at += CHUNK) {
      if (at >= fails) throw Object.assign(new Error('it was changed'), { name: 'CryptoRefusal', reason: 'bad_ct' });
      if (hangs === true && at > 0) await new Promise((resolve) => signal.addEventListener('abort', resolve));
      if (signal.aborted) return;
      state.chunks++;
      const end = Math.min(comes, at + CHUNK, fails > at ? fails : Infinity);
      yield bytes === undefined
        ? Uint8Array.from({ length: end - at }, (_, place) => (at + place) % 251)
        : new TextEncoder().encode(bytes).subarray(at, end);
    }
  } finally {
    state.open--;
  }
}

const notHere = (): never => {
  throw new Error('not here');
};
const served: Served = {
  settled: () => Promise.resolve(),
  calls: new Proxy({} as Served['calls'], {
    get: (_, name) => (name === 'contentSize' ? (id: string) => named(id)?.size ?? null : notHere),
  }),
  topics: {
    item: ({ id }: { id: string }, push: (item: ItemDetail | null) => void) => {
      push(state.phase === 'open' ? detailOf(id) : null);
      return () => undefined;
    },
    phase: (_: null, push: (phase: Phase) => void) => {
      push({ phase: state.phase } as Phase);
      return () => undefined;
    },
  } as unknown as Served['topics'],
  streams: { content } as unknown as Served['streams'],
};

const read = async (path: string, headers: Record<string, string> = {}) => {
  const response = await fetch(path, { headers });
  const bytes = await response.arrayBuffer().then(
    (buffer) => [...new Uint8Array(buffer)],
    () => null,
  );
  const sound = bytes?.every((byte, at) => byte === (at + (bytes[0] ?? 0)) % 251) ?? null;
  return {
    status: response.status,
    headers: Object.fromEntries(response.headers),
    length: bytes?.length ?? null,
    first: bytes?.[0] ?? null,
    sound,
    text: bytes !== null && bytes.length < 1_000 ? String.fromCharCode(...bytes) : null,
  };
};

let nextShare: Promise<number> | undefined;

const page = {
  state,
  idOf,
  serve: () => serve(served),
  read: (name: string, query = '', headers: Record<string, string> = {}) =>
    read(`/web/content/${idOf(name)}${query}`, headers),
  fetched: async (path: string) => (await fetch(path)).text(),
  /** Reads a chunk, waits, and aborts. Resolves with the number of chunks that were produced until then. */
  begin: async (name: string, ms: number) => {
    const stop = new AbortController();
    const response = await fetch(`/web/content/${idOf(name)}`, { signal: stop.signal });
    await response.body?.getReader().read();
    await new Promise((resolve) => setTimeout(resolve, ms));
    const taken = state.chunks;
    stop.abort();
    return taken;
  },
  register: async () => {
    const registration = await navigator.serviceWorker.register('/sw.js');
    answerStay();
    await navigator.serviceWorker.ready;
    if (navigator.serviceWorker.controller === null)
      await new Promise((resolve) => (navigator.serviceWorker.oncontrollerchange = resolve));
    return registration.scope;
  },
  /** Looks for a newer service worker; resolves with its state, null if there is none. */
  update: async () => {
    const registration = await navigator.serviceWorker.ready;
    await registration.update();
    const coming = registration.installing ?? registration.waiting;
    if (coming === null) return null;
    if (coming.state === 'installing') await new Promise((resolve) => (coming.onstatechange = resolve));
    return coming.state;
  },
  takeOver: async () => {
    const changed = new Promise((resolve) => (navigator.serviceWorker.oncontrollerchange = resolve));
    (await navigator.serviceWorker.ready).waiting?.postMessage({ kind: 'update' });
    await changed;
  },
  cached: () => caches.keys(),
  shared: async () => {
    const shared = await Shared.open();
    const list = await shared.list();
    shared.close();
    return Promise.all(
      list.map(async ({ id, files, ...texts }) => ({
        ...texts,
        ids: [id, ...files.map((one) => one.id)],
        files: await Promise.all(files.map(async ({ file }) => [file.name, file.type, await file.text()])),
      })),
    );
  },
  /** Resolves once it listens for the next change by another part of the browser; earlier ones are missed. */
  listenForShare: async () => {
    const shared = await Shared.open();
    nextShare = new Promise<void>((resolve) => (shared.onChange = resolve)).then(async () => {
      const { length } = await shared.list();
      shared.close();
      return length;
    });
  },
  /** Resolves with the count after that change. */
  nextShare: () => nextShare,
  takeShares: async () => {
    const shared = await Shared.open();
    for (const { id } of await shared.list()) await shared.remove(id);
    const { length } = await shared.list();
    shared.close();
    return length;
  },
  /** Shares into the app, as the system does: a form is sent and the page is left. */
  share: (fields: Record<string, string>, names: readonly string[], action = '/web/share') => {
    const form = document.createElement('form');
    Object.assign(form, { method: 'POST', action, enctype: 'multipart/form-data' });
    for (const [name, value] of Object.entries(fields)) {
      const input = Object.assign(document.createElement('input'), { name, value });
      form.append(input);
    }
    const picked = new DataTransfer();
    for (const name of names) picked.items.add(new File([`content of ${name}`], name, { type: 'text/plain' }));
    const input = Object.assign(document.createElement('input'), { type: 'file', name: 'files', multiple: true });
    input.files = picked.files;
    form.append(input);
    document.body.append(form);
    form.submit();
  },
};

/** What the tests call. */
export type WorkerPage = typeof page;

Object.assign(globalThis, { page });
