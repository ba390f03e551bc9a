/** A small client, written from the reference's pages alone: one device in either shape. Nothing of `src/` is used. */
import { randomBytes } from 'node:crypto';
import { on, once } from 'node:events';
import WebSocket from 'ws';
import * as crypto from './cryptography.js';
import type { Code, Keys, Meeting, Pair, Sealed } from './cryptography.js';

type Shape = 'a' | 'b';
export type Json = Readonly<Record<string, unknown>>;

const CROCKFORD = '0123456789ABCDEFGHJKMNPQRSTVWXYZ';
export const newId = (): string => `0${[...randomBytes(25)].map((byte) => CROCKFORD[byte % 32]).join('')}`;
export const bytes = (text: unknown): Buffer => Buffer.from(String(text), 'base64');
export const url = (all: Buffer): string => all.toString('base64url');
const base64 = (all: Buffer): string => all.toString('base64');

/** A refusal, as the page on Errors has it. */
class Refusal extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly details: Json,
  ) {
    super(`${status} ${code}`);
  }
}

const snake = (name: string): string => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
const camel = (name: string): string => name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());

/** The same value with the names of its fields spelled in another way. */
function respell<T>(value: T, spell: (name: string) => string): T {
  if (Array.isArray(value)) return value.map((entry: unknown) => respell(entry, spell)) as T;
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, entry]) => [spell(name), respell(entry, spell)])) as T;
}

/** A body with the names of its fields as a shape spells them. */
export const respelled = (body: Json, shape: Shape): Json => (shape === 'b' ? respell(body, snake) : body);

// Items on the wire, their fields spelled as shape A spells them.

const keyMap = (keys: Keys): Json => Object.fromEntries([...keys].map(([id, key]) => [id, url(key)]));
const keyList = (keys: Keys): Json[] => [...keys].map(([deviceId, key]) => ({ deviceId, key: base64(key) }));

/** The body of a write. */
export function bodyOf({ id, binId, type, ts, ct, nonce, keys, master, sig, blob }: Sealed, shape: Shape): Json {
  const [text, keysOf] = shape === 'a' ? [url, keyMap] : [base64, keyList];
  const wrap = master ? { nonce: text(master.nonce), ct: text(master.ct) } : undefined;
  const signed = { master: wrap, sig: sig ? text(sig) : undefined };
  const head = { id, binId, type, ts };
  if (blob !== null && ct.length === 0) {
    const own = { nonce: text(blob.nonce), keys: keysOf(blob.keys) };
    return shape === 'a'
      ? { ...head, ...signed, blobRef: blob.ref, blobNonce: own.nonce, blobKeys: own.keys }
      : { ...head, ct: '', nonce: own.nonce, wrapped: own.keys, ...signed, blobRef: blob.ref };
  }
  const ofBlob = blob && { blobRef: blob.ref, blobNonce: text(blob.nonce), blobKeys: keysOf(blob.keys) };
  const inline = { ct: text(ct), nonce: text(nonce) };
  const content =
    shape === 'a'
      ? { payloadEnc: { ...inline, keys: keysOf(keys), ...signed } }
      : { ...inline, wrapped: keysOf(keys), ...signed };
  return { ...head, ...content, ...ofBlob };
}

function readKeys(keys: unknown): Keys {
  const entries = Array.isArray(keys)
    ? (keys as { deviceId: string; key: string }[]).map(({ deviceId, key }) => [deviceId, key] as const)
    : Object.entries((keys ?? {}) as Record<string, string>);
  return new Map(entries.map(([id, key]) => [id, field(key, 32, 256)]));
}

const bad = (): never => {
  throw new Error('bad_row');
};
/** Bytes of a field: at least `least` and at most `most`. Throws `bad_row`. */
function field(value: unknown, least: number, most = least): Buffer {
  const all = typeof value === 'string' && /^[\w+/-]*={0,2}$/.test(value) ? bytes(value) : bad();
  return all.length >= least && all.length <= most ? all : bad();
}
const textOf = (value: unknown): string => (typeof value === 'string' ? value : bad());

/** A live row of a page, or an `item` frame of either shape, that has inline content. Throws `bad_row`. */
export function readItem(given: Json): Sealed {
  const row = (given['item'] ?? given) as Record<'id' | 'binId' | 'itemType' | 'type' | 'blobRef', string> & Json;
  const inline = (row['payloadEnc'] ?? row) as Json;
  const wrap = inline['master'] as Json | null | undefined;
  const { id, binId, blobRef } = row;
  return {
    id: textOf(id),
    binId: textOf(binId),
    type: textOf(row.itemType ?? row.type),
    ts: Number.isSafeInteger(row['ts']) ? Number(row['ts']) : bad(),
    ct: field(inline['ct'], 16, 65_536),
    nonce: field(inline['nonce'], 24),
    keys: readKeys(inline['keys'] ?? inline['wrapped']),
    master: wrap ? { nonce: field(wrap['nonce'], 24), ct: field(wrap['ct'], 48) } : null,
    sig: inline['sig'] ? field(inline['sig'], 32) : null,
    blob: blobRef
      ? { ref: textOf(blobRef), nonce: field(row['blobNonce'], 24), keys: readKeys(row['blobKeys']) }
      : null,
  };
}

/** What the existing device keeps of step 1 of a pairing. */
interface Offer {
  readonly code: Code;
  readonly session: Pair;
}

/** A device: its keys, its token, and its calls. */
export class Device {
  readonly id = newId();
  readonly pair = crypto.newPair();
  master: Buffer = Buffer.alloc(0);
  tenantId = '';
  token = '';
  /** The ids of all device lists so far, each with whether the device was ever listed as revoked. */
  private readonly known = new Map<string, boolean>();

  constructor(
    readonly origin: string,
    readonly shape: Shape,
    readonly name: string,
  ) {}

  /** A request and its reply, both with the names of shape A. Throws `Refusal`. */
  async call<T = Json>(method: string, path: string, body?: Json): Promise<T> {
    const sent = body && JSON.stringify(respelled(body, this.shape));
    const headers: Record<string, string> = { 'X-Wire-Shape': this.shape };
    if (this.token !== '') headers['Authorization'] = `Bearer ${this.token}`;
    if (sent !== undefined) headers['Content-Type'] = 'application/json';
    const response = await fetch(`${this.origin}/api${path}`, { method, headers, body: sent, redirect: 'error' });
    const reply = this.read(await response.text());
    if (response.ok) return reply as T;
    const { code, details = {} } = reply['error'] as { readonly code: string; readonly details?: Json };
    throw new Refusal(response.status, code, details);
  }

  private read(text: string): Json {
    const value = JSON.parse(text) as Json;
    return this.shape === 'b' ? respell(value, camel) : value;
  }

  private get host(): string {
    return new URL(this.origin).hostname;
  }

  get reader(): crypto.Reader {
    return { master: this.master, device: this };
  }

  private get self() {
    return { deviceId: this.id, pubkey: url(this.pair.open), name: this.name, glyph: 'laptop' };
  }

  /** The end of claim, pairing and recovery. Throws where the server registered another device. */
  private joined(reply: Json, master: Buffer, tenantId: string): void {
    const device = reply['device'] as Json;
    crypto.expectOwn({ id: device['id'], pubkey: bytes(device['pubkey']) }, this);
    [this.master, this.tenantId, this.token] = [master, tenantId, String(reply['token'])];
  }

  /** Claims an empty tenant. Returns the phrase, for its user. */
  async claim(): Promise<string> {
    const phrase = crypto.words(randomBytes(16));
    const { master, recovery } = crypto.keysOfPhrase(phrase);
    const deviceCert = url(crypto.certificate(master, this.id, this.pair.open));
    const body = { ...this.self, deviceCert, recoveryPubkey: url(recovery.open) };
    this.joined(await this.call('POST', '/devices/bootstrap', body), master, '');
    this.tenantId = (await this.call<{ tenantId: string }>('GET', '/me')).tenantId;
    return phrase;
  }

  /** Pairing, step 1, with the words that the user sees. */
  async offer(visible: string): Promise<Offer> {
    const offer = { code: crypto.codeOf(visible), session: crypto.newPair() };
    await this.call('POST', '/devices/pair-init', { code: offer.code.wire, epk: url(offer.session.open) });
    return offer;
  }

  /** Pairing, step 4. Rejects a request that fails a check or that the user does not confirm, and throws the reason. */
  async approve({ code, session }: Offer, request: Json, confirm: (digits: string) => boolean): Promise<void> {
    const { deviceId, host, name, glyph } = request as Record<'deviceId' | 'host' | 'name' | 'glyph', string>;
    const npk = bytes(request['pubkey']);
    const asked = { deviceId, host, npk, name, glyph, attestation: bytes(request['attestation']) };
    let link: ReturnType<typeof crypto.linkOf>;
    try {
      link = crypto.judge(asked, { code, session, host: this.host, isKnown: (id) => this.known.has(id) });
      if (!confirm(link.digits)) throw new Error('rejected');
    } catch (error) {
      await this.call('POST', '/devices/pair-wrap', { code: code.wire, reject: true });
      throw error;
    }
    const [wrapped, cert] = [crypto.seal(this.master, npk), crypto.certificate(this.master, deviceId, npk)];
    const release = { wrappedMasterKey: url(wrapped), deviceCert: url(cert) };
    const confirmation = url(link.confirmation(wrapped, cert));
    await this.call('POST', '/devices/pair-wrap', { code: code.wire, ...release, confirmation });
  }

  /** Pairing, steps 2 and 3, on the new device. */
  async join(typed: string, show: (digits: string) => void): Promise<void> {
    const code = crypto.codeOf(crypto.readWords(typed, 6));
    const { epk, tenantId } = await this.call<Record<string, string>>('POST', '/devices/pair-fetch-epk', {
      code: code.wire,
    });
    const { self, host, pair } = this;
    const meeting: Meeting = { ...self, code, host, epk: bytes(epk), npk: pair.open };
    const link = crypto.linkOf(meeting, pair.secret, meeting.epk);
    show(link.digits);
    const body = { ...self, code: code.wire, host, attestation: url(link.attestation) };
    let reply: Json;
    do reply = await this.call('POST', '/devices/pair-fetch-npk', body);
    while (reply['status'] === 'pending');
    const [wrapped, cert] = [bytes(reply['wrappedMasterKey']), bytes(reply['deviceCert'])];
    const master = crypto.accept({ wrapped, cert, confirmation: bytes(reply['confirmation']) }, link, this);
    this.joined(reply, master, tenantId ?? '');
  }

  /** Registers this device by the twelve words, with a password ticket where the tenant has a password. */
  async recover(typed: string, passwordTicket?: string): Promise<void> {
    const { master, recovery } = crypto.keysOfPhrase(crypto.readWords(typed, 12));
    const asked = await this.call<Record<string, string>>('POST', '/devices/recover/challenge');
    const { challengeId = '', challenge, tenantId = '' } = asked;
    const { host, id, pair } = this;
    const cert = crypto.certificate(master, id, pair.open);
    const signed = [host, tenantId, challengeId, bytes(challenge), id, pair.open, cert];
    const signature = url(crypto.recoverySignature(recovery.secret, ...signed));
    const body = { ...this.self, challengeId, signature, host, deviceCert: url(cert), passwordTicket };
    this.joined(await this.call('POST', '/devices/recover', body), master, tenantId);
  }

  /** Gets a new token by proving that the device holds its secret key. Throws `bad_challenge`. */
  async renew(): Promise<void> {
    const { id: deviceId, tenantId, pair } = this;
    const asked = await this.call<Record<string, string>>('POST', '/devices/reauth/challenge', { deviceId });
    const { challengeId = '', challenge } = asked;
    const answer = crypto.answer(bytes(challenge), pair, [tenantId, deviceId, challengeId]);
    if (answer === undefined) throw new Error('bad_challenge');
    const body = { deviceId, challengeId, answer: url(answer) };
    this.token = (await this.call<{ token: string }>('POST', '/devices/reauth', body)).token;
  }

  /** A ticket for pairing or recovery, for the password that the user typed. */
  async ticket(typed: string): Promise<string> {
    const { tenantId } = await this.call<{ tenantId: string }>('GET', '/service/status');
    const body = { password: crypto.passwordOf(typed, tenantId), pubkey: url(this.pair.open) };
    return (await this.call<{ ticket: string }>('POST', '/password/verify', body)).ticket;
  }

  /** Public keys of all devices that items are sealed for. Throws where one is not certified, or was revoked before. */
  async recipients(): Promise<Keys> {
    const { devices } = await this.call<{ devices: Record<string, string | null>[] }>('GET', '/devices');
    const others: { id: string; open: Buffer; cert: Buffer }[] = [];
    for (const { id, pubkey, cert, revokedAt } of devices) {
      const gone = this.known.get(String(id)) === true;
      this.known.set(String(id), gone || revokedAt !== null);
      if (revokedAt !== null || id === this.id) continue;
      if (gone) throw new Error('uncertified_device');
      others.push({ id: String(id), open: bytes(pubkey), cert: bytes(cert) });
    }
    // Its own key is known, and is not taken from the list.
    return new Map([...crypto.certified(others, this.master), [this.id, this.pair.open]]);
  }

  /** Stores an item; returns its version. */
  async write(item: Sealed, ifVersion?: number): Promise<number> {
    const body = { ...bodyOf(item, this.shape), ifVersion };
    return (await this.call<{ version: number }>('POST', '/items', body)).version;
  }

  /** The item with keys for the devices that lack one, and without keys for other devices, to be sent as a write. */
  async rewrapped(item: Sealed): Promise<Sealed> {
    return crypto.rewrap(item, this.reader, await this.recipients());
  }

  async upload(content: Buffer): Promise<string> {
    const body = { [this.shape === 'a' ? 'contentLength' : 'size']: content.length };
    const room = await this.call<{ blobRef: string; url: string; headers: Record<string, string> }>(
      'POST',
      '/blobs/upload-url',
      body,
    );
    const put = { method: 'PUT', headers: room.headers, body: new Uint8Array(content), redirect: 'error' } as const;
    const response = await fetch(room.url, put);
    if (!response.ok) throw new Error(`the upload was answered ${response.status}`);
    return room.blobRef;
  }

  async download(ref: string): Promise<Buffer> {
    const { url: from } = await this.call<{ url: string }>('GET', `/blobs/${ref}/url`);
    return Buffer.from(await (await fetch(from, { redirect: 'error' })).arrayBuffer());
  }

  /** A socket after `hello`. `next`: the next frame, or the next one of a type; `closed`: the close code. */
  async connect(since = 0, epoch?: string) {
    const { ticket } = await this.call<{ ticket: string }>('POST', '/ws-ticket');
    const socket = new WebSocket(`${this.origin.replace('http', 'ws')}/ws?ticket=${ticket}&shape=${this.shape}`);
    const closed = once(socket, 'close').then(([code]: unknown[]) => Number(code));
    const frames = on(socket, 'message', { close: ['close'] });
    await once(socket, 'open');
    socket.send(JSON.stringify({ type: 'hello', since, epoch, acks: true }));
    const next = async (type?: string): Promise<Json> => {
      for (;;) {
        const { value, done } = (await frames.next()) as IteratorResult<[Buffer], undefined>;
        if (done === true) throw new Error(`closed before a frame ${type ?? ''}`);
        const frame = this.read(value[0].toString('utf8'));
        if (frame['type'] === 'ping') socket.send('{"type":"pong"}');
        if (type === undefined || frame['type'] === type) return frame;
      }
    };
    return { next, closed, close: () => socket.close() };
  }
}
