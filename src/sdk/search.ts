/** Searching what was decrypted, on this device: the server never sees a word of it. Pure. */
import type { JsonObject } from '../crypto/payload.js';
import type { ContentType } from '../protocol/item.js';

/**
 * The payload fields that a search looks at, by content type (SDK-07). What is secret (`password.secret`) is left
 * out, so that a list of hits never shows by itself what a password is.
 */
export const SEARCHED: Readonly<Record<ContentType, readonly string[]>> = {
  password: ['service', 'user'],
  link: ['url', 'title', 'desc', 'site'],
  text: ['text'],
  code: ['lang', 'label', 'text'],
  image: ['label'],
  file: ['name'],
  audio: ['label'],
  video: ['title'],
  contact: ['name', 'role', 'email', 'phone'],
  location: ['name', 'addr'],
};

/** Characters of a search text that count; the rest is left out. */
export const SEARCH_TEXT_MAX = 1_000;

/** Letters that are written with a stroke or joined, and that Unicode does not take apart. */
const PLAIN: Readonly<Record<string, string>> = {
  ø: 'o',
  ł: 'l',
  đ: 'd',
  ħ: 'h',
  æ: 'ae',
  œ: 'oe',
  ς: 'σ',
};

/**
 * A text as it is compared: without case, accents and differences of width; runs of white space are one space.
 * Upper case comes first because only it brings together what lower case keeps apart (ß and ss, dotless i).
 */
export const fold = (text: string): string =>
  text
    .normalize('NFKD')
    .replace(/\p{M}+/gu, '')
    .toUpperCase()
    .toLowerCase()
    .normalize('NFKD')
    .replace(/\p{M}+/gu, '')
    .replace(/[øłđħæœς]/g, (letter) => PLAIN[letter] ?? letter)
    .replace(/\s+/gu, ' ')
    .trim();

/** The words of a search, folded. None: everything is found. */
export const wordsOf = (text: string): readonly string[] => {
  const folded = fold(text.slice(0, SEARCH_TEXT_MAX));
  return folded === '' ? [] : folded.split(' ');
};

/** True where each word stands somewhere in the searched fields of the payload, in any field and any order. */
export function found(words: readonly string[], type: ContentType, payload: JsonObject | null): boolean {
  if (words.length === 0) return true;
  if (payload === null) return false;
  const texts = SEARCHED[type].flatMap((field) => {
    const value = Object.hasOwn(payload, field) ? payload[field] : undefined;
    return typeof value === 'string' ? [fold(value)] : [];
  });
  return words.every((word) => texts.some((text) => text.includes(word)));
}
