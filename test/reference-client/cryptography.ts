/** The reference's page on Cryptography, on libsodium's primitives. Nothing of `src/` is used. */
import { createHash, createHmac, pbkdf2Sync, randomBytes } from 'node:crypto';
import { wordlist } from '@scure/bip39/wordlists/english.js';
import sodium from 'sodium-native';

type Part = string | Buffer;
export type Keys = ReadonlyMap<string, Buffer>;

const raw = (part: Part): Buffer => (typeof part === 'string' ? Buffer.from(part, 'utf8') : part);

/** Bytes that a primitive writes. */
function made(length: number, write: (out: Buffer) => void): Buffer {
  const out = Buffer.alloc(length);
  write(out);
  return out;
}

export function lp(...parts: readonly Part[]): Buffer {
  const length = (part: Buffer): Buffer => made(4, (out) => out.writeUInt32BE(part.length));
  return Buffer.concat(parts.map(raw).flatMap((part) => [length(part), part]));
}

const b32 = (message: Part, key: Buffer): Buffer =>
  made(32, (out) => sodium.crypto_generichash(out, raw(message), key));
const b16 = (message: Part): Buffer => made(16, (out) => sodium.crypto_generichash(out, raw(message)));
const auth = (message: Buffer, key: Buffer): Buffer => made(32, (out) => sodium.crypto_auth(out, message, key));
const hmac = (key: Buffer, message: Buffer): Buffer => createHmac('sha256', key).update(message).digest();

const argon2id = (length: number, password: Part, salt: Buffer): Buffer =>
  made(length, (out) =>
    sodium.crypto_pwhash(out, raw(password), salt, 3, 64 * 1024 * 1024, sodium.crypto_pwhash_ALG_ARGON2ID13),
  );

/** In constant time. */
export const equal = (one: Buffer, other: Buffer): boolean =>
  one.length === other.length && sodium.sodium_memcmp(one, other);

export const seal = (message: Buffer, to: Buffer): Buffer =>
  made(message.length + 48, (out) => sodium.crypto_box_seal(out, message, to));

/** Undefined for what does not open, as with the other two below. */
export function openSeal(sealed: Buffer | undefined, { open, secret }: Pair): Buffer | undefined {
  if (sealed === undefined || sealed.length < 48) return undefined;
  const out = Buffer.alloc(sealed.length - 48);
  return sodium.crypto_box_seal_open(out, sealed, open, secret) ? out : undefined;
}

interface Aead {
  readonly key: Buffer;
  readonly nonce: Buffer;
  readonly aad: string;
}

const encrypt = (text: Buffer, { key, nonce, aad }: Aead): Buffer =>
  made(text.length + 16, (out) =>
    sodium.crypto_aead_xchacha20poly1305_ietf_encrypt(out, text, raw(aad), null, nonce, key),
  );

function decrypt(ct: Buffer, { key, nonce, aad }: Aead): Buffer | undefined {
  if (ct.length < 16) return undefined;
  try {
    return made(ct.length - 16, (out) =>
      sodium.crypto_aead_xchacha20poly1305_ietf_decrypt(out, null, ct, raw(aad), nonce, key),
    );
  } catch {
    return undefined;
  }
}

// Words and the phrase.

export function words(bytes: Buffer): string {
  const bits = (all: Buffer): string => [...all].map((byte) => byte.toString(2).padStart(8, '0')).join('');
  const checksum = bits(createHash('sha256').update(bytes).digest()).slice(0, bytes.length / 4);
  const groups = (bits(bytes) + checksum).match(/.{11}/g) ?? [];
  return groups.map((group) => wordlist[parseInt(group, 2)]).join(' ');
}

/** What a person typed, in the one spelling that is hashed. */
export function readWords(typed: string, count: 6 | 12): string {
  const spaced = typed
    .normalize('NFKD')
    .toLowerCase()
    .replace(/[\s\p{Pd}]+/gu, ' ');
  const text = spaced.trim();
  const bits = text.split(' ').map((word) => wordlist.indexOf(word).toString(2).padStart(11, '0'));
  const bytes = bits.join('').match(/.{8}/g) ?? [];
  const back = Buffer.from(bytes.slice(0, (count * 4) / 3).map((byte) => parseInt(byte, 2)));
  if (bits.length !== count || words(back) !== text) throw new Error('bad_words');
  return text;
}

export function keysOfPhrase(phrase: string): { readonly master: Buffer; readonly recovery: Pair } {
  const seed = pbkdf2Sync(phrase, 'mnemonic', 2048, 64, 'sha512');
  const [open, secret] = [Buffer.alloc(32), Buffer.alloc(64)];
  sodium.crypto_sign_seed_keypair(open, secret, argon2id(32, seed, b16('service/v1/recovery-salt')));
  return { master: argon2id(32, seed, b16('service/v1/master-salt')), recovery: { open, secret } };
}

export const passwordOf = (typed: string, tenantId: string): string =>
  argon2id(32, typed.normalize('NFKD'), b16(lp('service-password-v1', tenantId))).toString('base64url');

// Devices.

export interface Pair {
  readonly open: Buffer;
  readonly secret: Buffer;
}

export function newPair(): Pair {
  const [open, secret] = [Buffer.alloc(32), Buffer.alloc(32)];
  sodium.crypto_box_keypair(open, secret);
  return { open, secret };
}

export const certificate = (master: Buffer, id: string, open: Buffer): Buffer =>
  auth(lp('service-device-v1', id, open), b32('service-device-cert-v1', master));

const shown = (hash: Buffer): string => (hash.toString('hex', 0, 16).match(/.{4}/g) ?? []).join(' ');
export const fingerprint = (id: string, open: Buffer): string => shown(b16(lp('service-fingerprint-v1', id, open)));
export const masterFingerprint = (master: Buffer): string => shown(b32('service-master-fingerprint-v1', master));

/** The answer to a challenge for tenant, device and challenge id; undefined for what is none. */
export function answer(challenge: Buffer, own: Pair, ids: readonly [string, string, string]): Buffer | undefined {
  const opened = openSeal(challenge, own);
  const r = opened?.subarray(-32);
  if (opened === undefined || r === undefined || !equal(opened, lp('service-reauth-v1', ...ids, r))) return undefined;
  return hmac(r, lp('service-reauth-answer-v1', ...ids));
}

export const recoverySignature = (secret: Buffer, ...parts: readonly Part[]): Buffer =>
  made(64, (out) => sodium.crypto_sign_detached(out, lp('service-recover-v1', ...parts), secret));

// Pairing.

export interface Code {
  readonly wire: string;
  readonly key: Buffer;
}

export function codeOf(visible: string): Code {
  const prk = argon2id(64, visible, b16('service-pair-salt-v1'));
  const wire = words(b32('service-pair-lookup-v1', prk).subarray(0, 8));
  return { wire, key: b32('service-pair-code-v1', prk) };
}

/** What both devices of a pairing know of it. */
export interface Meeting {
  readonly code: Code;
  readonly host: string;
  readonly epk: Buffer;
  readonly npk: Buffer;
  readonly deviceId: string;
  readonly name: string;
  readonly glyph: string;
}

/** Throws `low_order` for a public key with which every secret is known. */
function x25519(own: Buffer, other: Buffer): Buffer {
  try {
    return made(32, (out) => sodium.crypto_scalarmult(out, own, other));
  } catch {
    throw new Error('low_order');
  }
}

/** What both compute of it, each with its own secret key and the other's public key. */
export function linkOf({ code, host, epk, npk, deviceId, name, glyph }: Meeting, own: Buffer, other: Buffer) {
  const t = lp('service-pair-v1', code.wire, host, epk, npk, deviceId, name, glyph);
  const shared = x25519(own, other);
  const secret = b32(lp(t, shared), code.key);
  return {
    attestation: hmac(secret, Buffer.concat([npk, epk])),
    digits: String(b32(t, secret).readUInt32BE() % 1_000_000).padStart(6, '0'),
    confirmation: (wrapped: Buffer, cert: Buffer): Buffer => hmac(secret, lp('confirm', wrapped, cert)),
  };
}

// Items.

/** An item as it is sent, whatever the shape. */
export interface Sealed {
  readonly id: string;
  readonly binId: string;
  readonly type: string;
  readonly ts: number;
  readonly ct: Buffer;
  readonly nonce: Buffer;
  readonly keys: Keys;
  readonly master: { readonly nonce: Buffer; readonly ct: Buffer } | null;
  readonly sig: Buffer | null;
  readonly blob: { readonly ref: string; readonly nonce: Buffer; readonly keys: Keys } | null;
}

const aadOf = ({ type, ts }: Pick<Sealed, 'type' | 'ts'>): string => `${type}|${ts}`;
const macKey = (master: Buffer): Buffer => b32(master, raw('service-item-mac-v1'));

export function tag({ id, binId, type, ts, ct, nonce, blob }: Sealed, master: Buffer): Buffer {
  const keys = [...(blob?.keys ?? [])].sort(([one], [other]) => (one < other ? -1 : 1));
  const ofBlob = blob === null ? [] : [blob.ref, blob.nonce, String(keys.length), ...keys.flat()];
  return auth(lp('service-item-sig-v1', id, binId, type, String(ts), ct, nonce, ...ofBlob), macKey(master));
}

export const deleteTag = (id: string, master: Buffer): Buffer => auth(lp('service-item-delete-v1', id), macKey(master));

export const sealFor = (key: Buffer, devices: Keys): Keys =>
  new Map([...devices].map(([id, open]) => [id, seal(key, open)]));

type Head = Pick<Sealed, 'id' | 'binId' | 'type' | 'ts'>;

/** Makes an item for devices by id and public key. `json`: the payload's text; `blob`: uploaded under `key`. */
export function sealItem(
  head: Head,
  json: string,
  by: { readonly master: Buffer; readonly devices: Keys; readonly key?: Buffer; readonly blob?: Sealed['blob'] },
): Sealed {
  const { devices, key = randomBytes(32), blob = null } = by;
  const [nonce, wrapNonce] = [randomBytes(24), randomBytes(24)];
  const wrap = made(48, (out) => sodium.crypto_secretbox_easy(out, key, wrapNonce, by.master));
  const ct = encrypt(raw(json), { key, nonce, aad: aadOf(head) });
  const master = { nonce: wrapNonce, ct: wrap };
  const item = { ...head, ct, nonce, keys: sealFor(key, devices), master, sig: null, blob };
  return { ...item, sig: tag(item, by.master) };
}

/** Verifies and opens an item: its key, and its payload's text. Throws the reason of a refusal. */
export function openItem(item: Sealed, master: Buffer, device: { readonly id: string; readonly pair: Pair }) {
  if (item.sig === null) throw new Error('no_sig');
  if (!equal(item.sig, tag(item, master))) throw new Error('bad_sig');
  const own = (keys?: Keys): Buffer | undefined => openSeal(keys?.get(device.id), device.pair);
  const box = Buffer.alloc(32);
  const { master: wrap, nonce } = item;
  const opens = wrap !== null && sodium.crypto_secretbox_open_easy(box, wrap.ct, wrap.nonce, master);
  const offered = [own(item.blob?.keys), opens ? box : undefined, own(item.keys)].filter((key) => key !== undefined);
  if (offered.length === 0) throw new Error('no_key');
  for (const key of offered) {
    const json = decrypt(item.ct, { key, nonce, aad: aadOf(item) });
    if (json !== undefined) return { key, json: json.toString('utf8') };
  }
  throw new Error('bad_ct');
}

// Blobs and bins.

const CHUNK = 65_536;
export const newBlobNonce = (): Buffer => Buffer.concat([randomBytes(19), Buffer.alloc(5)]);

/** The chunks of a blob, of `size` bytes each but the last, each with the nonce of its place. */
function chunks(all: Buffer, size: number, blobNonce: Buffer): { readonly text: Buffer; readonly nonce: Buffer }[] {
  const count = Math.max(1, Math.ceil(all.length / size));
  return Array.from({ length: count }, (_, i) => {
    const place = made(5, (out) => out.writeUInt32BE(i));
    place[4] = i === count - 1 ? 1 : 0;
    return { text: all.subarray(i * size, (i + 1) * size), nonce: Buffer.concat([blobNonce.subarray(0, 19), place]) };
  });
}

export const sealBlob = (content: Buffer, head: Head, { key, nonce }: Pick<Aead, 'key' | 'nonce'>): Buffer =>
  Buffer.concat(chunks(content, CHUNK, nonce).map((c) => encrypt(c.text, { key, nonce: c.nonce, aad: aadOf(head) })));

export function openBlob(bytes: Buffer, item: Sealed, key: Buffer): Buffer {
  const parts = chunks(bytes, CHUNK + 16, item.blob?.nonce ?? Buffer.alloc(0)).map(({ text, nonce }) => {
    const part = decrypt(text, { key, nonce, aad: aadOf(item) });
    if (part === undefined) throw new Error('bad_ct');
    return part;
  });
  return Buffer.concat(parts);
}

const metaKey = (master: Buffer): Buffer => b32('service-bin-meta-v1', master);

export function sealMeta(json: string, binId: string, master: Buffer): Buffer {
  const nonce = randomBytes(24);
  return Buffer.concat([nonce, encrypt(raw(json), { key: metaKey(master), nonce, aad: binId })]);
}

export function openMeta(meta: Buffer, binId: string, master: Buffer): string {
  const sealed = { key: metaKey(master), nonce: meta.subarray(0, 24), aad: binId };
  const json = decrypt(meta.subarray(24), sealed);
  if (json === undefined) throw new Error('bad_ct');
  return json.toString('utf8');
}
