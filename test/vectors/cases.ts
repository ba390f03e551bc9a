/** What the vector files have in common: their form, fixed test values, and the way in which bytes are altered. */
import { wordlist } from '@scure/bip39/wordlists/english.js';
import { blake2b, ed25519Public, hex, utf8, x25519Public, type Bytes } from './reference.js';

/** One vector. `expected` of a vector that is not valid names the reason of the refusal. */
export interface Vector {
  readonly comment: string;
  readonly input: Record<string, unknown>;
  readonly expected: Record<string, unknown>;
  readonly valid: boolean;
}

export const valid = (comment: string, input: Vector['input'], expected: Vector['expected']): Vector => ({
  comment,
  input,
  expected,
  valid: true,
});

export const refused = (comment: string, input: Vector['input'], reason: string): Vector => ({
  comment,
  input,
  expected: { reason },
  valid: false,
});

/** Test bytes that look random and are always the same. */
export const fixed = (label: string, length = 32): Bytes => blake2b(length, utf8(`service test vector: ${label}`));

/** Hex text with its last bit flipped. */
export const spoilt = (value: string): string =>
  `${value.slice(0, -2)}${(Number.parseInt(value.slice(-2), 16) ^ 1).toString(16).padStart(2, '0')}`;

export interface TestKeys {
  readonly publicKey: Bytes;
  readonly secretKey: Bytes;
}

/** An X25519 key pair, derived from a label. */
export function boxKeys(label: string): TestKeys {
  const secretKey = fixed(label);
  return { publicKey: x25519Public(secretKey), secretKey };
}

export const signPublic = (seed: Bytes): string => hex(ed25519Public(seed));

export const TENANT_ID = '01JAB0TENANT00000000000000';
export const CHALLENGE_ID = '01JAB0CHA11ENGE00000000000';
/** Two devices of one tenant. In byte order of their ids LAPTOP comes first. */
export const LAPTOP = { id: '01JAB0DEV1CE00000000000001', keys: boxKeys('laptop') };
export const PHONE = { id: '01JAB0DEV1CE00000000000002', keys: boxKeys('phone') };
export const MASTER_KEY = fixed('master key');

/** Public keys whose X25519 result is zero for every secret. */
export const LOW_ORDER_POINTS: readonly (readonly [name: string, point: string])[] = [
  ['zero', '00'.repeat(32)],
  ['one', `01${'00'.repeat(31)}`],
  ['a point of order 8', 'e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800'],
  ['p - 1', `ec${'ff'.repeat(30)}7f`],
  ['p, which is zero', `ed${'ff'.repeat(30)}7f`],
];

/** The same words with another last one, so that the checksum is wrong: the lowest bit of a code is a checksum bit. */
export function miscounted(words: string): string {
  const list = words.split(' ');
  const last = wordlist.indexOf(list.at(-1) ?? '');
  return [...list.slice(0, -1), wordlist[last ^ 1]].join(' ');
}
