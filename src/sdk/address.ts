/** Addresses of servers as people type them, and the one text that holds an address and a pairing's words. */
import { normalizeWords } from '../crypto/words.js';
import { baseOf } from './http.js';

const MARK = '#pair=';

/** True for a host name that is this machine itself, where http is as good as https. */
export const isLocalHost = (host: string): boolean => /^(localhost|127\.[\d.]+|\[::1\]|.*\.localhost)$/.test(host);

/**
 * A server's address as typed, in the client's form; https where no scheme is given, http on this machine. Throws
 * `TypeError` for what is no address.
 */
export function serverAddress(typed: string): string {
  const text = typed.trim();
  return baseOf(/^[a-z][a-z0-9+.-]*:\/\//i.test(text) ? text : `${schemeFor(text)}://${text}`);
}

const schemeFor = (text: string): string =>
  isLocalHost((/^(\[[^\]]*\]|[^:/?#]*)/.exec(text)?.[0] ?? '').toLowerCase()) ? 'http' : 'https';

/**
 * A pairing offer as one text: `<server address>/#pair=<six words with hyphens>`. The words stand behind `#`, which no
 * program sends to a server.
 */
export const offerText = (serverUrl: string, words: string): string =>
  `${serverUrl}/${MARK}${normalizeWords(words).replaceAll(' ', '-')}`;

/** The two parts of such a text; undefined for any other. */
export function readOfferText(text: string): { readonly url: string; readonly words: string } | undefined {
  const at = text.indexOf(MARK);
  if (at <= 0) return undefined;
  return { url: text.slice(0, at), words: text.slice(at + MARK.length) };
}
