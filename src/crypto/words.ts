/**
 * Bytes as BIP39 English words: one checksum bit, from SHA-256, for every 32 bits. Eight bytes are six words (pairing
 * codes), sixteen are twelve (the recovery phrase).
 */
import { wordlist } from '@scure/bip39/wordlists/english.js';
import { CryptoRefusal } from './refusal.js';
import { erasing, type Sodium } from './sodium.js';

const BITS_PER_WORD = 11;
const index = new Map(wordlist.map((word, at) => [word, at]));

/**
 * The canonical form of typed words: NFKD, lower case, every run of hyphens and white space one space (CRYPTO-13). All
 * of Unicode's dashes count as hyphens: phones substitute them.
 */
export function normalizeWords(value: string): string {
  return value
    .normalize('NFKD')
    .toLowerCase()
    .replace(/[\s\p{Pd}]+/gu, ' ')
    .trim();
}

/** The low `count` bits of each value, high bit first. */
function bitsOf(values: Iterable<number>, count: number): number[] {
  const bits: number[] = [];
  for (const value of values) for (let at = count - 1; at >= 0; at--) bits.push((value >> at) & 1);
  return bits;
}

/** The reverse of `bitsOf`: numbers of `count` bits each. */
function valuesOf(bits: readonly number[], count: number): number[] {
  const values: number[] = [];
  for (let at = 0; at < bits.length; at += count)
    values.push(bits.slice(at, at + count).reduce((value, bit) => (value << 1) | bit, 0));
  return values;
}

/** Bytes (a multiple of four, at most 32) as words separated by spaces. */
export function encodeWords(sodium: Sodium, bytes: Uint8Array): string {
  if (bytes.length === 0 || bytes.length > 32 || bytes.length % 4 !== 0)
    throw new CryptoRefusal('bad_length', `words stand for 4 to 32 bytes in steps of 4, got ${bytes.length}`);
  const checksum = bitsOf(sodium.sha256(bytes), 8).slice(0, bytes.length / 4);
  return valuesOf([...bitsOf(bytes, 8), ...checksum], BITS_PER_WORD)
    .map((at) => wordlist[at])
    .join(' ');
}

/** Words that encode `length` fresh random bytes. */
export const drawWords = (sodium: Sodium, length: number): string =>
  erasing(sodium, sodium.random(length), (bytes) => encodeWords(sodium, bytes));

/** Whether a word is in the list, as typed: a misspelt one can be named before all are there. */
export const isListed = (word: string): boolean => index.has(normalizeWords(word));

/**
 * Reads `count` typed words (a multiple of three) and verifies their checksum. Returns their canonical text, which is
 * hashed and sent, and the bytes that they encode. Throws `bad_words` for another count, a word outside the list or a
 * wrong checksum; the message does not quote the words.
 */
export function decodeWords(sodium: Sodium, typed: string, count: number) {
  const normalized = normalizeWords(typed);
  const words = normalized === '' ? [] : normalized.split(' ');
  if (words.length !== count) throw new CryptoRefusal('bad_words', `expected ${count} words, got ${words.length}`);
  const indexes = words.map((word, at) => {
    const found = index.get(word);
    if (found === undefined) throw new CryptoRefusal('bad_words', `word ${at + 1} is not in the list`);
    return found;
  });
  const length = (count / 3) * 4;
  const bytes = Uint8Array.from(valuesOf(bitsOf(indexes, BITS_PER_WORD).slice(0, length * 8), 8));
  if (encodeWords(sodium, bytes) !== normalized)
    throw new CryptoRefusal('bad_words', 'one of the words is wrong, or they are in another order');
  return { text: normalized, bytes };
}
