/** Server addresses as users type them, and the text that combines an address with the words of a pairing. */
import { normalizeWords } from '../crypto/words.js';
import { isLocalHost } from '../protocol/local-host.js';
import { baseOf } from './http.js';

const MARK = '#pair=';

/**
 * Normalizes an address as typed: without a scheme, https, or http for a loopback host. Throws `TypeError` for an
 * invalid address.
 */
export function serverAddress(typed: string): string {
  const text = typed.trim();
  return baseOf(/^[a-z][a-z0-9+.-]*:\/\//i.test(text) ? text : `${schemeFor(text)}://${text}`);
}

const schemeFor = (text: string): string =>
  isLocalHost((/^(\[[^\]]*\]|[^:/?#]*)/.exec(text)?.[0] ?? '').toLowerCase()) ? 'http' : 'https';

/**
 * A pairing offer as one text: `<server address>/#pair=<six words with hyphens>`. The words are in the fragment, which
 * clients never send to a server.
 */
export const offerText = (serverUrl: string, words: string): string =>
  `${serverUrl}/${MARK}${normalizeWords(words).replaceAll(' ', '-')}`;

/** Parses the result of `offerText`; undefined for any other text. */
export function readOfferText(text: string): { readonly url: string; readonly words: string } | undefined {
  const at = text.indexOf(MARK);
  if (at <= 0) return undefined;
  return { url: text.slice(0, at), words: text.slice(at + MARK.length) };
}
