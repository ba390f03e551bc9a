/** The platform of a browser. */
import { loadBrowserSodium } from '../crypto/sodium-browser.js';
import { systemClock, type Clock, type Timer } from '../protocol/clock.js';
import { CLOSE_WITHIN_MS, OPEN_WITHIN_MS, SERVER_FRAME_MAX } from './platform.js';
import type { OpenSocket, Platform, SocketPort } from './platform.js';

/**
 * The platform of a device in a browser: libsodium as WebAssembly, `fetch`, WebSockets, the system clock. The page's
 * policy must allow `script-src 'wasm-unsafe-eval'`, and the server must allow the page's origin (`CORS_ORIGINS`) if
 * it differs from its own. Rejects where WebAssembly cannot be loaded.
 */
export const browserPlatform = async (): Promise<Platform> => ({
  sodium: await loadBrowserSodium(),
  fetch: fetchFromDisk,
  sockets: browserSockets(systemClock),
  clock: systemClock,
  random: Math.random,
});

/** Folder, in the origin's private file system, of the bodies that are being sent. */
const BODIES = 'service-bodies';
/** Larger bodies are sent from a file, bytes. */
const BODY_IN_MEMORY_MAX = 1024 * 1024;

/** A file as dedicated workers have it: pages and other workers lack the method. */
interface WritableHandle extends FileSystemFileHandle {
  createSyncAccessHandle?(): Promise<{ write(bytes: Uint8Array): number; close(): void }>;
}

/**
 * `fetch`, which sends a large body from a file: browsers copy a body in memory, in two processes, and keep the copies
 * until a collection that no one can ask for, so that a large file takes hundreds of MiB as its parts are sent.
 */
async function fetchFromDisk(url: string, init: RequestInit): Promise<Response> {
  const { body } = init;
  const isLarge = body instanceof Uint8Array && body.length > BODY_IN_MEMORY_MAX;
  const folder = isLarge ? await bodiesFolder() : undefined;
  if (!isLarge || folder === undefined) return globalThis.fetch(url, init);
  // Only where there is a folder: pages without https have neither.
  const name = crypto.randomUUID();
  try {
    return await globalThis.fetch(url, { ...init, body: (await writtenFile(folder, name, body)) ?? body });
  } finally {
    // What stays after a crash is removed by the next run.
    await folder.removeEntry(name).catch(() => undefined);
  }
}

let bodies: Promise<FileSystemDirectoryHandle | undefined> | undefined;

/** The folder, without what earlier runs left; undefined where the browser has no such file system (private windows). */
const bodiesFolder = (): Promise<FileSystemDirectoryHandle | undefined> =>
  (bodies ??= emptied().catch(() => undefined));

async function emptied(): Promise<FileSystemDirectoryHandle> {
  const root = await navigator.storage.getDirectory();
  await root.removeEntry(BODIES, { recursive: true }).catch(() => undefined);
  return await root.getDirectoryHandle(BODIES, { create: true });
}

/** A file of these bytes; undefined where this thread cannot write files, or the disk is full. */
async function writtenFile(
  folder: FileSystemDirectoryHandle,
  name: string,
  bytes: Uint8Array,
): Promise<File | undefined> {
  try {
    const handle: WritableHandle = await folder.getFileHandle(name, { create: true });
    const access = await handle.createSyncAccessHandle?.();
    if (access === undefined) return undefined;
    try {
      if (access.write(bytes) !== bytes.length) return undefined;
    } finally {
      // A file that is open cannot be removed.
      access.close();
    }
    return await handle.getFile();
  } catch {
    return undefined;
  }
}

/** The code of a connection that ended without a close frame (RFC 6455, 7.1.5). */
const ABNORMAL = 1006;

/** WebSockets of browsers. They cannot be paused: a client that reads too slowly has to disconnect (see `Sync`). */
export const browserSockets = (clock: Clock): SocketPort => ({
  open(url, events): OpenSocket {
    let reported = false;
    const closed = (code: number, reason: string): void => {
      timer?.cancel();
      if (reported) return;
      reported = true;
      events.closed(code, reason);
    };
    let timer: Timer | undefined;
    let socket: WebSocket;
    try {
      socket = new WebSocket(url);
    } catch (error) {
      // For example, a page on https may not open ws:. Reported in a later task, because the caller does not have the
      // socket yet.
      const reason = error instanceof Error ? error.message : 'the browser refused the address';
      timer = clock.setTimer(0, () => closed(ABNORMAL, reason));
      return { send: () => undefined, close: () => undefined };
    }
    const giveUp = (ms: number, reason: string): void => {
      timer?.cancel();
      timer = clock.setTimer(ms, () => {
        socket.close();
        closed(ABNORMAL, reason);
      });
    };
    giveUp(OPEN_WITHIN_MS, 'no connection in time');
    socket.onopen = () => {
      timer?.cancel();
      if (!reported) events.opened();
    };
    /** Reports the end after a while too: a server may leave the closing handshake unanswered. */
    const close = (code: number, reason: string): void => {
      if (reported) return;
      // Browsers accept codes 1000 and 3000 to 4999 only, and throw for any other.
      const allowed = code === 1000 || (code >= 3000 && code <= 4999);
      socket.close(allowed ? code : 1000, reason);
      giveUp(CLOSE_WITHIN_MS, 'the closing handshake was not answered');
    };
    socket.onmessage = ({ data }: MessageEvent<unknown>) => {
      if (reported || typeof data !== 'string') return;
      if (data.length <= SERVER_FRAME_MAX) events.message(data);
      else close(1000, 'a frame of more than 1 MiB');
    };
    // `close` follows every `error`, and browsers do not say what the error was.
    socket.onclose = ({ code, reason }) => closed(code, reason);
    return {
      send: (text) => {
        if (socket.readyState === WebSocket.OPEN) socket.send(text);
      },
      close,
    };
  },
});
