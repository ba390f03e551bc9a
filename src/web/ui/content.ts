/** The content of files: streamed by the service worker, or collected in the page's memory if there is none. */
import { useLayoutEffect, useMemo, useState } from 'preact/hooks';
import type { ItemRow } from '../link/messages.js';
import { attempt } from './actions.js';
import { toast } from './kit.js';
import { link, useLoaded } from './link.js';
import * as text from './strings.js';

/** Where the service worker serves a file's content; null if none controls this page. */
function contentUrl(id: string, download: string | null = null): string | null {
  if (!('serviceWorker' in navigator) || navigator.serviceWorker.controller === null) return null;
  const query = download === null ? '' : `?download=${encodeURIComponent(download)}`;
  return `/web/content/${encodeURIComponent(id)}${query}`;
}

/** Largest content that is collected in the page's memory, bytes. */
const GATHER_MAX = 64 * 1024 * 1024;
/** Bytes of a text file that are previewed. */
export const TEXT_MAX = 64 * 1024;

/** The content of a file, of which nothing is read once more than `max` bytes have come. */
async function read(id: string, max: number): Promise<{ chunks: Uint8Array<ArrayBuffer>[]; size: number }> {
  const chunks: Uint8Array<ArrayBuffer>[] = [];
  let size = 0;
  for await (const chunk of link().read('content', { id, from: 0 })) {
    chunks.push(Uint8Array.from(chunk));
    size += chunk.length;
    if (size > max) break;
  }
  return { chunks, size };
}

/** Throws `RangeError` for a content larger than `GATHER_MAX`. */
async function gather(id: string, mime: string): Promise<Blob> {
  const { chunks, size } = await read(id, GATHER_MAX);
  if (size > GATHER_MAX) throw new RangeError(text.item.tooLarge);
  return new Blob(chunks, { type: mime });
}

/** Time after which the browser has surely begun a download and needs neither URL nor frame. */
const BEGUN_MS = 60_000;

/** Saves bytes that are in this browser already. */
export function saveBlob(blob: Blob, name: string): void {
  const url = URL.createObjectURL(blob);
  const anchor = document.createElement('a');
  anchor.href = url;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), BEGUN_MS);
}

/** Saves a file to disk, streamed by the service worker if there is one. */
export async function download(item: Pick<ItemRow, 'id' | 'file'>): Promise<void> {
  if (item.file === null) return;
  const name = text.safeText(item.file.name);
  const url = contentUrl(item.id, name);
  if (url !== null) {
    saveServed(url);
    return;
  }
  toast(text.item.downloading);
  await attempt(gather(item.id, 'application/octet-stream').then((blob) => saveBlob(blob, name)));
}

/** Uses a frame, because in some browsers a link with `download` bypasses the service worker. */
function saveServed(url: string): void {
  const frame = document.createElement('iframe');
  frame.hidden = true;
  frame.src = url;
  document.body.append(frame);
  setTimeout(() => frame.remove(), BEGUN_MS);
}

/**
 * The URL of content to be shown; null while there is none. The caller calls `onBroken` if it could not be shown:
 * content served by the service worker is then collected in the page instead. `failed`: that has failed too.
 */
export function useContent(id: string, mime: string) {
  const served = contentUrl(id);
  const [serving, setServing] = useState(served !== null);
  const [broken, setBroken] = useState(false);
  const { value: blob = null, problem } = useLoaded(async () => (serving ? null : gather(id, mime)), [id, serving]);
  const own = useMemo(() => blob && URL.createObjectURL(blob), [blob]);
  // Not a passive effect: a view that goes before one has run would never revoke it.
  useLayoutEffect(
    () => () => {
      if (own !== null) URL.revokeObjectURL(own);
    },
    [own],
  );
  const onBroken = (): void => (serving ? setServing(false) : setBroken(true));
  return { url: serving ? served : own, failed: broken || problem !== null, onBroken };
}

/** The first bytes of a text file; null: not UTF-8. */
export async function beginning(id: string): Promise<{ text: string; whole: boolean } | null> {
  const { chunks, size } = await read(id, TEXT_MAX);
  const bytes = new Uint8Array(await new Blob(chunks).arrayBuffer());
  const decoder = new TextDecoder('utf-8', { fatal: true });
  try {
    // `stream`: a character cut at the end is no error.
    return { text: decoder.decode(bytes.subarray(0, TEXT_MAX), { stream: true }), whole: size <= TEXT_MAX };
  } catch {
    return null;
  }
}
