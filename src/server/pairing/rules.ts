/** Rules of pairing that need no database. */
import { normalizeWords } from '../../crypto/words.js';
import { ServiceError, invalid } from '../../protocol/errors.js';
import { bytesField, bytesWithin } from '../../protocol/item-codec.js';
import { SIG_BYTES, WRAPPED_MASTER_KEY_MAX, WRAPPED_MASTER_KEY_MIN } from '../../protocol/limits.js';
import type { PairWrapBody } from '../../protocol/requests.js';
import type { PairAnswer, PairRelease, PairStanding } from './ports.js';

/** Six words as BIP39's English list has them. Their checksum is the clients' business. */
const CODE = /^[a-z]{3,8}(?: [a-z]{3,8}){5}$/;
/** What a host name on the wire can be: printable ASCII, since others are written in punycode. */
const HOST = /^[!-~]+$/;

/**
 * A code as it is stored and compared: NFKD, lower case, hyphens and white space as one space.
 * Throws `pair_invalid` for anything that is not six words.
 */
export function pairCode(value: string): string {
  const code = normalizeWords(value);
  if (!CODE.test(code)) throw new ServiceError('pair_invalid');
  return code;
}

/** The host that the new device dialled, kept as it is. Throws `validation`. */
export function pairHost(value: string | null | undefined): string | null {
  if (value === null || value === undefined) return null;
  if (!HOST.test(value)) throw invalid('host', 'must be a host name in printable ASCII');
  return value;
}

/** What the existing device answers: its wrap, or null for a rejection. Throws `validation`. */
export function wrapOf(body: PairWrapBody): PairAnswer['wrap'] {
  const wrapped = body.wrappedMasterKey ?? null;
  if (body.reject === true) {
    if (wrapped !== null) throw invalid('reject', 'excludes a wrapped master key');
    return null;
  }
  if (wrapped === null) throw invalid('wrappedMasterKey', 'required, unless reject is true');
  const tag = (path: 'deviceCert' | 'confirmation'): Uint8Array | null => {
    const value = body[path] ?? null;
    return value === null ? null : bytesField(path, value, SIG_BYTES);
  };
  return {
    wrappedMasterKey: bytesWithin('wrappedMasterKey', wrapped, WRAPPED_MASTER_KEY_MIN, WRAPPED_MASTER_KEY_MAX),
    deviceCert: tag('deviceCert'),
    confirmation: tag('confirmation'),
  };
}

/**
 * What the new device is told of its session: the release, or null while the existing device has not answered.
 * Throws `pair_invalid` for a session that was rejected, ended or revoked, `pair_expired` for a late one. One that was
 * answered in time is never late: its device exists by then, and could get its wrapped key nowhere else.
 */
export function judge(standing: PairStanding | undefined, now: number): PairRelease | null {
  if (standing === undefined || standing.state === 'rejected') throw new ServiceError('pair_invalid');
  if (standing.state === 'wrapped') {
    if (standing.release === null) throw new ServiceError('pair_invalid');
    return standing.release;
  }
  if (standing.expiresAt <= now) throw new ServiceError('pair_expired');
  return null;
}
