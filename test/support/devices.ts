/** Devices and items of tests, made by hand: real keys, real pairing calls, ciphertext of random bytes. */
import { randomBytes, randomInt } from 'node:crypto';
import { wordlist } from '@scure/bip39/wordlists/english.js';
import { nodeSodium } from '../../src/crypto/sodium-node.js';
import type { KeyPair } from '../../src/crypto/sodium.js';
import { until } from './events.js';
import type { Json, Reply, Shape, Wire } from './wire.js';

const CROCKFORD = '0123456789ABCDEFGHJKMNPQRSTVWXYZ';

/** A ULID of random characters: the server checks only their form. */
export function newId(): string {
  const bytes = randomBytes(26);
  return Array.from(bytes, (byte, index) => CROCKFORD[index === 0 ? byte % 8 : byte % 32]).join('');
}

/** Six words of BIP39's list, as a code has them; the server does not check their checksum. */
export const newCode = (): string => Array.from({ length: 6 }, () => wordlist[randomInt(wordlist.length)]).join(' ');

/** LP(x1..xn) of the page Cryptography. */
export const lp = (...parts: readonly (string | Uint8Array)[]): Buffer =>
  Buffer.concat(
    parts.flatMap((part) => {
      const bytes = Buffer.from(part as string);
      const length = Buffer.alloc(4);
      length.writeUInt32BE(bytes.length);
      return [length, bytes];
    }),
  );

export interface TestDevice {
  readonly id: string;
  readonly token: string;
  readonly keys: KeyPair;
  readonly name: string;
}

export const publicKeyOf = (device: Pick<TestDevice, 'keys'>): Buffer => Buffer.from(device.keys.publicKey);

/** Body of a bootstrap. */
export function claimBody(more: Readonly<Record<string, unknown>> = {}): Record<string, unknown> {
  return { name: 'first', glyph: 'laptop', pubkey: Buffer.from(nodeSodium.boxKeyPair().publicKey), ...more };
}

/** Claims a fresh server. */
export async function claim(wire: Wire, more: Readonly<Record<string, unknown>> = {}): Promise<TestDevice> {
  const keys = nodeSodium.boxKeyPair();
  const body = claimBody({ pubkey: Buffer.from(keys.publicKey), deviceId: newId(), ...more });
  const reply = await wire.post('/devices/bootstrap', body, { shape: 'a' });
  if (reply.status !== 200) throw new Error(`bootstrap: ${reply.status} ${reply.raw}`);
  return { id: reply.text('device.id'), token: reply.text('token'), keys, name: reply.text('device.name') };
}

export interface JoinOptions {
  readonly name?: string;
  readonly passwordTicket?: string;
  readonly deviceId?: string;
  /** Where the existing device talks, if not at the same instance. */
  readonly existingWire?: Wire;
}

/** What the new device sends in step 3; fields may be replaced. */
export function npkBody(code: string, more: Readonly<Record<string, unknown>> = {}): Record<string, unknown> {
  return {
    code,
    deviceId: newId(),
    host: 'localhost',
    pubkey: Buffer.from(nodeSodium.boxKeyPair().publicKey),
    name: 'joined',
    glyph: 'phone',
    attestation: randomBytes(32),
    ...more,
  };
}

/** What the existing device sends in step 4. */
export const wrapBody = (code: string, more: Readonly<Record<string, unknown>> = {}): Record<string, unknown> => ({
  code,
  wrappedMasterKey: randomBytes(80),
  deviceCert: randomBytes(32),
  confirmation: randomBytes(32),
  ...more,
});

/** Asks for the requests to `existing` until there is one. */
export async function waitForRequest(wire: Wire, existing: Pick<TestDevice, 'token'>): Promise<Json> {
  let found: readonly Json[] = [];
  await until('a pair request', async () => {
    found = (await wire.get('/devices/pair-requests', { token: existing.token, shape: 'a' })).list('requests');
    return found.length > 0;
  });
  return found[0] ?? {};
}

/** Pairs a new device through the four calls, shape A. */
export async function join(wire: Wire, existing: TestDevice, options: JoinOptions = {}): Promise<TestDevice> {
  const code = newCode();
  const keys = nodeSodium.boxKeyPair();
  const mine = { token: existing.token, shape: 'a' } as const;
  const existingWire = options.existingWire ?? wire;
  const started = await existingWire.post('/devices/pair-init', { code, epk: randomBytes(32) }, mine);
  if (started.status !== 200) throw new Error(`pair-init: ${started.status} ${started.raw}`);
  const { name = 'joined', deviceId = newId(), passwordTicket } = options;
  const body = npkBody(code, { pubkey: Buffer.from(keys.publicKey), name, deviceId, passwordTicket });
  const waiting = wire.post('/devices/pair-fetch-npk', body, { shape: 'a' });
  const refused = waiting.then((reply) => {
    throw new Error(`pair-fetch-npk answered before the wrap: ${reply.status} ${reply.raw}`);
  });
  await Promise.race([waitForRequest(existingWire, existing), refused]);
  refused.catch(() => undefined);
  const wrapped = await existingWire.post('/devices/pair-wrap', wrapBody(code), mine);
  if (wrapped.status !== 200) throw new Error(`pair-wrap: ${wrapped.status} ${wrapped.raw}`);
  const reply = await waiting;
  if (reply.status !== 200) throw new Error(`pair-fetch-npk: ${reply.status} ${reply.raw}`);
  return { id: reply.text('device.id'), token: reply.text('token'), keys, name };
}

/** An item write before a shape spells it. Bytes are raw. */
export interface TestItem {
  readonly id: string;
  readonly binId: string;
  readonly type: string;
  readonly ts: number;
  readonly ct: Buffer;
  readonly nonce: Buffer;
  readonly keys: Readonly<Record<string, Buffer>>;
  readonly master: { readonly nonce: Buffer; readonly ct: Buffer } | null;
  readonly sig: Buffer | null;
  readonly ifVersion?: number;
}

export const sealedFor = (...devices: readonly string[]): Record<string, Buffer> =>
  Object.fromEntries(devices.map((device) => [device, randomBytes(80)]));

/** What an item says of its blob. */
export interface BlobFields {
  readonly blobRef: string;
  readonly blobNonce: Buffer;
  readonly blobKeys: Readonly<Record<string, Buffer>>;
}

export const blobFields = (blobRef: string, ids: readonly string[]): BlobFields => ({
  ...{ blobRef, blobNonce: randomBytes(24), blobKeys: sealedFor(...ids) },
});

/** Keys as shape B lists them. */
export const wrappedOf = (keys: Readonly<Record<string, Buffer>>): Json[] =>
  Object.entries(keys).map(([deviceId, key]) => ({ deviceId, key }));

/** A valid text item in `inbox` for these devices. */
export function newItem(devices: readonly string[], more: Partial<TestItem> = {}): TestItem {
  return {
    id: newId(),
    binId: 'inbox',
    type: 'text',
    ts: Date.now(),
    ct: randomBytes(48),
    nonce: randomBytes(24),
    keys: sealedFor(...devices),
    master: { nonce: randomBytes(24), ct: randomBytes(48) },
    sig: randomBytes(32),
    ...more,
  };
}

/** The same item with other content and a later time, as an edit makes it. */
export const edited = (item: TestItem, more: Partial<TestItem> = {}): TestItem => ({
  ...item,
  ts: item.ts + 1,
  ct: randomBytes(48),
  nonce: randomBytes(24),
  sig: randomBytes(32),
  ...more,
});

/** The body of a write, before `spelled` gives it keys and base64 of its shape. */
export function writeBody(shape: Shape, item: TestItem): Record<string, unknown> {
  const { id, type, ts, ct, nonce, keys, master, sig, ifVersion } = item;
  const condition = ifVersion === undefined ? {} : { ifVersion };
  if (shape === 'a') {
    const payloadEnc = { ct, nonce, keys, ...(master ? { master } : {}), ...(sig ? { sig } : {}) };
    return { id, binId: item.binId, type, ts, payloadEnc, ...condition };
  }
  const wrapped = Object.entries(keys).map(([deviceId, key]) => ({ deviceId, key }));
  return { id, binId: item.binId, type, ts, ct, nonce, wrapped, master, sig, ...condition };
}

/** Writes an item as `device`. */
export async function write(
  wire: Wire,
  device: Pick<TestDevice, 'token'>,
  item: TestItem,
  shape: Shape = 'a',
): Promise<Reply> {
  return wire.post('/items', writeBody(shape, item), { token: device.token, shape });
}

/** Writes an item that must be accepted, and answers its version. */
export async function mustWrite(wire: Wire, device: Pick<TestDevice, 'token'>, item: TestItem): Promise<number> {
  const reply = await write(wire, device, item);
  if (reply.status !== 200) throw new Error(`write: ${reply.status} ${reply.raw}`);
  return reply.number('version');
}
