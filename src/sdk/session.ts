/**
 * The device's right to call: its token, renewed by the device's own key (the reference, HTTP).
 * Renewal needs no user: the server seals a challenge to the device, and only this device can answer it.
 */
import { answerReauthChallenge } from '../crypto/reauth.js';
import { SingleFlight } from '../protocol/single-flight.js';
import { PublicApi } from './api.js';
import { ApiError, ClientError, isPassing, isRevoked, REVOKED } from './errors.js';
import type { Http, HttpReply, HttpRequest } from './http.js';
import type { Identity, Token } from './identity.js';
import type { Platform } from './platform.js';
import type { Core } from './core.js';

/** A token is renewed when less than this is left, or less than a tenth of a life that is shorter than ten days. */
const RENEW_BEFORE_MS = 24 * 3_600_000;
/** Nor is renewal on account of its age tried more often than this, whatever a server with another clock says. */
const RENEW_GAP_MS = 60_000;

/** Calls in the device's name. `call` may be handed around as a plain function. */
export class Session {
  private token: Token;
  private readonly renewing = new SingleFlight((once: boolean) => this.reauthenticate(once));
  /** In server time; null: not known when the token ends, so the server will say when it has. */
  private renewAt: number | null;
  private revoked = false;

  constructor(
    private readonly options: Pick<Core, 'sodium' | 'clock' | 'identity'> & {
      readonly http: Http;
      /** Told of each new token, to be kept with the identity. */
      readonly onToken: (token: Token) => void;
      /** Told once, when the server says that this device is revoked. */
      readonly onRevoked: () => void;
    },
  ) {
    this.token = options.identity.token;
    this.renewAt = renewalTime(this.token);
  }

  /**
   * Sends a request with the token; renews it first when it runs out, and once more when the server says that it has.
   * What is to be asked once is renewed for by requests that are not repeated either.
   */
  readonly call = async (request: HttpRequest): Promise<HttpReply> => {
    this.expectStanding();
    const { once } = request;
    if (this.isRunningOut()) await this.renewEarly(once);
    const used = this.token;
    try {
      return await this.options.http.send(request, used.text);
    } catch (error) {
      if (isRevoked(error)) this.endRevoked();
      if (!isTokenRefusal(error)) throw error;
      // Another call may have renewed it while this one was under way.
      if (this.token === used) await this.renew(once);
      return this.options.http.send(request, this.token.text);
    }
  };

  /** Gets a new token by the device's key; calls that come meanwhile share it. `once`: no request of it is repeated. */
  renew(once = false): Promise<void> {
    return this.renewing.join(once);
  }

  /** Renews a token that runs out. Where that fails for now, the old one does as long as it is valid. */
  private async renewEarly(once?: boolean): Promise<void> {
    try {
      await this.renew(once);
    } catch (error) {
      const now = this.serverNow();
      const { expiresAt } = this.token;
      if (!isPassing(error) || expiresAt === null || now >= expiresAt) throw error;
      this.renewAt = now + RENEW_GAP_MS;
    }
  }

  /**
   * True where the token should be renewed before it is used. Its end is in server time: a clock of this device that
   * runs ahead must neither renew at every call nor give up a token that is good. Where the server's time is not known
   * yet and the token seems to be over, the server says whether it is.
   */
  private isRunningOut(): boolean {
    const { expiresAt } = this.token;
    if (this.renewAt === null || expiresAt === null) return false;
    const now = this.serverNow();
    if (this.options.http.clockOffset === null && now >= expiresAt) return false;
    return now >= this.renewAt;
  }

  /** The server's time as far as it is known, else this device's. */
  private serverNow(): number {
    return this.options.clock.now() + (this.options.http.clockOffset ?? 0);
  }

  /** Ends the session because the server said so, here or by a socket's close code. */
  endRevoked(): void {
    if (this.revoked) return;
    this.revoked = true;
    this.options.onRevoked();
  }

  private expectStanding(): void {
    if (this.revoked) throw new ClientError('revoked', REVOKED);
  }

  private async reauthenticate(once: boolean): Promise<void> {
    const { http, identity } = this.options;
    this.expectStanding();
    try {
      this.token = await reauthenticate(
        new PublicApi((request) => http.send({ ...request, once })),
        this.options,
        identity,
      );
    } catch (error) {
      if (isRevoked(error)) this.endRevoked();
      throw error;
    }
    // By the server's clock, as `expiresAt` is: else the token's life would be off by as much as the clocks are.
    this.token = { ...this.token, issuedAt: this.serverNow() };
    this.renewAt = renewalTime(this.token);
    this.options.onToken(this.token);
  }
}

/** When to renew a token, in server time; null: when the server says so. */
function renewalTime({ expiresAt, issuedAt }: Token): number | null {
  if (expiresAt === null) return null;
  // Of a life that is not known, a tenth is not either.
  if (issuedAt === undefined) return expiresAt - RENEW_BEFORE_MS;
  const before = Math.min(RENEW_BEFORE_MS, (expiresAt - issuedAt) / 10);
  return Math.max(expiresAt - before, issuedAt + RENEW_GAP_MS);
}

/**
 * One re-authentication. The tenant id is the one stored when the device joined, never one from the challenge.
 * Throws `CryptoRefusal` `bad_challenge` for anything but a challenge for this device.
 */
export async function reauthenticate(
  api: PublicApi,
  { sodium, clock }: Pick<Platform, 'sodium' | 'clock'>,
  device: Pick<Identity, 'tenantId' | 'deviceId' | 'keys'>,
): Promise<Token> {
  const { deviceId, tenantId, keys } = device;
  const { challengeId, challenge } = await api.reauthChallenge(deviceId);
  const answer = answerReauthChallenge(sodium, { tenantId, deviceId, challengeId }, { challenge, keys });
  const { token, expiresAt } = await api.reauth({ deviceId, challengeId, answer });
  return { text: token, expiresAt, issuedAt: clock.now() };
}

/** 401: expired, or signed with a secret that the server no longer has. Either way the device's key mends it. */
const isTokenRefusal = (error: unknown): boolean => error instanceof ApiError && error.status === 401;
