/** What makes a device this device. Whoever holds it reads and writes everything: keep it where secrets are kept. */
import { hostOf } from '../crypto/pairing.js';
import type { KeyPair } from '../crypto/sodium.js';
import type { Glyph } from '../protocol/requests.js';

/** A device after bootstrap, pairing or recovery. Holds neither the phrase nor anything the phrase alone gives (contract 9). */
export interface Identity {
  /** Address of the server, as `baseOf` gives it. */
  readonly serverUrl: string;
  readonly tenantId: string;
  readonly deviceId: string;
  readonly name: string;
  readonly glyph: Glyph;
  /** X25519. */
  readonly keys: KeyPair;
  /** 32 bytes. */
  readonly masterKey: Uint8Array;
  readonly token: Token;
}

/** A bearer token. Times are ms. */
export interface Token {
  readonly text: string;
  /** In server time; null where the reply that brought it did not say. */
  readonly expiresAt: number | null;
  /** When it was got, in server time as far as that is known; absent where `expiresAt` is not known. Tells how long the token's life is. */
  readonly issuedAt?: number;
}

/** The host that this device dials, as pairing and recovery bind it. */
export const ownHost = (identity: Pick<Identity, 'serverUrl'>): string => hostOf(identity.serverUrl);
