/** Blobs (reference, Blobs): URLs for devices, and the uploads and downloads of the local store by such URLs. */
import { invalid } from '../../protocol/errors.js';
import type { BlobDownload, BlobUpload, Ok, OpenUploadReply } from '../../protocol/replies.js';
import type { UploadBodyA, UploadBodyB } from '../../protocol/requests.js';
import { validateUploadBodyA, validateUploadBodyB } from '../http/validators.js';
import { addressOfPeer, TrustedProxies } from '../http/client-address.js';
import type { TooSlow } from '../http/streams.js';
import type { HttpConfig } from '../http/ports.js';
import { hostName } from '../http/query.js';
import { fields, type RequestContext } from '../http/request.js';
import { Download } from '../http/reply.js';
import { mounted, type Handler } from '../http/route.js';
import type { Blobs, UploadRequest } from './blobs.js';
import type { Transfers } from './transfers.js';

export interface BlobParts {
  readonly blobs: Pick<Blobs, 'uploadUrl' | 'downloadUrl' | 'begin' | 'continue' | 'giveUp'>;
  /** Left out: blobs are in a bucket, which clients reach directly. */
  readonly transfers?: Pick<Transfers, 'upload' | 'download' | 'tooSlow'> | undefined;
  readonly config: HttpConfig;
}

/** A valid Origin header of a web page (RFC 6454, 6.1); it is passed on to the store. */
const WEB_ORIGIN = /^https?:\/\/[A-Za-z0-9.:[\]_-]{1,255}$/;
const HOST = /^[A-Za-z0-9.:[\]_-]{1,255}$/;

/**
 * Scheme and host at which the client reached this server, without a trailing slash (reference, HTTP, Tokens):
 * PUBLIC_URL, else the domain with https, else the request's own host with the scheme that a trusted proxy names. In
 * multi mode the request's host, which is the tenant's, replaces the one in PUBLIC_URL or DOMAIN.
 */
function originOf(call: RequestContext, { tenantMode, publicUrl, domain, trustedProxies }: HttpConfig): string {
  const configured = publicUrl ?? (domain === null ? null : `https://${domain}`);
  if (configured !== null) {
    if (tenantMode === 'single') return configured;
    const { protocol, port } = new URL(configured);
    return `${protocol}//${hostName(call.host)}${port === '' ? '' : `:${port}`}`;
  }
  if (!HOST.test(call.host)) throw invalid('host', 'must be a host name');
  const peer = addressOfPeer(call.res.getRemoteAddress());
  const isSecure = new TrustedProxies(trustedProxies).trusts(peer) && /^\s*https\s*(,|$)/i.test(call.forwardedProto);
  return `${isSecure ? 'https' : 'http'}://${call.host}`;
}

/** The same upload in shape B. */
const inB = ({ contentLength: size, contentType }: UploadBodyA): UploadBodyB => ({ size, contentType });

/** The upload that a device requests. Throws `validation`. */
function uploadRequestOf(call: RequestContext, config: HttpConfig): UploadRequest {
  const body = fields(call);
  const { size, contentType } = call.shape === 'b' ? validateUploadBodyB(body) : inB(validateUploadBodyA(body));
  return {
    size,
    contentType: contentType ?? 'application/octet-stream',
    by: call.deviceId,
    origin: originOf(call, config),
    page: WEB_ORIGIN.test(call.origin) ? call.origin : undefined,
  };
}

/** `POST /blobs/upload-url`. Throws `validation`, and like `Blobs.uploadUrl`. */
export const uploadUrl: Handler<BlobParts, BlobUpload> = (call, { blobs, config }) =>
  blobs.uploadUrl(call.tenantId, uploadRequestOf(call, config));

/** `POST /uploads`. Throws `validation`, and like `Blobs.begin`. */
export const beginUpload: Handler<BlobParts, OpenUploadReply> = (call, { blobs, config }) =>
  blobs.begin(call.tenantId, uploadRequestOf(call, config));

/** `POST /uploads/:ref`. Throws like `Blobs.continue`. */
export const continueUpload: Handler<BlobParts, OpenUploadReply> = (call, { blobs, config }) =>
  blobs.continue(call.tenantId, call.id, originOf(call, config));

/** `DELETE /uploads/:ref`. Throws like `Blobs.giveUp`. */
export const giveUpUpload: Handler<BlobParts, Ok> = async (call, { blobs }) => {
  await blobs.giveUp(call.tenantId, call.id);
  return { ok: true };
};

/** `GET /blobs/:ref/url`. Throws `no_blob`, `storage_unavailable`. */
export const downloadUrl: Handler<BlobParts, BlobDownload> = (call, { blobs, config }) =>
  blobs.downloadUrl(call.tenantId, call.id, originOf(call, config));

const nameOf = (call: RequestContext): { tenantId: string; ref: string } => {
  const [tenantId = '', ref = ''] = call.id.split('/');
  return { tenantId, ref };
};

/** `PUT /blobs/:tenant/:ref`, already verified. Throws `url_invalid`, `storage_unavailable`, `rate_limited`. */
export const upload: Handler<BlobParts, Ok> = async (call, { transfers }) => {
  const { upload } = call;
  if (upload === undefined) throw new Error('an upload without its body');
  const from = call.query.get('from');
  const part = typeof from === 'string' ? Number(from) : undefined;
  await mounted(transfers).upload({ ...nameOf(call), size: call.contentLength, from: part }, upload);
  return { ok: true };
};

/** `GET` and `HEAD /blobs/:tenant/:ref`, already verified. Throws `no_blob`, `storage_unavailable`, `rate_limited`. */
export const download: Handler<BlobParts, Download> = async (call, app) => {
  const name = nameOf(call);
  const transfers = mounted(app.transfers);
  const tooSlow: TooSlow = (bytesPerS) => transfers.tooSlow(name.tenantId, bytesPerS);
  // A name is used once, so its bytes never change: the name serves as the entity tag.
  return new Download(await transfers.download(name), `"${name.ref}"`, tooSlow);
};
