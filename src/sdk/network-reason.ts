/** Why a server cannot be reached, in plain words: Node's codes of sockets, names and certificates. */
import { errorCode } from '../protocol/error-code.js';
import { CodedError, type NetworkError } from './errors.js';

/** How a certificate of one's own authority becomes one that holds: by the variable that Node reads when it starts. */
export const TRUST_IT = 'if the authority is your own, set NODE_EXTRA_CA_CERTS=/path/ca.pem to its root certificate';

const UNKNOWN = `its certificate is signed by an authority that this machine does not know; ${TRUST_IT}`;

const NETWORK: Readonly<Record<string, string>> = {
  ECONNREFUSED: 'nothing listens at its address',
  ENOTFOUND: 'its name is not known',
  EAI_AGAIN: 'its name could not be looked up',
  ECONNRESET: 'the connection was cut',
  ETIMEDOUT: 'no answer in time',
};

/** What OpenSSL finds wrong with a certificate, as Node names it. */
const CERTIFICATE: Readonly<Record<string, string>> = {
  CERT_HAS_EXPIRED: 'its certificate has expired',
  CERT_NOT_YET_VALID: "its certificate is not valid yet: is this machine's clock right?",
  CERT_REVOKED: 'its certificate was revoked',
  DEPTH_ZERO_SELF_SIGNED_CERT:
    'its certificate is self-signed; if it is your own, set NODE_EXTRA_CA_CERTS=/path/cert.pem to it',
  SELF_SIGNED_CERT_IN_CHAIN: UNKNOWN,
  UNABLE_TO_GET_ISSUER_CERT: UNKNOWN,
  UNABLE_TO_GET_ISSUER_CERT_LOCALLY: UNKNOWN,
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: UNKNOWN,
  CERT_SIGNATURE_FAILURE: 'its certificate is not signed by the authority that it names',
  CERT_CHAIN_TOO_LONG: 'the chain of its certificate is too long',
  INVALID_CA: 'its certificate is signed by a certificate that is no authority',
  INVALID_PURPOSE: 'its certificate is not for a server',
  PATH_LENGTH_EXCEEDED: 'its certificate is signed by an authority that may not sign it',
  CERT_UNTRUSTED: UNKNOWN,
  CERT_REJECTED: 'its certificate is rejected by this machine',
  ERR_TLS_CERT_ALTNAME_INVALID: 'its certificate is for another name',
};

/** True for a code of Node's that says that a certificate does not hold. */
export const isCertificateCode = (code: string): boolean => Object.hasOwn(CERTIFICATE, code);

/**
 * A certificate that does not hold, with which one it is. Its message is for the person at the device: the names in it
 * are the server's words.
 */
export class CertificateError extends CodedError<string> {
  override readonly name = 'CertificateError';
}

/**
 * See above: of the first known code in the chain of causes; an empty text where nothing is known. `quoted` false: without
 * any word of the server, for readers that its words must not reach.
 */
export function networkReason(error: NetworkError, { quoted = true }: { readonly quoted?: boolean } = {}): string {
  let at: unknown = error;
  for (let depth = 0; depth < 5 && at instanceof Error; depth++, at = at.cause) {
    if (quoted && at instanceof CertificateError) return at.message;
    const code = errorCode(at);
    for (const known of [NETWORK, CERTIFICATE]) if (Object.hasOwn(known, code)) return known[code] ?? '';
  }
  return error.code === 'timeout' ? 'no answer in time' : '';
}
