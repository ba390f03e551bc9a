/**
 * Authenticated calls: the token, and its renewal with the device's own key (the reference, HTTP). Renewal needs no
 * user: the server seals a challenge to the device, which only this device can answer.
 */
import { answerReauthChallenge } from '../crypto/reauth.js';
import type { Sodium } from '../crypto/sodium.js';
import { SingleFlight } from '../protocol/single-flight.js';
import { PublicApi } from './api.js';
import { ApiError, ClientError, isTransient, isRevoked, REVOKED } from './errors.js';
import type { Http, HttpReply, HttpRequest } from './http.js';
import type { Identity, Token } from './identity.js';
import type { Core } from './core.js';

/** A token is renewed when less than this is left, or, with a lifetime below ten days, less than a tenth of it. */
const RENEW_BEFORE_MS = 24 * 3_600_000;
/** Shortest time between two renewals because of age, independent of the server's clock. */
const RENEW_GAP_MS = 60_000;

/** Authenticated calls of a device. */
export class Session {
  private token: Token;
  private readonly renewing = new SingleFlight((once: boolean) => this.reauthenticate(once));
  /** In server time; null: the expiry is unknown, so the token is renewed when the server refuses it. */
  private renewAt: number | null;
  private revoked = false;

  constructor(
    private readonly options: Pick<Core, 'sodium' | 'clock' | 'identity'> & {
      readonly http: Http;
      /** Called with each new token, to be saved with the identity. */
      readonly onToken: (token: Token) => void;
      /** Called once, when the server says that this device is revoked. */
      readonly onRevoked: () => void;
    },
  ) {
    this.token = options.identity.token;
    this.renewAt = renewalTime(this.token);
  }

  /**
   * Sends a request with the token; renews it first when it is about to expire, and once more when the server refuses
   * it. For a request with `once`, renewal is not retried either.
   */
  readonly call = async (request: HttpRequest): Promise<HttpReply> => {
    this.expectActive();
    const { once } = request;
    if (this.isRunningOut()) await this.renewEarly(once);
    const used = this.token;
    const send = (): Promise<HttpReply> => this.explained(this.options.http.send(request, this.token.text));
    try {
      return await send();
    } catch (error) {
      if (!isTokenRefusal(error)) throw error;
      // Another call may have renewed it during this one.
      if (this.token === used) await this.renew(once);
      return send();
    }
  };

  /** Gets a new token with the device's key; concurrent calls share it. `once`: its requests are not retried. */
  renew(once = false): Promise<void> {
    return this.renewing.join(once);
  }

  /** Renews a token that is about to expire. After a transient failure the old token is used while valid. */
  private async renewEarly(once?: boolean): Promise<void> {
    try {
      await this.renew(once);
    } catch (error) {
      const now = this.serverNow();
      const { expiresAt } = this.token;
      if (!isTransient(error) || expiresAt === null || now >= expiresAt) throw error;
      this.renewAt = now + RENEW_GAP_MS;
    }
  }

  /**
   * True where the token should be renewed before use. Its expiry is in server time: a device clock that is ahead must
   * neither cause a renewal at every call nor discard a valid token. Where the server's time is unknown and the token
   * seems expired, it is tried, and the server decides.
   */
  private isRunningOut(): boolean {
    const { expiresAt } = this.token;
    if (this.renewAt === null || expiresAt === null) return false;
    const now = this.serverNow();
    if (this.options.http.clockOffset === null && now >= expiresAt) return false;
    return now >= this.renewAt;
  }

  /** The server's time if the offset is known, else this device's. */
  private serverNow(): number {
    return this.options.clock.now() + (this.options.http.clockOffset ?? 0);
  }

  /** Ends the session after a revocation, reported by a reply or by a socket's close code. */
  endRevoked(): void {
    if (this.revoked) return;
    this.revoked = true;
    this.options.onRevoked();
  }

  private expectActive(): void {
    if (this.revoked) throw new ClientError('revoked', REVOKED);
  }

  /** Ends the session where the reply is that the device is revoked. A revocation learnt meanwhile ended the request. */
  private async explained<T>(reply: Promise<T>): Promise<T> {
    try {
      return await reply;
    } catch (error) {
      if (isRevoked(error)) this.endRevoked();
      else this.expectActive();
      throw error;
    }
  }

  private async reauthenticate(once: boolean): Promise<void> {
    const { http, identity, sodium } = this.options;
    this.expectActive();
    const api = new PublicApi((request) => http.send({ ...request, once }));
    const token = await this.explained(reauthenticate(api, sodium, identity));
    // In server time, as `expiresAt`: otherwise the lifetime would be wrong by the clock offset.
    this.token = { ...token, issuedAt: this.serverNow() };
    this.renewAt = renewalTime(this.token);
    this.options.onToken(this.token);
  }
}

/** When to renew a token, in server time; null: when the server refuses it. */
function renewalTime({ expiresAt, issuedAt }: Token): number | null {
  if (expiresAt === null) return null;
  // Without the lifetime its tenth is unknown too.
  if (issuedAt === undefined) return expiresAt - RENEW_BEFORE_MS;
  const before = Math.min(RENEW_BEFORE_MS, (expiresAt - issuedAt) / 10);
  return Math.max(expiresAt - before, issuedAt + RENEW_GAP_MS);
}

/**
 * Re-authenticates once; the token comes without the time of its issue. The tenant id is the one stored when the device
 * joined, never one from the challenge. Throws `CryptoRefusal` `bad_challenge` for anything but a challenge for this
 * device.
 */
export async function reauthenticate(
  api: PublicApi,
  sodium: Sodium,
  device: Pick<Identity, 'tenantId' | 'deviceId' | 'keys'>,
): Promise<Token> {
  const { deviceId, tenantId, keys } = device;
  const { challengeId, challenge } = await api.reauthChallenge(deviceId);
  const answer = answerReauthChallenge(sodium, { tenantId, deviceId, challengeId }, { challenge, keys });
  const { token, expiresAt } = await api.reauth({ deviceId, challengeId, answer });
  return { text: token, expiresAt };
}

/** 401: expired, or signed with a secret that the server no longer has. Re-authentication helps in both cases. */
const isTokenRefusal = (error: unknown): boolean => error instanceof ApiError && error.status === 401;
