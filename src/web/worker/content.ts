/**
 * `/web/content/<id>`: the plaintext of a file as a stream, for `<img>`, `<video>`, a frame or a download. It comes
 * from the engine chunk by chunk, on demand; nothing of it is stored.
 */
import { discard } from '../../protocol/bytes.js';
import { isUlid, UNSAFE } from '../../protocol/ids.js';
import { LinkError, type Link } from '../link/client.js';
import type { ItemDetail, Phase } from '../link/messages.js';

/** Time limits for a device to open, and for an item to be found in it. */
const ENGINE_MS = 5_000;
const ITEM_MS = 1_000;
/** Cached sizes, because a player requests the same file repeatedly. */
const SIZES_MAX = 100;

/** `over` resolves when the body of the response has ended, was cancelled or has failed. */
export interface Answer {
  readonly response: Response;
  readonly over: Promise<void>;
}

type File = NonNullable<ItemDetail['file']>;

const refusal = (status: number, why: string, headers: Record<string, string> = {}): Answer => ({
  response: new Response(`${why}\n`, {
    status,
    headers: { ...GUARDS, 'content-type': 'text/plain; charset=utf-8', ...headers },
  }),
  over: Promise.resolve(),
});

/** Serves content, over the link that `open` gives. */
export class Content {
  private readonly sizes = new Map<string, number>();

  constructor(private readonly open: () => Link) {}

  async answer(request: Request): Promise<Answer> {
    const url = new URL(request.url);
    const id = url.pathname.slice(url.pathname.lastIndexOf('/') + 1);
    if (!isUlid(id)) return refusal(404, 'This is the id of no item.');
    const link = this.open();
    const item = await itemOf(link, id);
    if (item === undefined) return refusal(503, 'No device is open in this browser.');
    if (item?.file == null) return refusal(404, 'There is no such file on this device.');
    try {
      return await this.opened(link, { item, file: item.file, url, request });
    } catch (error) {
      if (!(error instanceof LinkError)) throw error;
      return refusal(502, `The file cannot be read: ${error.problem.message} (${error.problem.code})`);
    }
  }

  private async opened(
    link: Link,
    { item, file, url, request }: { item: ItemDetail; file: File; url: URL; request: Request },
  ): Promise<Answer> {
    const download = url.searchParams.get('download');
    const tag = `"${item.id}-${item.version}"`;
    const size = await this.size(link, item.id, tag);
    // The reader has a part of another version: it gets the whole.
    const since = request.headers.get('if-range');
    const span = since === null || since === tag ? spanOf(request.headers.get('range'), size) : undefined;
    if (span === null) return refusal(416, 'The file is shorter.', { 'content-range': `bytes */${size}` });
    const headers: Record<string, string> = {
      ...contentHeaders({
        mime: url.searchParams.get('type') ?? file.mime,
        name: download !== null && download !== '' ? download : file.name,
        download: download !== null,
      }),
      'accept-ranges': size === null ? 'none' : 'bytes',
      etag: tag,
    };
    if (size !== null) headers['content-length'] = String(span === undefined ? size : span.to - span.from);
    if (span !== undefined) headers['content-range'] = `bytes ${span.from}-${span.to - 1}/${size}`;
    const { body, over } = await streamOf(link, { id: item.id, span, size });
    return { response: new Response(body, { status: span === undefined ? 200 : 206, headers }), over };
  }

  /** Exact, from the stored blob: the size in the item's payload may be wrong. */
  private async size(link: Link, id: string, tag: string): Promise<number | null> {
    const known = this.sizes.get(tag);
    if (known !== undefined) return known;
    const size = await link.call('contentSize', id);
    if (size === null) return null;
    const [oldest] = this.sizes.keys();
    if (oldest !== undefined && this.sizes.size >= SIZES_MAX) this.sizes.delete(oldest);
    this.sizes.set(tag, size);
    return size;
  }
}

/** The item; null: there is none; undefined: no device is open, or not soon enough. */
function itemOf(link: Link, id: string): Promise<ItemDetail | null | undefined> {
  return new Promise((resolve) => {
    let phase: Phase['phase'] = 'starting';
    let absent: ReturnType<typeof setTimeout> | undefined;
    const end = (found: ItemDetail | null | undefined): void => {
      clearTimeout(timer);
      clearTimeout(absent);
      for (const stop of stops) stop();
      resolve(found);
    };
    const timer = setTimeout(() => end(phase === 'open' ? null : undefined), ENGINE_MS);
    const stops = [
      link.watch('item', { id }, (item) => {
        if (item !== null) end(item);
      }),
      link.watch('phase', null, (now) => {
        ({ phase } = now);
        if (phase === 'locked' || phase === 'empty' || phase === 'failed') end(undefined);
        // A device that has just opened publishes its items after its phase.
        else if (phase === 'open' || phase === 'revoked') absent ??= setTimeout(() => end(null), ITEM_MS);
      }),
    ];
  });
}

/**
 * The bytes of a span, or all. Resolves when the first chunk is there, so that unreadable content gives an error
 * response and no broken stream. The stream fails if there are more or fewer bytes than announced.
 */
async function streamOf(link: Link, { id, span, size }: { id: string; span: Span | undefined; size: number | null }) {
  const stop = new AbortController();
  const chunks = link.read('content', { id, from: span?.from ?? 0 }, stop.signal);
  const toEnd = span === undefined || span.to === size;
  let left = span === undefined ? (size ?? Infinity) : span.to - span.from;
  let first: IteratorResult<Uint8Array, void> | undefined = await chunks.next();
  let over: () => void = () => undefined;
  const ended = new Promise<void>((resolve) => (over = resolve));
  // Not within the browser's call: Chromium (156) hangs if a stream's callback aborts something.
  const end = (): void =>
    queueMicrotask(() => {
      stop.abort();
      over();
    });
  const pull = async (controller: ReadableStreamDefaultController<Uint8Array>): Promise<void> => {
    try {
      const { done, value } = await (first ?? chunks.next());
      first = undefined;
      if (done === true) {
        if (left > 0 && left < Infinity) throw new Error('the content ends too early');
        controller.close();
        end();
        return;
      }
      if (toEnd && value.length > left) throw new Error('the content is longer than it should be');
      const part = value.subarray(0, Math.min(left, value.length));
      left -= part.length;
      discard(part.length);
      controller.enqueue(part);
      if (left > 0 || toEnd) return;
      controller.close();
      end();
    } catch (error) {
      controller.error(error);
      end();
    }
  };
  // Nothing is read ahead: a chunk is requested only when the reader takes it.
  const body = new ReadableStream({ pull, cancel: end }, { highWaterMark: 0 });
  return { body, over: ended };
}

/** Bytes from `from` up to, not including, `to`. */
interface Span {
  readonly from: number;
  readonly to: number;
}

/**
 * The part that a `Range` header requests. Undefined: the whole, also for anything but a single range of bytes, and if
 * the size is not known. Null: no byte of it exists (416).
 */
export function spanOf(range: string | null, size: number | null): Span | null | undefined {
  const [, first, last] = /^bytes=(\d{0,15})-(\d{0,15})$/.exec(range ?? '') ?? [];
  if (first === undefined || last === undefined || first + last === '' || size === null) return undefined;
  if (first === '') return last === '0' || size === 0 ? null : { from: Math.max(0, size - Number(last)), to: size };
  const from = Number(first);
  if (last !== '' && Number(last) < from) return undefined;
  return from < size ? { from, to: last === '' ? size : Math.min(size, Number(last) + 1) } : null;
}

const SHOWN = ['image/png', 'image/jpeg', 'image/gif', 'image/webp', 'image/avif', 'application/pdf', 'text/plain'];
const PLAYED = /^(?:audio|video)\/[a-z0-9][a-z0-9.+-]{0,100}$/;

/** The media type as which content is shown in a page; null: it is never shown. None of the types executes code. */
export function shownAs(mime: string): string | null {
  const type = mime.toLowerCase().split(';')[0]?.trim() ?? '';
  return SHOWN.includes(type) || PLAYED.test(type) ? type : null;
}

const NAME_MAX = 200;
/** A name must not look like another one. */
const UNSEEN = new RegExp(UNSAFE, 'gu');

/** `Content-Disposition` with the name in both forms (RFC 6266). */
export function disposition(how: 'inline' | 'attachment', name: string): string {
  const clean =
    Array.from(name.replace(UNSEEN, '').replace(/[/\\]/g, '_').trim()).slice(0, NAME_MAX).join('') || 'file';
  const plain = clean.replace(/[^\x20-\x7e]|["%]/g, '_');
  const encoded = encodeURIComponent(clean).replace(/['()*!]/g, (char) => `%${char.charCodeAt(0).toString(16)}`);
  return `${how}; filename="${plain}"; filename*=UTF-8''${encoded}`;
}

/** For content, and for the responses that say why there is none. */
const GUARDS = {
  'content-security-policy': "default-src 'none'; sandbox; frame-ancestors 'self'",
  'x-content-type-options': 'nosniff',
  'cross-origin-resource-policy': 'same-origin',
  'referrer-policy': 'no-referrer',
  'cache-control': 'no-store',
};
/** In some browsers the PDF viewer does not start in a sandbox. */
const PDF_POLICY = "default-src 'none'; frame-ancestors 'self'";

/** The response headers of content: type, name and policy. */
export function contentHeaders({ mime, name, download }: { mime: string; name: string; download: boolean }) {
  const shown = shownAs(mime);
  const inline = shown !== null && !download;
  return {
    ...GUARDS,
    'content-type': shown === 'text/plain' ? 'text/plain; charset=utf-8' : (shown ?? 'application/octet-stream'),
    'content-disposition': disposition(inline ? 'inline' : 'attachment', name),
    ...(inline && shown === 'application/pdf' ? { 'content-security-policy': PDF_POLICY } : {}),
  };
}
