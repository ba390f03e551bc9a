/** Why a server cannot be reached, in plain words: Node's codes of sockets, names and certificates. */
import { errorCode } from '../protocol/error-code.js';
import type { NetworkError } from './errors.js';

const NETWORK: Readonly<Record<string, string>> = {
  ECONNREFUSED: 'nothing listens at its address',
  ENOTFOUND: 'its name is not known',
  EAI_AGAIN: 'its name could not be looked up',
  ECONNRESET: 'the connection was cut',
  ETIMEDOUT: 'no answer in time',
  CERT_HAS_EXPIRED: 'its certificate has expired',
  DEPTH_ZERO_SELF_SIGNED_CERT: 'its certificate is self-signed',
  SELF_SIGNED_CERT_IN_CHAIN: 'its certificate is not trusted',
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: 'its certificate is not trusted',
  ERR_TLS_CERT_ALTNAME_INVALID: 'its certificate is for another name',
};

/** See above: of the first known code in the chain of causes; an empty text where nothing is known. */
export function networkReason(error: NetworkError): string {
  let at: unknown = error;
  for (let depth = 0; depth < 5 && at instanceof Error; depth++, at = at.cause) {
    const code = errorCode(at);
    if (Object.hasOwn(NETWORK, code)) return NETWORK[code] ?? '';
  }
  return error.code === 'timeout' ? 'no answer in time' : '';
}
