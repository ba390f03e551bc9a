/** How content is served: which part, as which media type, and under which policy. Pure. */

/** Bytes from `from` up to, not including, `to`. */
export interface Span {
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
/** Control characters, direction marks (a name must not look like another one), lone surrogates. */
const UNSEEN = /[\p{Cc}\p{Cs}\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu;

/** `Content-Disposition` with the name in both forms (RFC 6266). */
export function disposition(how: 'inline' | 'attachment', name: string): string {
  const clean =
    Array.from(name.replace(UNSEEN, '').replace(/[/\\]/g, '_').trim()).slice(0, NAME_MAX).join('') || 'file';
  const plain = clean.replace(/[^\x20-\x7e]|["%]/g, '_');
  const encoded = encodeURIComponent(clean).replace(/['()*!]/g, (char) => `%${char.charCodeAt(0).toString(16)}`);
  return `${how}; filename="${plain}"; filename*=UTF-8''${encoded}`;
}

/** For content, and for the responses that say why there is none. */
export const POLICY = "default-src 'none'; sandbox; frame-ancestors 'self'";
/** In some browsers the PDF viewer does not start in a sandbox. */
const PDF_POLICY = "default-src 'none'; frame-ancestors 'self'";

/** The response headers of content: type, name and policy. */
export function contentHeaders({ mime, name, download }: { mime: string; name: string; download: boolean }) {
  const shown = shownAs(mime);
  const inline = shown !== null && !download;
  return {
    'content-type': shown === 'text/plain' ? 'text/plain; charset=utf-8' : (shown ?? 'application/octet-stream'),
    'content-disposition': disposition(inline ? 'inline' : 'attachment', name),
    'content-security-policy': inline && shown === 'application/pdf' ? PDF_POLICY : POLICY,
    'x-content-type-options': 'nosniff',
    'cross-origin-resource-policy': 'same-origin',
    'referrer-policy': 'no-referrer',
    'cache-control': 'no-store',
  };
}
