/**
 * A stand-in for Google Cloud Storage, strict where the real one is: signed URLs pass the verifier that Google's vectors
 * prove, calls of the JSON interface need a token that the service account signed. It can break in the ways that stores break.
 */
import { createVerify, generateKeyPairSync, type KeyObject } from 'node:crypto';
import { writeFile } from 'node:fs/promises';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { join } from 'node:path';
import { buffer as bufferOf } from 'node:stream/consumers';
import {
  contentOf,
  json,
  jsonError,
  listingOf,
  metadataOf,
  xmlError,
  type GcsAnswer,
  type GcsObject,
} from './gcs-objects.js';
import { refusalOf, type Signer } from './gcs-signature.js';
import { GcsSessions } from './gcs-sessions.js';
import { LoopbackServer } from './loopback-server.js';
import { temporaryFolder, type WithTeardown } from './postgres.js';

/** How an answer goes wrong. `same_page`: a listing goes on with itself. */
export type GcsFault = { readonly status: number } | 'hang' | 'same_page';

/** A request that the stand-in took. */
interface GcsCall {
  readonly api: 'xml' | 'json' | 'session';
  readonly method: string;
  readonly path: string;
  readonly query: URLSearchParams;
  readonly headers: Readonly<Record<string, string>>;
}

interface Taken extends GcsCall {
  readonly host: string;
  readonly target: string;
  readonly request: IncomingMessage;
}

const TOKEN_MAX_S = 3600;
const TOKEN_SKEW_MAX_S = 300;
const SCOPES = [
  'https://www.googleapis.com/auth/devstorage.read_write',
  'https://www.googleapis.com/auth/devstorage.full_control',
];
const PAGE_MAX = 1000;

/** A service account: its key file, and what the stand-in knows of it. */
export interface ServiceAccount extends Signer {
  readonly privateKey: KeyObject;
  /** For `GOOGLE_APPLICATION_CREDENTIALS`. */
  readonly keyFile: string;
}

/** Makes a service account with a key of its own. */
export async function newServiceAccount(t: WithTeardown): Promise<ServiceAccount> {
  const { privateKey, publicKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  const email = 'blobs@test-project.iam.gserviceaccount.com';
  const keyFile = join(await temporaryFolder(t), 'key.json');
  const key = {
    type: 'service_account',
    project_id: 'test-project',
    private_key_id: '0123456789abcdef',
    private_key: privateKey.export({ type: 'pkcs8', format: 'pem' }),
    client_email: email,
    client_id: '1',
    token_uri: 'http://127.0.0.1:1/no-token-server', // nobody listens there: calls have to bear what the key signed
  };
  await writeFile(keyFile, JSON.stringify(key), { mode: 0o600 });
  return { email, publicKey, privateKey, keyFile };
}

/** The store, with one bucket. */
export class GcsStandIn extends LoopbackServer {
  readonly bucket = 'blobs-of-the-tests';
  readonly calls: GcsCall[] = [];
  readonly objects = new Map<string, GcsObject>();
  /** Decides how a call goes wrong; undefined: it does not. */
  fault: (call: GcsCall) => GcsFault | undefined = () => undefined;
  /** The store's clock is so far ahead, ms. */
  clockAheadMs = 0;
  /** Objects of one page at most. */
  pageMax = PAGE_MAX;
  /** Tokens that were issued elsewhere: by a metadata server, or for another identity. */
  issued: (authorization: string) => boolean = () => false;
  /** Origins that the bucket's CORS rules name. */
  origins: readonly string[] = [];
  readonly sessions = new GcsSessions({
    now: () => this.now(),
    finish: ({ name, body, contentType }, match) => {
      if (match !== null && match !== String(this.objects.get(name)?.generation ?? 0)) return undefined;
      return metadataOf(this.keep(name, body, contentType), this.bucket);
    },
  });
  private generations = 1_700_000_000_000_000;

  private constructor(private readonly account: Signer) {
    super();
  }

  /** Listens until the test is over. */
  static start(t: WithTeardown, account: Signer): Promise<GcsStandIn> {
    return new GcsStandIn(account).listenFor(t);
  }

  private now(): number {
    return Date.now() + this.clockAheadMs;
  }

  protected async take(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const target = request.url ?? '/';
    const [path = '', query = ''] = target.split('?');
    // Node gives a list for `set-cookie` only, which is no header of requests.
    const { host = '', ...headers } = request.headers as Readonly<Record<string, string>>;
    const method = request.method ?? '';
    const api = path.startsWith('/upload/') ? 'session' : path.startsWith('/storage/v1/') ? 'json' : 'xml';
    const call: GcsCall = { api, method, path: decodeURIComponent(path), query: new URLSearchParams(query), headers };
    this.calls.push(call);
    const fault = this.fault(call);
    if (fault === 'hang') return;
    response.setHeader('date', new Date(this.now()).toUTCString());
    for (const [name, value] of Object.entries(this.corsFor(call))) response.setHeader(name, value);
    try {
      const taken = { ...call, host: host.replace(/:\d+$/, ''), target, request };
      const answer = typeof fault === 'object' ? this.broken(call, fault.status) : await this.answer(taken, fault);
      send(response, method, answer);
    } catch {
      response.destroy(); // the body did not come to its end: nothing is kept of it
    }
  }

  private broken({ api }: GcsCall, status: number): GcsAnswer {
    return api === 'xml' ? xmlError(status, 'InternalError') : jsonError(status, 'backendError');
  }

  private corsFor({ api, query, headers }: GcsCall): Record<string, string> {
    const { origin } = headers;
    if (origin === undefined) return {};
    if (api === 'session' && this.sessions.pageOf(query) === origin) {
      return {
        'access-control-allow-origin': origin,
        'access-control-allow-methods': 'PUT',
        'access-control-allow-headers': 'content-range,content-type,x-guploader-no-308',
      };
    }
    if (!(this.origins.includes(origin) || this.origins.includes('*'))) return {};
    return {
      'access-control-allow-origin': origin,
      'access-control-allow-methods': 'GET,HEAD,PUT',
      'access-control-allow-headers': 'content-type,x-goog-content-length-range,x-goog-if-generation-match,range',
      'access-control-expose-headers': 'content-length,content-range,etag',
    };
  }

  private async answer(call: Taken, fault: GcsFault | undefined): Promise<GcsAnswer> {
    if (call.method === 'OPTIONS') return { status: 200, headers: {} };
    if (call.api === 'session') return this.answerSession(call);
    return call.api === 'json' ? this.answerJson(call, fault) : this.answerXml(call);
  }

  /** A session is begun with a token; its URI is a right by itself. */
  private async answerSession(call: Taken): Promise<GcsAnswer> {
    const { method, path, query, headers } = call;
    if (query.has('upload_id')) return this.sessions.take(call);
    if (!this.authorized(headers)) return jsonError(401, 'authError');
    if (path !== `/upload/storage/v1/b/${this.bucket}/o`) return jsonError(404, 'notFound');
    if (method !== 'POST' || query.get('uploadType') !== 'resumable') return jsonError(400, 'invalid');
    call.request.resume();
    // Under the name that it was asked by, as Google does.
    return this.sessions.begin(call, `http://${call.request.headers.host}${path}`);
  }

  private authorized(headers: GcsCall['headers']): boolean {
    const token = headers['authorization'] ?? '';
    return this.issued(token) || tokenHolds(token, this.account, this.now());
  }

  private async answerXml(call: Taken): Promise<GcsAnswer> {
    const refusal = refusalOf(call, this.account, this.now());
    if (refusal !== undefined) {
      return xmlError(refusal === 'InvalidArgument' || refusal === 'ExpiredToken' ? 400 : 403, refusal);
    }
    const [, bucket, ...rest] = call.path.split('/');
    if (bucket !== this.bucket) return xmlError(404, 'NoSuchBucket');
    const name = rest.join('/');
    if (call.method === 'PUT') return this.put(call, name);
    const object = this.objects.get(name);
    if (object === undefined) return xmlError(404, 'NoSuchKey');
    if (call.method === 'DELETE') {
      this.objects.delete(name);
      return { status: 204, headers: {} };
    }
    if (call.method !== 'GET' && call.method !== 'HEAD') return xmlError(405, 'MethodNotAllowed');
    return contentOf(object, call.headers['range'], call.query.get('response-content-disposition') ?? undefined);
  }

  private async put({ request, headers }: Taken, name: string): Promise<GcsAnswer> {
    const bounds = /^(\d+),(\d+)$/.exec(headers['x-goog-content-length-range'] ?? '');
    const body = await bufferOf(request);
    if (bounds !== null && body.length > Number(bounds[2])) return xmlError(400, 'EntityTooLarge');
    if (bounds !== null && body.length < Number(bounds[1])) return xmlError(400, 'EntityTooSmall');
    const match = headers['x-goog-if-generation-match'];
    if (match !== undefined && match !== String(this.objects.get(name)?.generation ?? 0)) {
      return xmlError(412, 'PreconditionFailed');
    }
    this.keep(name, body, headers['content-type']);
    return { status: 200, headers: { 'x-goog-generation': String(this.generations) } };
  }

  /** Puts an object there behind everybody's back. */
  keep(name: string, body: Buffer, contentType = 'application/octet-stream'): GcsObject {
    const object = { name, body, contentType, generation: ++this.generations, updated: this.now() };
    this.objects.set(name, object);
    return object;
  }

  private answerJson(call: Taken, fault: GcsFault | undefined): GcsAnswer {
    const { method, path, query, headers } = call;
    if (!this.authorized(headers)) return jsonError(401, 'authError');
    const [, bucket, object] = /^\/storage\/v1\/b\/([^/]+)\/o(?:\/(.+))?$/.exec(path) ?? [];
    if (bucket !== this.bucket) return jsonError(404, 'notFound');
    if (object === undefined) return this.list(query, fault);
    const found = this.objects.get(object);
    if (found === undefined) return jsonError(404, 'notFound');
    if (method === 'DELETE') {
      this.objects.delete(object);
      return { status: 204, headers: {} };
    }
    if (query.get('alt') === 'media') return contentOf(found, headers['range'], undefined);
    return json(metadataOf(found, bucket));
  }

  private list(query: URLSearchParams, fault: GcsFault | undefined): GcsAnswer {
    const asked = Number(query.get('maxResults') ?? PAGE_MAX);
    const token = query.get('pageToken') ?? '';
    const after = Buffer.from(token, 'base64url').toString();
    const page = { prefix: query.get('prefix') ?? '', max: Math.min(asked, this.pageMax), after };
    const listing = listingOf(this.objects.values(), this.bucket, page);
    return json(fault === 'same_page' ? { ...listing, nextPageToken: token === '' ? 'eA' : token } : listing);
  }
}

/** Is this a token that the account's key signed for calls of the store, and is it good now (RFC 7519, 7515)? */
function tokenHolds(authorization: string, { email, publicKey }: Signer, now: number): boolean {
  const [, head = '', body = '', signature = ''] = /^Bearer ([\w-]+)\.([\w-]+)\.([\w-]+)$/.exec(authorization) ?? [];
  const verified = createVerify('RSA-SHA256').update(`${head}.${body}`).verify(publicKey, signature, 'base64url');
  if (!verified) return false;
  const claims = JSON.parse(Buffer.from(body, 'base64url').toString()) as Record<string, unknown>;
  const seconds = now / 1000;
  const [iat, exp] = [Number(claims['iat']), Number(claims['exp'])];
  const scopes = String(claims['scope']).split(' ');
  return (
    claims['iss'] === email &&
    iat <= seconds + TOKEN_SKEW_MAX_S &&
    exp > seconds &&
    exp - iat <= TOKEN_MAX_S &&
    SCOPES.some((scope) => scopes.includes(scope))
  );
}

function send(response: ServerResponse, method: string, answer: GcsAnswer): void {
  const { status, headers, body } = answer;
  const length = body === undefined ? {} : { 'content-length': String(body.length) };
  response.writeHead(status, { ...headers, ...length });
  if (method === 'HEAD' || body === undefined) response.end();
  else response.end(body);
}
