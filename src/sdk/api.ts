/** The endpoints as typed calls. Each declares whether it may be repeated; retries themselves are in `Http`. */
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
  ReconcileBody,
  RecoverBody,
} from '../protocol/requests.js';
import { NetworkError } from './errors.js';
import type { Call, HttpRequest } from './http.js';
import type { Reader } from './reader.js';
import * as replies from './replies.js';
import type { Cursor } from './store/store.js';
import type { Change } from './wire.js';

/** Time-out of a held call: the server answers after at most 25 s, plus a margin for the network. */
const HELD_MS = PAIR_HOLD_MS + 15_000;

/** Base of the endpoints, each declared by its path, the reader of its reply, and its body. */
class Endpoints {
  constructor(protected readonly call: Call) {}

  readonly passwordExists = () => this.ask('/password/exists', replies.readExists);

  /** GET without a body, else POST, unless `more` says otherwise. Only GET is repeatable by default. */
  protected async ask<T>(path: string, reader: Reader<T>, more: Partial<HttpRequest> = {}): Promise<T> {
    const method = more.body === undefined && more.json === undefined ? 'GET' : 'POST';
    const { body } = await this.call({ path, method, repeatable: method === 'GET', ...more });
    return reader(body, path);
  }
}

/** The endpoints without a token. */
export class PublicApi extends Endpoints {
  readonly status = () => this.ask('/service/status', replies.readStatus);

  /** Not repeated: after a lost reply a second call would find the server claimed by this device (see `Claim`). */
  readonly bootstrap = (body: BootstrapBody) => this.ask('/devices/bootstrap', replies.readClaimed, { body });

  readonly pairFetchEpk = (code: string) =>
    this.ask('/devices/pair-fetch-epk', replies.readPairEpk, { body: { code }, repeatable: true });

  /** Waits up to 25 s for the existing device; 'pending' while it has not decided. */
  async pairFetchNpk(body: PairFetchNpkBody, signal?: AbortSignal) {
    const path = '/devices/pair-fetch-npk';
    const reply = await this.call({ method: 'POST', path, body, repeatable: true, timeoutMs: HELD_MS, signal });
    return reply.status === 202 ? 'pending' : replies.readPaired(reply.body, path);
  }

  /** Not repeated: a request that does not arrive expires with its code. Always refused: `pair_invalid`, `pair_expired`. */
  readonly pairWithdraw = (body: PairFetchNpkBody) =>
    this.ask('/devices/pair-fetch-npk', replies.unread, { body: { ...body, withdraw: true } });

  readonly reauthChallenge = (deviceId: string) =>
    this.ask('/devices/reauth/challenge', replies.readReauthChallenge, { body: { deviceId }, repeatable: true });

  /** Not repeated: a challenge works once. */
  readonly reauth = (body: { readonly deviceId: string; readonly challengeId: string; readonly answer: Uint8Array }) =>
    this.ask('/devices/reauth', replies.readToken, { body: { ...body, answer: toBase64Url(body.answer) } });

  readonly recoverChallenge = () =>
    this.ask('/devices/recover/challenge', replies.readRecoverChallenge, { body: {}, repeatable: true });

  readonly recover = (body: RecoverBody) => this.ask('/devices/recover', replies.readClaimed, { body });

  /** Not repeated: each attempt counts against the limit. */
  readonly passwordTicket = (password: string, pubkey: Uint8Array) =>
    this.ask('/password/verify', replies.readTicket, { body: { password, pubkey: toBase64Url(pubkey) } });
}

/** The name of a history; null before the first one is known. */
type Epoch = Cursor['epoch'];

/** The endpoints of a paired device: `call` adds its token. */
export class DeviceApi extends Endpoints {
  /** The same calls, each sent once: for loops with a backoff of their own. */
  get once(): DeviceApi {
    return new DeviceApi((request) => this.call({ ...request, once: true }));
  }

  readonly me = () => this.ask('/me', replies.readMe);
  readonly ticket = () => this.ask('/ws-ticket', replies.readTicket, { body: {}, repeatable: true });

  /**
   * Creates or replaces an item; `json` of `writeBody`. Repeatable: a repeated write is recognised (RETRY-01). `epoch`:
   * of the history that it is based on, here and below. Under another one it gets `epoch_mismatch` (EPOCH-09). `onRepeat`:
   * see `HttpRequest`.
   */
  readonly write = (json: string, epoch: Epoch, onRepeat?: () => void) =>
    this.ask('/items', replies.readStored, { json, query: { epoch }, repeatable: true, onRepeat });

  /** Up to 100 bodies, each as JSON of `writeBody`, 1 MiB in total. Each is accepted or refused separately. */
  readonly batch = (bodies: readonly string[], epoch: Epoch, onRepeat?: () => void) => {
    const json = `{"items":[${bodies.join(',')}]}`;
    return this.ask('/items/batch', replies.readBatch, { json, query: { epoch }, repeatable: true, onRepeat });
  };

  readonly remove = (id: string, sig: Uint8Array, epoch: Epoch) => {
    const body = { sig: toBase64Url(sig) };
    return this.ask(`/items/${id}`, replies.readStored, { method: 'DELETE', body, query: { epoch }, repeatable: true });
  };

  readonly move = (id: string, to: Omit<ReconcileBody, 'sig'> & { readonly sig: Uint8Array }, epoch: Epoch) => {
    const body = { ...to, sig: toBase64Url(to.sig) };
    return this.ask(`/items/${id}/reconcile`, replies.readStored, { body, query: { epoch }, repeatable: true });
  };

  /** Throws `ProtocolError` `bad_listing` where rows and cursor are inconsistent. */
  readonly page = async (from: { readonly since: number; readonly epoch: string | null; readonly limit?: number }) => {
    const query = { since: from.since, epoch: from.epoch, limit: from.limit ?? PAGE_DEFAULT_A };
    return replies.expectPage(await this.ask('/items', replies.readPage, { query, timeoutMs: 60_000 }), from.since);
  };

  /** The first change above a version; undefined: there is none. Throws `NetworkError` where the history is another one. */
  async nextChange({ since, epoch }: Pick<Cursor, 'since' | 'epoch'>): Promise<Change | undefined> {
    const page = await this.page({ since, epoch, limit: 1 });
    if (epoch !== null && page.epoch !== epoch)
      throw new NetworkError('network', 'the history was replaced since the connection began');
    return page.items[0];
  }

  /** Repeatable: the server releases an upload that is never continued, such as one whose reply was lost. */
  readonly beginUpload = (body: { readonly contentLength: number; readonly contentType: string }) =>
    this.ask('/uploads', replies.readUpload, { body, repeatable: true });

  /** The state of an upload. Throws `ApiError` of status 404 where it no longer exists. */
  readonly continueUpload = (ref: string) =>
    this.ask(`/uploads/${encodeURIComponent(ref)}`, replies.readUpload, { method: 'POST', repeatable: true });

  readonly endUpload = (ref: string) =>
    this.ask(`/uploads/${encodeURIComponent(ref)}`, replies.unread, { method: 'DELETE', repeatable: true });

  readonly downloadUrl = (ref: string) => this.ask(`/blobs/${encodeURIComponent(ref)}/url`, replies.readDownloadUrl);

  readonly devices = () => this.ask('/devices', replies.readDevices);
  readonly patchDevice = (id: string, body: DevicePatchBody) =>
    this.ask(`/devices/${id}`, replies.unread, { method: 'PATCH', body, repeatable: true });
  readonly revoke = (id: string) => this.ask(`/devices/${id}/revoke`, replies.unread, { body: {}, repeatable: true });

  /**
   * Repeatable: if the first attempt arrived, the second gets `conflict`, as for any code in use, and the caller draws
   * another.
   */
  readonly pairInit = (code: string, epk: Uint8Array) =>
    this.ask('/devices/pair-init', replies.readPairInit, { body: { code, epk: toBase64Url(epk) }, repeatable: true });
  readonly pairRequests = () => this.ask('/devices/pair-requests', replies.readPairRequests);
  readonly pairWrap = (body: PairWrapBody) =>
    this.ask('/devices/pair-wrap', replies.unread, { body, repeatable: true });

  readonly bins = () => this.ask('/bins', replies.readBins);
  /** Repeatable: if the first attempt arrived, the second gets `conflict`; `onRepeat`: see `HttpRequest`. */
  readonly createBin = (body: BinCreateBody, onRepeat?: () => void) =>
    this.ask('/bins', replies.readBin, { body, repeatable: true, onRepeat });
  readonly patchBin = (id: string, body: BinPatchBody) =>
    this.ask(`/bins/${id}`, replies.readBin, { method: 'PATCH', body, repeatable: true });
  readonly removeBin = (id: string) =>
    this.ask(`/bins/${id}`, replies.unread, { method: 'DELETE', body: { force: false } });

  /** Both are results of `stretchPassword`, never the typed password. */
  readonly setPassword = (password: string, currentPassword: string | null) =>
    this.ask('/password/set', replies.unread, { body: { password, currentPassword } });

  /** As `setPassword`. Not repeated: each attempt counts against the limit. */
  readonly removePassword = (currentPassword: string) =>
    this.ask('/password', replies.unread, { method: 'DELETE', body: { currentPassword } });
}

/** The glyphs that the server accepts. */
export const GLYPHS: readonly Glyph[] = ['laptop', 'phone', 'tablet', 'globe'];

/** True for one of `GLYPHS`. */
export const isGlyph = (value: string): value is Glyph => GLYPHS.some((glyph) => glyph === value);
