/**
 * A client from other hands: made from the reference's pages on pairing and cryptography, on the primitives of the
 * vectors (`test/vectors/reference.ts`) and plain JSON. Nothing of `src/` is used. What it opens it also makes again
 * from the opened content and compares, so that reading is proof byte for byte.
 */
import { randomBytes } from 'node:crypto';
import {
  aead,
  argon2,
  auth,
  b32,
  bip39Seed,
  blake2b,
  hex,
  hmacSha256,
  hsalsa20,
  join,
  lp,
  seal,
  secretbox,
  utf8,
  words,
  x25519,
  x25519Public,
  type Bytes,
} from '../vectors/reference.js';

export const raw = (text: unknown): Bytes => new Uint8Array(Buffer.from(String(text), 'base64'));
export const url = (bytes: Bytes): string => Buffer.from(bytes).toString('base64url');
export const draw = (length: number): Bytes => new Uint8Array(randomBytes(length));

/** A key pair of X25519. */
export interface Pair {
  readonly secret: Bytes;
  readonly open: Bytes;
}

export function pair(secret: Bytes = draw(32)): Pair {
  return { secret, open: x25519Public(secret) };
}

function same(one: Bytes, other: Bytes, what: string): void {
  if (hex(one) !== hex(other)) throw new Error(`${what}: ${hex(one)} is not ${hex(other)}`);
}

/** Opens by making: a stream cipher over the ciphertext gives the plaintext, and that sealed again must be the same. */
export function openAead(sealed: Bytes, input: { aad: Bytes; nonce: Bytes; key: Bytes }): Bytes {
  const message = aead(sealed.subarray(0, -16), input).subarray(0, -16);
  same(aead(message, input), sealed, 'ciphertext and tag');
  return message;
}

export function openSecretbox(sealed: Bytes, nonce: Bytes, key: Bytes): Bytes {
  const message = secretbox(sealed.subarray(16), nonce, key).subarray(16);
  same(secretbox(message, nonce, key), sealed, 'secretbox');
  return message;
}

export function openSealed(sealed: Bytes, own: Pair): Bytes {
  const ephemeral = sealed.subarray(0, 32);
  const nonce = blake2b(24, join(ephemeral, own.open));
  const key = hsalsa20(x25519(own.secret, ephemeral), new Uint8Array(16));
  return openSecretbox(sealed.subarray(32), nonce, key);
}

export const masterOf = (phrase: string): Promise<Bytes> =>
  argon2(32, bip39Seed(phrase), utf8('service/v1/master-salt'));

export const certOf = (master: Bytes, deviceId: string, npk: Bytes): Bytes =>
  auth(lp('service-device-v1', deviceId, npk), b32(utf8('service-device-cert-v1'), master));

const macKey = (master: Bytes): Bytes => b32(master, utf8('service-item-mac-v1'));

export const deleteTag = (master: Bytes, id: string): Bytes => auth(lp('service-item-delete-v1', id), macKey(master));

/** An item as JSON of shape A has it. */
export interface PlainItem {
  readonly id: string;
  readonly binId: string;
  readonly type: string;
  readonly ts: number;
  readonly payloadEnc: {
    readonly ct: string;
    readonly nonce: string;
    readonly keys: Readonly<Record<string, string>>;
    readonly master: { readonly nonce: string; readonly ct: string };
    readonly sig: string;
  };
}

const tagOf = (item: PlainItem, master: Bytes): Bytes => {
  const { id, binId, type, ts, payloadEnc } = item;
  return auth(
    lp('service-item-sig-v1', id, binId, type, String(ts), raw(payloadEnc.ct), raw(payloadEnc.nonce)),
    macKey(master),
  );
};

/** The payload's JSON text. Throws where tag, key, wrap or content is not exactly what the reference makes. */
export function readItem(item: PlainItem, master: Bytes, device: { readonly id: string; readonly keys: Pair }): string {
  const { type, ts, payloadEnc } = item;
  same(tagOf(item, master), raw(payloadEnc.sig), 'sig');
  const key = openSealed(raw(payloadEnc.keys[device.id]), device.keys);
  same(openSecretbox(raw(payloadEnc.master.ct), raw(payloadEnc.master.nonce), master), key, 'master wrap');
  const aad = utf8(`${type}|${ts}`);
  return Buffer.from(openAead(raw(payloadEnc.ct), { aad, nonce: raw(payloadEnc.nonce), key })).toString('utf8');
}

/** Makes an item for devices by id and public key. */
export function makeItem(
  head: Pick<PlainItem, 'id' | 'binId' | 'type' | 'ts'>,
  payload: string,
  { master, devices }: { readonly master: Bytes; readonly devices: ReadonlyMap<string, Bytes> },
): PlainItem {
  const [key, nonce, masterNonce] = [draw(32), draw(24), draw(24)];
  const ct = aead(utf8(payload), { aad: utf8(`${head.type}|${head.ts}`), nonce, key });
  const keys = Object.fromEntries([...devices].map(([id, npk]) => [id, url(seal(key, npk, draw(32)))]));
  const wrap = { nonce: url(masterNonce), ct: url(secretbox(key, masterNonce, master)) };
  const item = { ...head, payloadEnc: { ct: url(ct), nonce: url(nonce), keys, master: wrap, sig: '' } };
  return { ...item, payloadEnc: { ...item.payloadEnc, sig: url(tagOf(item, master)) } };
}

const metaKey = (master: Bytes): Bytes => b32(utf8('service-bin-meta-v1'), master);

/** A bin's meta: nonce, then ciphertext. */
export const makeMeta = (binId: string, meta: string, master: Bytes): Bytes => {
  const nonce = draw(24);
  return join(nonce, aead(utf8(meta), { aad: utf8(binId), nonce, key: metaKey(master) }));
};

export const readMeta = (binId: string, sealed: Bytes, master: Bytes): string => {
  const input = { aad: utf8(binId), nonce: sealed.subarray(0, 24), key: metaKey(master) };
  return Buffer.from(openAead(sealed.subarray(24), input)).toString('utf8');
};

export const newWords = (): string => words(draw(8));

/** What the visible words give both sides of a pairing. */
export async function codeOf(visible: string): Promise<{ readonly wire: string; readonly codeKey: Bytes }> {
  const prk = await argon2(64, utf8(visible), utf8('service-pair-salt-v1'));
  const wire = words(b32(utf8('service-pair-lookup-v1'), prk).subarray(0, 8));
  return { wire, codeKey: b32(utf8('service-pair-code-v1'), prk) };
}

/** What goes into a pairing's transcript. */
export interface Meeting {
  readonly wire: string;
  readonly host: string;
  readonly epk: Bytes;
  readonly npk: Bytes;
  readonly deviceId: string;
  readonly name: string;
  readonly glyph: string;
}

/** The link of two devices, from one side's own secret and the other side's public key. */
export function linkOf(meeting: Meeting, codeKey: Bytes, own: Bytes, other: Bytes) {
  const { wire, host, epk, npk, deviceId, name, glyph } = meeting;
  const transcript = lp('service-pair-v1', wire, host, epk, npk, deviceId, name, glyph);
  const secret = b32(lp(transcript, x25519(own, other)), codeKey);
  const hash = b32(transcript, secret);
  const digits = String(new DataView(hash.buffer, hash.byteOffset).getUint32(0) % 1_000_000).padStart(6, '0');
  const confirmation = (wrapped: Bytes, cert: Bytes): Bytes => hmacSha256(lp('confirm', wrapped, cert), secret);
  return { digits, attestation: hmacSha256(join(npk, epk), secret), confirmation };
}
