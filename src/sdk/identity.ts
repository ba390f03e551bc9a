/** The identity of a device. It gives access to all data: store it as a secret. */
import type { KeyPair } from '../crypto/sodium.js';
import { toBase64Url } from '../protocol/base64.js';
import { parsedJson } from '../protocol/bytes.js';
import { KEY_BYTES, SERVICE_NAME } from '../protocol/limits.js';
import type { Glyph } from '../protocol/requests.js';
import { isGlyph } from './api.js';
import { ClientError, ProtocolError } from './errors.js';
import { baseOf } from './http.js';
import { bytes, count, nonEmpty, nullable, object, record, string, tokenText } from './reader.js';
import type { Read, Reader } from './reader.js';

/** A device after bootstrap, pairing or recovery. Contains neither the phrase nor keys that only the phrase gives. */
export interface Identity {
  /** The server's address, as `baseOf` gives it. */
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
  /** In server time; null if the reply did not contain it. */
  readonly expiresAt: number | null;
  /**
   * When it was issued, in server time if the clock offset is known; absent where `expiresAt` is unknown. With
   * `expiresAt` it gives the token's lifetime.
   */
  readonly issuedAt?: number;
}

/** Must be incremented with every change of the saved form; older versions must stay readable. */
const VERSION = 1;
const FORMAT = `${SERVICE_NAME}-identity`;

/** An identity as JSON, written by `JSON.stringify` and read by `parse`. As secret as the identity. */
export interface IdentityJson extends Omit<Identity, 'keys' | 'masterKey'> {
  readonly format: string;
  readonly version: typeof VERSION;
  /** 32 bytes each, base64url. */
  readonly publicKey: string;
  readonly secretKey: string;
  readonly masterKey: string;
}

/** Readers of the fields of `secretsOf`. */
export const SECRETS = {
  tenantId: nonEmpty,
  glyph: string,
  publicKey: bytes(KEY_BYTES),
  secretKey: bytes(KEY_BYTES),
  masterKey: bytes(KEY_BYTES),
  token: object({ text: tokenText, expiresAt: nullable(count), issuedAt: nullable(count) }),
};

type Secrets = { readonly [K in keyof typeof SECRETS]: Read<(typeof SECRETS)[K]> };

/** The part of an identity that programs store encrypted: all but server address, device id and name. */
export const secretsOf = ({ tenantId, glyph, keys, masterKey, token }: Identity) => ({
  tenantId,
  glyph,
  publicKey: toBase64Url(keys.publicKey),
  secretKey: toBase64Url(keys.secretKey),
  masterKey: toBase64Url(masterKey),
  token,
});

/** An identity from decoded fields. Throws `ClientError` `bad_identity` for an unknown glyph or a bad address. */
export function identityOf(
  { tenantId, glyph, publicKey, secretKey, masterKey, token }: Secrets,
  { serverUrl, deviceId, name }: Pick<Identity, 'serverUrl' | 'deviceId' | 'name'>,
): Identity {
  if (!isGlyph(glyph)) throw badIdentity('glyph must be a known one');
  const { text, expiresAt, issuedAt } = token;
  return {
    ...{ serverUrl: reading(() => baseOf(serverUrl)), tenantId, deviceId, name, glyph, masterKey },
    keys: { publicKey, secretKey },
    token: { text, expiresAt, ...(issuedAt === null ? {} : { issuedAt }) },
  };
}

const readSaved = object({ serverUrl: nonEmpty, deviceId: nonEmpty, name: string, ...SECRETS });

/** A key as bytes, not as the text of the saved form. */
const keyBytes: Reader<void> = (value, path) => {
  if (!ArrayBuffer.isView(value) || value.byteLength !== KEY_BYTES)
    throw badIdentity(`${path} must be ${KEY_BYTES} bytes: a saved identity is read by Identity.parse`);
};

/** Runtime checks, because an identity read from JSON without `parse` does not have the declared types. */
const expectFields = object({
  keys: object({ publicKey: keyBytes, secretKey: keyBytes }),
  masterKey: keyBytes,
  token: object({ text: string }),
});

/**
 * An identity that can be saved: `JSON.stringify` writes it, `parse` reads it. The package exports it as `Identity`.
 */
export class SavableIdentity implements Identity {
  readonly serverUrl: string;
  readonly tenantId: string;
  readonly deviceId: string;
  readonly name: string;
  readonly glyph: Glyph;
  readonly keys: KeyPair;
  readonly masterKey: Uint8Array;
  readonly token: Token;

  private constructor(fields: Identity) {
    this.serverUrl = fields.serverUrl;
    this.tenantId = fields.tenantId;
    this.deviceId = fields.deviceId;
    this.name = fields.name;
    this.glyph = fields.glyph;
    this.keys = fields.keys;
    this.masterKey = fields.masterKey;
    this.token = fields.token;
  }

  /** Creates an identity from its fields. Throws `ClientError` `bad_identity` where one has the wrong type. */
  static of(fields: Identity): SavableIdentity {
    if (fields instanceof SavableIdentity) return fields;
    reading(() => expectFields(fields, ''));
    return new SavableIdentity(fields);
  }

  /** Reads a saved identity: JSON text, or the parsed value. Throws `ClientError` `bad_identity`. */
  static parse(saved: unknown): SavableIdentity {
    const value = typeof saved === 'string' ? parsedJson(saved, () => badIdentity('must be JSON')) : saved;
    const read = reading(() => {
      const { format, version } = record(value, '');
      if (format !== FORMAT)
        throw badIdentity(`format must be "${FORMAT}": this is not what JSON.stringify makes of an identity`);
      if (version !== VERSION) throw badIdentity(`version must be ${VERSION}: it was saved by another version`);
      return readSaved(value, '');
    });
    return new SavableIdentity(identityOf(read, read));
  }

  /** The same device with a newer token. */
  withToken(token: Token): SavableIdentity {
    const { ...fields } = this;
    return new SavableIdentity({ ...fields, token });
  }

  /** The saved form, for `JSON.stringify`. */
  toJSON(): IdentityJson {
    const { serverUrl, deviceId, name } = this;
    return { format: FORMAT, version: VERSION, serverUrl, deviceId, name, ...secretsOf(this) };
  }
}

/** Messages name the field and never its value. */
const badIdentity = (rule: string): ClientError => new ClientError('bad_identity', `identity: ${rule}`);

function reading<T>(read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (error instanceof ProtocolError) throw badIdentity(error.message.replace(/^: /, ''));
    if (error instanceof TypeError) throw badIdentity('serverUrl must be an http address');
    throw error;
  }
}
