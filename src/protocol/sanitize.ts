/** Makes untrusted text (names, messages of a server) safe to display: it can neither control a terminal nor hide. */
import { SEEN, UNSAFE } from './ids.js';

const SEEN_OR_UNSAFE = new RegExp(`(${SEEN.source})|${UNSAFE.source}`, 'gu');

const escaped = (found: string, seen: string | undefined): string =>
  seen ?? `<U+${(found.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, '0')}>`;

/** As the Markdown library writes them, whose output is processed further. */
const ENTITIES: Readonly<Record<string, string>> = { '&': 'amp', '<': 'lt', '>': 'gt', '"': 'quot', "'": '#39' };

/** Escapes text for HTML, including quoted attributes. */
export const escapeHtml = (text: string): string =>
  text.replace(/[&<>"']/g, (character) => `&${ENTITIES[character] ?? ''};`);

/** One line: white space is folded into single spaces, unsafe characters are written as `<U+XXXX>`. */
export const sanitizeText = (text: string): string =>
  text.replace(/\s+/gu, ' ').trim().replace(SEEN_OR_UNSAFE, escaped);

/** The same for text of several lines; line breaks and tabs are kept. */
export const sanitizeLines = (text: string): string =>
  text
    .replace(/\r\n?/g, '\n')
    .replace(SEEN_OR_UNSAFE, (found, seen?: string) =>
      found === '\n' || found === '\t' ? found : escaped(found, seen),
    );
