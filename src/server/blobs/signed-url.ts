/** Signed URLs of the local store. */
import { createHmac, timingSafeEqual } from 'node:crypto';
import { type BlobName, blobNameIn, blobPath } from '../../protocol/ids.js';
import { SERVICE_NAME } from '../../protocol/limits.js';
import type { SignedCall } from '../http/ports.js';

/** What a signature covers. HEAD is signed as GET. */
interface Signed extends BlobName {
  readonly method: 'GET' | 'PUT';
  /** Milliseconds since 1970. */
  readonly expiresAt: number;
  /** Of a PUT: its exact Content-Length and Content-Type. */
  readonly size?: number;
  readonly contentType?: string;
  /** Of a PUT of a part: where in the upload it begins. Left out: it is the whole blob. */
  readonly from?: number;
}

const CONTEXT = `${SERVICE_NAME}-blob-url-v1`;
/** A MAC of 32 bytes in base64url. */
const SIGNATURE = /^[A-Za-z0-9_-]{43}$/;
const EXPIRY = /^[1-9]\d{0,15}$/;
const POSITION = /^(0|[1-9]\d{0,15})$/;

function macOf(secret: string, { method, tenantId, ref, expiresAt, size, contentType, from }: Signed): Buffer {
  const fields = [CONTEXT, method, tenantId, ref, expiresAt, size ?? null, contentType ?? null];
  // As JSON, so that no two different lists have the same text.
  const text = JSON.stringify(from === undefined ? fields : [...fields, from]);
  return createHmac('sha256', secret).update(text).digest();
}

/** The path and query of a signed request, relative to the server's origin. */
export function signedPath(secret: string, signed: Signed): string {
  const sig = macOf(secret, signed).toString('base64url');
  const part = signed.from === undefined ? '' : `from=${signed.from}&`;
  return `/blobs/${blobPath(signed)}?${part}exp=${signed.expiresAt}&sig=${sig}`;
}

/** The blob that a request may reach; undefined: altered, expired, or not used as signed. */
export function verifySigned(secret: string, call: SignedCall, now: number): BlobName | undefined {
  const { method, query, contentLength: size, contentType } = call;
  const name = blobNameIn(call.id);
  const [exp, sig, from] = [query.get('exp') ?? '', query.get('sig') ?? '', query.get('from')];
  if (name === undefined || !EXPIRY.test(exp) || !SIGNATURE.test(sig)) return undefined;
  if (from !== undefined && !POSITION.test(from ?? '')) return undefined;
  const expiresAt = Number(exp);
  const both = { ...name, expiresAt, from: from === undefined ? undefined : Number(from) };
  const mac = macOf(secret, method === 'PUT' ? { ...both, method, size, contentType } : { ...both, method: 'GET' });
  // The text is compared, not its decoding: the last character of base64url has spare bits.
  const matches = timingSafeEqual(Buffer.from(mac.toString('base64url')), Buffer.from(sig));
  return matches && now < expiresAt ? name : undefined;
}
