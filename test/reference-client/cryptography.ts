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

/** Compares in constant time. */
export const equal = (one: Buffer, other: Buffer): boolean =>
  one.length === other.length && sodium.sodium_memcmp(one, other);

export const seal = (message: Buffer, to: Buffer): Buffer =>
  made(message.length + 48, (out) => sodium.crypto_box_seal(out, message, to));

/** Undefined for what does not open, as with `decrypt` and `openWrap`. */
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

/** Typed words in the canonical spelling that is hashed. Throws `bad_words`. */
export function readWords(typed: string, count: 6 | 12): string {
  const spaced = typed
    .normalize('NFKD')
    .toLowerCase()
    .replace(/[\s\p{Pd}]+/gu, ' ');
  const text = spaced.trim();
  if (text.split(' ').length !== count || words(bytesOfWords(text)) !== text) throw new Error('bad_words');
  return text;
}

export function bytesOfWords(text: string): Buffer {
  const bits = text.split(' ').map((word) => wordlist.indexOf(word).toString(2).padStart(11, '0'));
  const bytes = bits.join('').match(/.{8}/g) ?? [];
  return Buffer.from(bytes.slice(0, (bits.length * 4) / 3).map((byte) => parseInt(byte, 2)));
}

export const sha256 = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');

export function keysOfPhrase(phrase: string) {
  const seed = pbkdf2Sync(phrase, 'mnemonic', 2048, 64, 'sha512');
  const [open, secret] = [Buffer.alloc(32), Buffer.alloc(64)];
  const recoverySeed = argon2id(32, seed, b16('service/v1/recovery-salt'));
  sodium.crypto_sign_seed_keypair(open, secret, recoverySeed);
  const master = argon2id(32, seed, b16('service/v1/master-salt'));
  return { master, recovery: { open, secret }, seed, recoverySeed, itemMac: macKey(master) };
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

/** The devices for which items may be sealed, by id. Throws where a certificate does not verify. */
export function certified(
  devices: readonly { readonly id: string; readonly open: Buffer; readonly cert: Buffer }[],
  master: Buffer,
): Keys {
  for (const { id, open, cert } of devices)
    if (!equal(cert, certificate(master, id, open))) throw new Error('uncertified_device');
  return new Map(devices.map(({ id, open }) => [id, open]));
}

/** Throws where the server registered another device than this one. */
export function expectOwn(given: { readonly id: unknown; readonly pubkey: Buffer }, own: Reader['device']): void {
  if (given.id !== own.id || !equal(given.pubkey, own.pair.open)) throw new Error('wrong_device');
}

const shown = (hash: Buffer): string => (hash.toString('hex', 0, 16).match(/.{4}/g) ?? []).join(' ');
export const fingerprint = (id: string, open: Buffer): string => shown(b16(lp('service-fingerprint-v1', id, open)));
export const masterFingerprint = (master: Buffer): string => shown(b32('service-master-fingerprint-v1', master));

/** The answer to a challenge for tenant, device and challenge id; undefined for anything else. */
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

export function codeOf(visible: string): Code & { readonly prk: Buffer } {
  const prk = argon2id(64, visible, b16('service-pair-salt-v1'));
  const wire = words(b32('service-pair-lookup-v1', prk).subarray(0, 8));
  return { wire, key: b32('service-pair-code-v1', prk), prk };
}

/** What both devices of a pairing know about it. */
export interface Meeting {
  readonly code: Code;
  readonly host: string;
  readonly epk: Buffer;
  readonly npk: Buffer;
  readonly deviceId: string;
  readonly name: string;
  readonly glyph: string;
}

export const transcript = ({ code, host, epk, npk, deviceId, name, glyph }: Meeting): Buffer =>
  lp('service-pair-v1', code.wire, host, epk, npk, deviceId, name, glyph);

/** Throws `low_order` for a public key that makes every shared secret known. */
function x25519(own: Buffer, other: Buffer): Buffer {
  try {
    return made(32, (out) => sodium.crypto_scalarmult(out, own, other));
  } catch {
    throw new Error('low_order');
  }
}

/** What both devices compute from it, each with its own secret key and the other's public key. */
export function linkOf(meeting: Meeting, own: Buffer, other: Buffer) {
  const { code, epk, npk } = meeting;
  const t = transcript(meeting);
  const shared = x25519(own, other);
  const secret = b32(lp(t, shared), code.key);
  return {
    attestation: hmac(secret, Buffer.concat([npk, epk])),
    digits: String(b32(t, secret).readUInt32BE() % 1_000_000).padStart(6, '0'),
    secret,
    ...confirming(secret),
  };
}

export const confirming = (secret: Buffer) => ({
  confirmation: (wrapped: Buffer, cert: Buffer): Buffer => hmac(secret, lp('confirm', wrapped, cert)),
});

/** What the server passes on to the existing device about a new one. */
interface Request extends Pick<Meeting, 'deviceId' | 'host' | 'npk' | 'name' | 'glyph'> {
  readonly attestation: Buffer;
}

/** The existing device's checks, in their order. Throws the reason to reject the request. */
export function judge(
  request: Request,
  own: { readonly code: Code; readonly session: Pair; readonly host: string; isKnown: (id: string) => boolean },
): ReturnType<typeof linkOf> {
  const { code, session } = own;
  if (request.host !== own.host) throw new Error('wrong_host');
  if (own.isKnown(request.deviceId)) throw new Error('known_device');
  const link = linkOf({ ...request, code, epk: session.open }, session.secret, request.npk);
  if (!equal(link.attestation, request.attestation)) throw new Error('bad_attestation');
  return link;
}

/** What the new device receives. */
interface Release {
  readonly wrapped: Buffer;
  readonly cert: Buffer;
  readonly confirmation: Buffer;
}

/** The new device's checks. Returns the master key; throws the reason to discard everything. */
export function accept(
  { wrapped, cert, confirmation }: Release,
  link: Pick<ReturnType<typeof linkOf>, 'confirmation'>,
  { id, pair }: Reader['device'],
): Buffer {
  if (!equal(link.confirmation(wrapped, cert), confirmation)) throw new Error('bad_confirmation');
  const master = openSeal(wrapped, pair);
  if (!is32(master)) throw new Error('bad_wrap');
  if (!equal(cert, certificate(master, id, pair.open))) throw new Error('bad_cert');
  return master;
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

export const aadOf = ({ type, ts }: Pick<Sealed, 'type' | 'ts'>): string => `${type}|${ts}`;
const macKey = (master: Buffer): Buffer => b32(master, raw('service-item-mac-v1'));

export function tagInput({ id, binId, type, ts, ct, nonce, blob }: Sealed): Buffer {
  const keys = [...(blob?.keys ?? [])].sort(([one], [other]) => (one < other ? -1 : 1));
  const ofBlob = blob === null ? [] : [blob.ref, blob.nonce, String(keys.length), ...keys.flat()];
  return lp('service-item-sig-v1', id, binId, type, String(ts), ct, nonce, ...ofBlob);
}

export const tag = (item: Sealed, master: Buffer): Buffer => auth(tagInput(item), macKey(master));

export const deleteTag = (id: string, master: Buffer): Buffer => auth(lp('service-item-delete-v1', id), macKey(master));

export const sealFor = (key: Buffer, devices: Keys): Keys =>
  new Map([...devices].map(([id, open]) => [id, seal(key, open)]));

type Head = Pick<Sealed, 'id' | 'binId' | 'type' | 'ts'>;

function wrapFor(key: Buffer, master: Buffer): Sealed['master'] {
  const nonce = randomBytes(24);
  return { nonce, ct: made(48, (out) => sodium.crypto_secretbox_easy(out, key, nonce, master)) };
}

/** Makes an item for devices by id and public key. `json`: the payload's text; `blob`: uploaded under `key`. */
export function sealItem(
  head: Head,
  json: string,
  by: { readonly master: Buffer; readonly devices: Keys; readonly key?: Buffer; readonly blob?: Sealed['blob'] },
): Sealed {
  const { devices, key = randomBytes(32), blob = null } = by;
  const nonce = randomBytes(24);
  const ct = encrypt(raw(json), { key, nonce, aad: aadOf(head) });
  const item = { ...head, ct, nonce, keys: sealFor(key, devices), master: wrapFor(key, by.master), sig: null, blob };
  return { ...item, sig: tag(item, by.master) };
}

/** The reader of an item. */
export interface Reader {
  readonly master: Buffer;
  readonly device: { readonly id: string; readonly pair: Pair };
}

const is32 = (key: Buffer | undefined): key is Buffer => key?.length === 32;
const own = (keys: Keys | undefined, { id, pair }: Reader['device']): Buffer | undefined =>
  openSeal(keys?.get(id), pair);

export function openWrap(wrap: Sealed['master'], master: Buffer): Buffer | undefined {
  const box = Buffer.alloc(32);
  return wrap !== null && sodium.crypto_secretbox_open_easy(box, wrap.ct, wrap.nonce, master) ? box : undefined;
}

/** An item's keys, in the order in which they are tried: the tag covers only those of `blobKeys`, which come first. */
function offered({ master: wrap, blob, keys }: Sealed, { master, device }: Reader): Buffer[] {
  const found = [own(blob?.keys, device), openWrap(wrap, master), own(keys, device)].filter(is32);
  if (found.length === 0) throw new Error('no_key');
  return found;
}

function verify(item: Sealed, master: Buffer): void {
  if (item.sig === null) throw new Error('no_sig');
  if (!equal(item.sig, tag(item, master))) throw new Error('bad_sig');
}

const DEPTH_MAX = 64;

/** The text of a payload, which must be a JSON object. */
function payloadText(plain: Buffer): string {
  const tooDeep = (value: unknown, level: number): boolean =>
    typeof value === 'object' &&
    value !== null &&
    (level > DEPTH_MAX || Object.values(value).some((inner) => tooDeep(inner, level + 1)));
  try {
    const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(plain);
    const value = JSON.parse(text) as unknown;
    if (typeof value !== 'object' || value === null || Array.isArray(value) || tooDeep(value, 1)) throw new Error();
    return text;
  } catch {
    throw new Error('bad_payload');
  }
}

/**
 * Verifies and opens an item. Returns the key that opened it, and its payload's text; for a blob without metadata the
 * first key, and `json` is null. Throws the reason of a refusal.
 */
export function openItem(item: Sealed, by: Reader): { readonly key: Buffer; readonly json: string | null } {
  verify(item, by.master);
  const keys = offered(item, by);
  const [first] = keys;
  if (item.ct.length === 0 && first !== undefined) return { key: first, json: null };
  for (const key of keys) {
    const json = decrypt(item.ct, { key, nonce: item.nonce, aad: aadOf(item) });
    if (json !== undefined) return { key, json: payloadText(json) };
  }
  throw new Error('bad_ct');
}

/**
 * The item for these devices: keys for those that lack one, none for others, and a new tag. The key that is passed on
 * decrypted the item, or is one of `blobKeys`. Throws as `openItem`.
 */
export function rewrap(item: Sealed, by: Reader, devices: Keys): Sealed {
  verify(item, by.master);
  const bound = own(item.blob?.keys, by.device);
  if (item.ct.length === 0 && bound === undefined) throw new Error('no_key');
  const key = item.ct.length === 0 && bound !== undefined ? bound : openItem(item, by).key;
  const completed = (keys: Keys, of: Buffer): Keys =>
    new Map([...devices].map(([id, open]) => [id, keys.get(id) ?? seal(of, open)]));
  const blob = item.blob && { ...item.blob, keys: completed(item.blob.keys, bound ?? key) };
  const keys = item.ct.length === 0 ? item.keys : completed(item.keys, key);
  const next = { ...item, keys, blob, master: item.master ?? wrapFor(key, by.master) };
  return { ...next, sig: tag(next, by.master) };
}

// Blobs and bins.

const CHUNK = 65_536;
export const newBlobNonce = (): Buffer => Buffer.concat([randomBytes(19), Buffer.alloc(5)]);

/** The chunks of a blob, of `size` bytes each but the last, each with the nonce of its position. */
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

/** A blob's content, opened with the first key of its item that decrypts it. Throws the reason of a refusal. */
export function openBlob(bytes: Buffer, item: Sealed, by: Reader): Buffer {
  verify(item, by.master);
  const nonce = item.blob?.nonce ?? Buffer.alloc(0);
  for (const key of offered(item, by)) {
    try {
      return openPieces(bytes, nonce, { key, aad: aadOf(item) });
    } catch {
      // The next key may be the blob's.
    }
  }
  throw new Error('bad_ct');
}

/** A blob in chunks, or in one piece where its nonce does not end in five zero bytes. Throws `bad_ct`. */
export function openPieces(bytes: Buffer, nonce: Buffer, { key, aad }: Omit<Aead, 'nonce'>): Buffer {
  const whole = nonce.subarray(19).some((byte) => byte !== 0);
  const pieces = whole ? [{ text: bytes, nonce }] : chunks(bytes, CHUNK + 16, nonce);
  const parts = pieces.map((piece) => decrypt(piece.text, { key, nonce: piece.nonce, aad }));
  const opened = parts.filter((part) => part !== undefined);
  // Only a single chunk may be empty.
  if (opened.length < parts.length || (parts.length > 1 && opened.at(-1)?.length === 0)) throw new Error('bad_ct');
  return Buffer.concat(opened);
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
  return payloadText(json);
}
