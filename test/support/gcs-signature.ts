/**
 * Google's V4 signatures, from the verifying side: written after its documentation ("V4 signing process", "Canonical
 * requests"), without the library that signs, and proven on Google's own vectors (test/vectors/gcs).
 */
import { createHash, createVerify, type KeyObject } from 'node:crypto';

/** A request as it came over the wire. */
export interface SignedCall {
  readonly method: string;
  /** Of the `Host` header, without a port: Google's has none, and the library that signs drops it. */
  readonly host: string;
  /** Path and query, undecoded. */
  readonly target: string;
  /** Lower-case names; several values joined by commas. */
  readonly headers: Readonly<Record<string, string>>;
}

/** Who may sign. */
export interface Signer {
  readonly email: string;
  readonly publicKey: KeyObject;
}

/** `undefined`: the signature holds. Else the code that Google answers. */
type SignatureRefusal =
  | 'InvalidArgument'
  | 'AuthenticationRequired'
  | 'SignatureDoesNotMatch'
  | 'ExpiredToken'
  | 'RequestTimeTooSkewed'
  | undefined;

const ALGORITHM = 'GOOG4-RSA-SHA256';
const SCOPE_END = 'auto/storage/goog4_request';
const EXPIRES_MAX_S = 604_800;
const SKEW_MAX_MS = 15 * 60_000;

/** RFC 3986: everything but the unreserved characters. */
const encoded = (text: string): string =>
  encodeURIComponent(text).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);

/** The instant of `20190201T090000Z`; NaN where the text is anything else. */
function instantOf(text: string): number {
  const match = /^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z$/.exec(text);
  if (match === null) return NaN;
  const [, year, month, day, hour, minute, second] = match;
  return Date.parse(`${year}-${month}-${day}T${hour}:${minute}:${second}Z`);
}

/** Query parameters, decoded; undefined where one comes twice or cannot be decoded. */
function parametersOf(query: string): Map<string, string> | undefined {
  const found = new Map<string, string>();
  try {
    for (const pair of query === '' ? [] : query.split('&')) {
      const at = pair.indexOf('=');
      const name = decodeURIComponent(at < 0 ? pair : pair.slice(0, at));
      if (found.has(name)) return undefined;
      found.set(name, at < 0 ? '' : decodeURIComponent(pair.slice(at + 1)));
    }
  } catch {
    return undefined;
  }
  return found;
}

interface Claims {
  readonly date: string;
  readonly scope: string;
  readonly signedHeaders: readonly string[];
  readonly signature: Buffer;
}

function canonicalRequest(call: SignedCall, parameters: ReadonlyMap<string, string>, claims: Claims): string {
  const [path = ''] = call.target.split('?');
  const query = [...parameters]
    .filter(([name]) => name !== 'X-Goog-Signature')
    .map(([name, value]) => [encoded(name), encoded(value)] as const)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, value]) => `${name}=${value}`)
    .join('&');
  const headers: Readonly<Record<string, string>> = { ...call.headers, host: call.host };
  const lines = claims.signedHeaders.map(
    (name) =>
      `${name}:${(headers[name] ?? '')
        .trim()
        .replace(/\s{2,}/g, ' ')
        .replace(/\t/g, ' ')}\n`,
  );
  const resource = path.split('/').map((part) => encoded(decodeURIComponent(part)));
  const payload = claims.signedHeaders.includes('x-goog-content-sha256') ? headers['x-goog-content-sha256'] : undefined;
  const parts = [call.method, resource.join('/'), query, lines.join(''), claims.signedHeaders.join(';')];
  return [...parts, payload ?? 'UNSIGNED-PAYLOAD'].join('\n');
}

function claimsOf(call: SignedCall, parameters: ReadonlyMap<string, string>, signer: Signer): Claims | undefined {
  const of = (name: string): string => parameters.get(name) ?? '';
  const date = of('X-Goog-Date');
  const scope = `${date.slice(0, 8)}/${SCOPE_END}`;
  const signature = of('X-Goog-Signature');
  const signedHeaders = of('X-Goog-SignedHeaders').split(';');
  const sorted = [...signedHeaders].sort();
  const sound =
    of('X-Goog-Algorithm') === ALGORITHM &&
    of('X-Goog-Credential') === `${signer.email}/${scope}` &&
    /^[0-9a-f]+$/.test(signature) &&
    signedHeaders.includes('host') &&
    signedHeaders.every((name, at) => name === sorted[at] && name === name.toLowerCase()) &&
    signedHeaders.every((name) => name === 'host' || call.headers[name] !== undefined) &&
    // What steers the store must be signed, or anybody on the way could add it.
    Object.keys(call.headers).every((name) => !name.startsWith('x-goog-') || signedHeaders.includes(name));
  return sound ? { date, scope, signedHeaders, signature: Buffer.from(signature, 'hex') } : undefined;
}

/** Does this request bear a signature of the signer that is good at `now` (ms)? */
export function refusalOf(call: SignedCall, signer: Signer, now: number): SignatureRefusal {
  const at = call.target.indexOf('?');
  const parameters = parametersOf(at < 0 ? '' : call.target.slice(at + 1));
  if (parameters === undefined) return 'InvalidArgument';
  if (!parameters.has('X-Goog-Signature')) return 'AuthenticationRequired';
  const expires = parameters.get('X-Goog-Expires') ?? '';
  const since = instantOf(parameters.get('X-Goog-Date') ?? '');
  const seconds = /^[1-9]\d{0,5}$/.test(expires) ? Number(expires) : NaN;
  if (Number.isNaN(since) || Number.isNaN(seconds) || seconds > EXPIRES_MAX_S) return 'InvalidArgument';
  const claims = claimsOf(call, parameters, signer);
  if (claims === undefined || !holds(call, parameters, claims, signer)) return 'SignatureDoesNotMatch';
  if (since > now + SKEW_MAX_MS) return 'RequestTimeTooSkewed';
  return now > since + seconds * 1000 ? 'ExpiredToken' : undefined;
}

function holds(call: SignedCall, parameters: ReadonlyMap<string, string>, claims: Claims, signer: Signer): boolean {
  const request = createHash('sha256')
    .update(canonicalRequest(call, parameters, claims))
    .digest('hex');
  const text = [ALGORITHM, claims.date, claims.scope, request].join('\n');
  return createVerify('RSA-SHA256').update(text).verify(signer.publicKey, claims.signature);
}
