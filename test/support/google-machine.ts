/**
 * What Google's machines have beside their store: a metadata server, which gives tokens to whatever runs there, and the
 * IAM service, which signs in place of a key (`signBlob`). Written after Google's documentation.
 */
import { createSign, randomBytes, type KeyObject } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { text as textOf } from 'node:stream/consumers';
import { LoopbackServer } from './loopback-server.js';
import type { WithTeardown } from './postgres.js';

const TOKEN_S = 3_600;
const ACCESS_TOKEN = 'urn:ietf:params:oauth:token-type:access_token';

/** Both services at one address. */
export class GoogleMachine extends LoopbackServer {
  /** Paths that were asked for, without a query. */
  readonly calls: string[] = [];
  /** Calls of `signBlob` that are under way. */
  signing = 0;
  signingMost = 0;
  /** How `signBlob` answers: a status, or not before this resolves. */
  trouble: number | undefined;
  hold: Promise<void> | undefined;
  private readonly tokens = new Set<string>();

  private constructor(
    private readonly email: string,
    private readonly privateKey: KeyObject,
  ) {
    super();
  }

  static start(t: WithTeardown, account: { email: string; privateKey: KeyObject }): Promise<GoogleMachine> {
    return new GoogleMachine(account.email, account.privateKey).listenFor(t);
  }

  /** Whether a call bears a token that was given here. */
  holds(authorization: string): boolean {
    return this.tokens.has(authorization.replace(/^Bearer /, ''));
  }

  /** In place of Google's address for signatures. */
  get signingEndpoint(): string {
    return `${this.url}/v1/projects/-/serviceAccounts/`;
  }

  get signed(): number {
    return this.calls.filter((path) => path.endsWith(':signBlob')).length;
  }

  protected async take(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const [path = ''] = (request.url ?? '').split('?');
    this.calls.push(path);
    if (path.startsWith('/computeMetadata/v1')) return this.metadata(path, request, response);
    const body = await textOf(request);
    if (path === `/v1/projects/-/serviceAccounts/${this.email}:signBlob`) {
      if (!this.holds(request.headers.authorization ?? '')) return answer(response, 401, { error: 'no token' });
      return this.sign(body, response);
    }
    // Workload identity federation: the provider's token for one of Google's, and that for the service account's.
    if (path === '/v1/token') return answer(response, 200, { ...this.issue(), issued_token_type: ACCESS_TOKEN });
    if (path === `/v1/projects/-/serviceAccounts/${this.email}:generateAccessToken`) {
      const expireTime = new Date(Date.now() + TOKEN_S * 1_000).toISOString();
      return answer(response, 200, { accessToken: this.issue().access_token, expireTime });
    }
    answer(response, 404, { error: 'not found' });
  }

  private issue(): { access_token: string; expires_in: number; token_type: string } {
    const token = `ya29.${randomBytes(24).toString('base64url')}`;
    this.tokens.add(token);
    return { access_token: token, expires_in: TOKEN_S, token_type: 'Bearer' };
  }

  private metadata(path: string, request: IncomingMessage, response: ServerResponse): void {
    response.setHeader('metadata-flavor', 'Google');
    if (request.headers['metadata-flavor'] !== 'Google') return answer(response, 403, 'no flavor');
    if (path.endsWith('/token')) return answer(response, 200, this.issue());
    if (path.endsWith('/email')) return answer(response, 200, this.email);
    if (path.endsWith('/universe-domain')) return answer(response, 200, 'googleapis.com');
    answer(response, 200, '');
  }

  private async sign(body: string, response: ServerResponse): Promise<void> {
    this.signingMost = Math.max(this.signingMost, ++this.signing);
    await this.hold;
    this.signing--;
    if (this.trouble !== undefined) {
      const status = this.trouble === 403 ? 'PERMISSION_DENIED' : 'UNAVAILABLE';
      const message = `Permission 'iam.serviceAccounts.signBlob' denied on resource (or it may not exist).`;
      return answer(response, this.trouble, { error: { code: this.trouble, message, status } });
    }
    const { payload } = JSON.parse(body) as { payload: string };
    const signer = createSign('RSA-SHA256').update(Buffer.from(payload, 'base64'));
    answer(response, 200, { keyId: 'k', signedBlob: signer.sign(this.privateKey, 'base64') });
  }
}

function answer(response: ServerResponse, status: number, value: unknown): void {
  const isText = typeof value === 'string';
  response.writeHead(status, { 'content-type': isText ? 'text/plain' : 'application/json' });
  response.end(isText ? value : JSON.stringify(value));
}
