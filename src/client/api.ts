/** The endpoints as typed calls. Each says whether repeating it is harmless; nothing else is decided here. */
import { toBase64Url } from '../protocol/base64.js';
import { PAGE_DEFAULT_A, PAIR_HOLD_MS } from '../protocol/limits.js';
import type {
  BinCreateBody,
  BinPatchBody,
  BootstrapBody,
  DevicePatchBody,
  Glyph,
  PairFetchNpkBody,
  PairWrapBody,
  RecoverBody,
} from '../protocol/requests.js';
import type { Call, HttpReply } from './http.js';
import type { Reader } from './reader.js';
import * as replies from './replies.js';

/** Text of a body that holds bytes elsewhere: the wire's base64url. */
export const wireBytes = toBase64Url;

interface Send {
  readonly method?: 'GET' | 'POST' | 'PATCH' | 'DELETE';
  readonly path: string;
  readonly query?: Readonly<Record<string, string | number | null>>;
  readonly body?: unknown;
  /** In the place of `body`: JSON that is text already. */
  readonly json?: string;
  /** Default: true for GET only. */
  readonly repeatable?: boolean;
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
}

async function ask(call: Call, send: Send): Promise<HttpReply> {
  const method = send.method ?? (send.body === undefined ? 'GET' : 'POST');
  return call({ ...send, method, repeatable: send.repeatable ?? method === 'GET' });
}

async function read<T>(call: Call, send: Send, reader: Reader<T>): Promise<T> {
  return reader((await ask(call, send)).body, send.path);
}

/** A held call is answered after 25 s at the latest; the rest is the network's. */
const HELD_MS = PAIR_HOLD_MS + 15_000;

/** The endpoints without a token. */
export class PublicApi {
  constructor(private readonly call: Call) {}

  status(): Promise<replies.ServiceStatus> {
    return read(this.call, { path: '/service/status' }, replies.readStatus);
  }

  /** Not repeated: a second call after a lost reply would find the server claimed, by us (see `Claim`). */
  bootstrap(body: BootstrapBody) {
    return read(this.call, { path: '/devices/bootstrap', body }, replies.readClaimed);
  }

  pairFetchEpk(code: string) {
    return read(this.call, { path: '/devices/pair-fetch-epk', body: { code }, repeatable: true }, replies.readPairEpk);
  }

  /** Waits up to 25 s for the existing device; 'pending' while it has not decided. */
  async pairFetchNpk(body: PairFetchNpkBody, signal?: AbortSignal) {
    const send = { path: '/devices/pair-fetch-npk', body, repeatable: true, timeoutMs: HELD_MS, signal };
    const reply = await ask(this.call, send);
    return reply.status === 202 ? 'pending' : replies.readPaired(reply.body, send.path);
  }

  reauthChallenge(deviceId: string) {
    const send = { path: '/devices/reauth/challenge', body: { deviceId }, repeatable: true };
    return read(this.call, send, replies.readReauthChallenge);
  }

  /** Not repeated: a challenge works once. */
  reauth(body: { readonly deviceId: string; readonly challengeId: string; readonly answer: Uint8Array }) {
    const send = { path: '/devices/reauth', body: { ...body, answer: wireBytes(body.answer) } };
    return read(this.call, send, replies.readToken);
  }

  recoverChallenge() {
    return read(
      this.call,
      { path: '/devices/recover/challenge', body: {}, repeatable: true },
      replies.readRecoverChallenge,
    );
  }

  recover(body: RecoverBody) {
    return read(this.call, { path: '/devices/recover', body }, replies.readRecovered);
  }

  async passwordExists(): Promise<boolean> {
    return (await read(this.call, { path: '/password/exists' }, replies.readExists)).exists;
  }

  /** Not repeated: each attempt counts against the limit. */
  async passwordTicket(password: string, pubkey: Uint8Array): Promise<string> {
    const body = { password, pubkey: wireBytes(pubkey) };
    return (await read(this.call, { path: '/password/verify', body }, replies.readTicket)).ticket;
  }
}

/** The endpoints of a paired device: `call` adds its token. */
export class DeviceApi {
  constructor(private readonly call: Call) {}

  /** The same, each call one request: for loops that try again by themselves. */
  get once(): DeviceApi {
    return new DeviceApi((request) => this.call({ ...request, once: true }));
  }

  me(): Promise<replies.Me> {
    return read(this.call, { path: '/me' }, replies.readMe);
  }

  async ticket(): Promise<string> {
    return (await read(this.call, { path: '/ws-ticket', body: {}, repeatable: true }, replies.readTicket)).ticket;
  }

  /** Creates or replaces an item; `body` as JSON of `writeBody`. Repeatable: the same write again is recognised (contract 5). */
  write(body: string): Promise<replies.Stored> {
    return read(this.call, { method: 'POST', path: '/items', json: body, repeatable: true }, replies.readStored);
  }

  /** Up to 100 bodies, each as JSON of `writeBody`, 1 MiB in all, each judged alone. */
  batch(bodies: readonly string[]) {
    const json = `{"items":[${bodies.join(',')}]}`;
    return read(this.call, { method: 'POST', path: '/items/batch', json, repeatable: true }, replies.readBatch);
  }

  remove(id: string, sig: Uint8Array): Promise<replies.Stored> {
    const send = { method: 'DELETE', path: `/items/${id}`, body: { sig: wireBytes(sig) }, repeatable: true } as const;
    return read(this.call, send, replies.readStored);
  }

  move(id: string, to: { readonly binId: string; readonly version: number; readonly sig: Uint8Array }) {
    const body = { ...to, sig: wireBytes(to.sig) };
    return read(this.call, { path: `/items/${id}/reconcile`, body, repeatable: true }, replies.readStored);
  }

  /** Throws `ProtocolError` `bad_listing` where rows and cursor do not fit together. */
  async page(from: {
    readonly since: number;
    readonly epoch: string | null;
    readonly limit?: number;
  }): Promise<replies.Page> {
    const query = { since: from.since, epoch: from.epoch, limit: from.limit ?? PAGE_DEFAULT_A };
    const page = await read(this.call, { path: '/items', query, timeoutMs: 60_000 }, replies.readPage);
    return replies.expectPage(page, from.since);
  }

  /** Repeated where the answer was lost: what the first one reserved is released when its address is late. */
  uploadUrl(body: { readonly contentLength: number; readonly contentType: string }) {
    return read(this.call, { path: '/blobs/upload-url', body, repeatable: true }, replies.readUploadUrl);
  }

  downloadUrl(ref: string): Promise<replies.DownloadUrl> {
    return read(this.call, { path: `/blobs/${encodeURIComponent(ref)}/url` }, replies.readDownloadUrl);
  }

  async devices(): Promise<readonly replies.DeviceEntry[]> {
    return (await read(this.call, { path: '/devices' }, replies.readDevices)).devices;
  }

  async patchDevice(id: string, body: DevicePatchBody): Promise<void> {
    await ask(this.call, { method: 'PATCH', path: `/devices/${id}`, body, repeatable: true });
  }

  async revoke(id: string): Promise<void> {
    await ask(this.call, { path: `/devices/${id}/revoke`, body: {}, repeatable: true });
  }

  /** A repeat whose first attempt arrived may be a `conflict`, as any code in use: then another one is drawn. */
  pairInit(code: string, epk: Uint8Array) {
    const send = { path: '/devices/pair-init', body: { code, epk: wireBytes(epk) }, repeatable: true };
    return read(this.call, send, replies.readPairInit);
  }

  async pairRequests(): Promise<readonly replies.PairRequest[]> {
    return (await read(this.call, { path: '/devices/pair-requests' }, replies.readPairRequests)).requests;
  }

  async pairWrap(body: PairWrapBody): Promise<void> {
    await ask(this.call, { path: '/devices/pair-wrap', body, repeatable: true });
  }

  async bins(): Promise<readonly replies.BinRow[]> {
    return (await read(this.call, { path: '/bins' }, replies.readBins)).bins;
  }

  async createBin(body: BinCreateBody): Promise<replies.BinRow> {
    return (await read(this.call, { path: '/bins', body }, replies.readBin)).bin;
  }

  async patchBin(id: string, body: BinPatchBody): Promise<replies.BinRow> {
    const send = { method: 'PATCH', path: `/bins/${id}`, body, repeatable: true } as const;
    return (await read(this.call, send, replies.readBin)).bin;
  }

  async removeBin(id: string): Promise<void> {
    await ask(this.call, { method: 'DELETE', path: `/bins/${id}`, body: { force: false } });
  }

  /** Both are what `stretchPassword` gives, never what the user typed. */
  async setPassword(password: string, currentPassword: string | null): Promise<void> {
    await ask(this.call, { path: '/password/set', body: { password, currentPassword } });
  }

  /** As `setPassword`. Not repeated either: each attempt counts against the limit. */
  async removePassword(currentPassword: string): Promise<void> {
    await ask(this.call, { method: 'DELETE', path: '/password', body: { currentPassword } });
  }

  async passwordExists(): Promise<boolean> {
    return (await read(this.call, { path: '/password/exists' }, replies.readExists)).exists;
  }
}

const GLYPHS: readonly string[] = ['laptop', 'phone', 'tablet', 'globe'] satisfies Glyph[];

/** True for a glyph that the specification knows. */
export const isGlyph = (value: string): value is Glyph => GLYPHS.includes(value);
