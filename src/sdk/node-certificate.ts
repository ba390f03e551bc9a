/**
 * Determines which certificate of a server is invalid, and why. The system's error has a code and no certificate, so a
 * second handshake reads the certificates. No data is sent over it, and its results are not trusted.
 */
import { once } from 'node:events';
import { isIP } from 'node:net';
import { checkServerIdentity, connect } from 'node:tls';
import type { DetailedPeerCertificate, PeerCertificate, TLSSocket } from 'node:tls';
import { systemClock, within } from '../protocol/clock.js';
import { causesOf, errorCode } from '../protocol/error-code.js';
import { sanitizeText } from '../protocol/sanitize.js';
import type { Platform } from './platform.js';
import { CodedError, type NetworkError } from './errors.js';

/** The certificates that a server sends. */
export interface Shown {
  /** The server's own certificate first, then those of its issuers that are sent or known here. */
  readonly chain: readonly [PeerCertificate, ...PeerCertificate[]];
  /** Node's error code; empty where the certificate is valid. */
  readonly verdict: string;
}

/** A fault of a certificate. All faults of a chain are reported, because repairing only one of two does not help. */
export interface CertificateFault {
  readonly kind:
    | 'expired'
    | 'not_yet_valid'
    | 'self_signed'
    | 'unknown_authority'
    | 'no_chain'
    | 'wrong_name'
    | 'other';
  /** The certificate, as the subject of a sentence. */
  readonly which: string;
  /** End, or start, of its validity, ms. */
  readonly at?: number;
  /** The unknown authority, or the names that the certificate is for. */
  readonly named: string;
}

const LOOK_WITHIN_MS = 5_000;
const SHOWN_MAX = 120;
const CHAIN_MAX = 10;

/** Text from the server as one line of bounded length. */
const oneLine = (text: string | undefined): string => sanitizeText(text ?? '').slice(0, SHOWN_MAX);

/** Node returns an array where a name has several values of one kind. */
const one = (value: string | readonly string[] | undefined): string | undefined =>
  typeof value === 'string' ? value : value?.join(', ');

const nameOf = (subject: PeerCertificate['subject'] | undefined): string =>
  oneLine(one(subject?.CN) ?? one(subject?.O)) || 'nobody';

/** The names that a server's certificate is for. */
const namesOf = ({ subjectaltname, subject }: PeerCertificate): string =>
  oneLine(subjectaltname?.replaceAll('DNS:', '').replaceAll('IP Address:', '')) || nameOf(subject);

/** Host and port to connect to. */
export function targetOf(url: string) {
  const { hostname, port, protocol } = new URL(url);
  const tls = protocol === 'https:';
  return { host: hostname.replace(/^\[|\]$/g, ''), port: port === '' ? (tls ? 443 : 80) : Number(port), tls };
}

/** Starts a handshake that accepts any certificate. `done` rejects with the system's error where there is no TLS. */
export function handshake({ host, port }: { readonly host: string; readonly port: number }) {
  const named = isIP(host) === 0 ? { servername: host } : {};
  const socket = connect({ host, port, ...named, rejectUnauthorized: false });
  // An error after the handshake changes nothing, and without a listener it would end the process.
  socket.on('error', () => undefined);
  const done = once(socket, 'secureConnect').then(() => shownBy(socket));
  return { done, end: () => socket.destroy() };
}

function shownBy(socket: TLSSocket): Shown {
  const verdict: unknown = socket.authorizationError;
  const text = verdict instanceof Error ? errorCode(verdict) || verdict.message : String(verdict);
  const own = socket.getPeerCertificate(true);
  const chain: [PeerCertificate, ...PeerCertificate[]] = [own];
  // A root is its own issuer. A server may send a chain of any length.
  let at: DetailedPeerCertificate | undefined = own;
  while (chain.length < CHAIN_MAX) {
    const issuer: DetailedPeerCertificate | undefined = at.issuerCertificate;
    if (issuer === undefined || issuer === at || issuer.fingerprint256 === at.fingerprint256) break;
    chain.push(issuer);
    at = issuer;
  }
  return { chain, verdict: socket.authorized ? '' : text };
}

/** Codes of OpenSSL for an issuer that is unknown here. */
const NO_AUTHORITY: ReadonlySet<string> = new Set([
  'SELF_SIGNED_CERT_IN_CHAIN',
  'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
  'UNABLE_TO_GET_ISSUER_CERT',
  'UNABLE_TO_GET_ISSUER_CERT_LOCALLY',
  'CERT_UNTRUSTED',
]);

/** The faults of a server's certificates; empty where they are valid. `now`: this machine's time, ms. */
export function faultsOf(
  { chain, verdict }: Shown,
  { host, now }: { readonly host: string; readonly now: number },
): CertificateFault[] {
  const [own] = chain;
  const which = `the certificate for ${namesOf(own)}, issued by ${nameOf(own.issuer)},`;
  const faults: CertificateFault[] = [];
  if (verdict === '' && checkServerIdentity(host, own) === undefined) return faults;
  for (const [depth, certificate] of chain.entries()) {
    const { subject, issuer, valid_from, valid_to } = certificate;
    const subjectOf =
      depth === 0 ? which : `the authority's certificate ${nameOf(subject)}, issued by ${nameOf(issuer)},`;
    const [from, until] = [Date.parse(valid_from), Date.parse(valid_to)];
    if (now > until) faults.push({ kind: 'expired', which: subjectOf, at: until, named: '' });
    if (now < from) faults.push({ kind: 'not_yet_valid', which: subjectOf, at: from, named: '' });
  }
  const last = chain.at(-1) ?? own;
  if (verdict === 'DEPTH_ZERO_SELF_SIGNED_CERT') faults.push({ kind: 'self_signed', which, named: '' });
  else if (NO_AUTHORITY.has(verdict)) {
    // A lone certificate may lack any of its issuers; with issuers sent, only the root is unknown.
    const kind = chain.length === 1 ? 'no_chain' : 'unknown_authority';
    faults.push({ kind, which, named: nameOf(last.issuer) });
  }
  if (checkServerIdentity(host, own) !== undefined) faults.push({ kind: 'wrong_name', which, named: namesOf(own) });
  if (faults.length === 0) faults.push({ kind: 'other', which, named: oneLine(verdict) });
  return faults;
}

/** A fault as the end of "the server cannot be reached: ...". */
export function describeFault({ kind, which, at, named }: CertificateFault, host: string): string {
  const time =
    at === undefined || Number.isNaN(at)
      ? 'an unknown time'
      : new Date(at).toISOString().slice(0, 16).replace('T', ' ');
  const faults: Readonly<Record<CertificateFault['kind'], string>> = {
    expired: `expired at ${time} UTC`,
    not_yet_valid: `is not valid before ${time} UTC: is this machine's clock right?`,
    self_signed: 'is signed by itself; if it is your own, set NODE_EXTRA_CA_CERTS=/path/cert.pem to it',
    unknown_authority: `is signed by an authority that this machine does not know, ${named}; ${TRUST_IT}`,
    no_chain: `comes without its issuer's, which this machine does not know; ${TRUST_IT}, else the server must send the full chain`,
    wrong_name: `is not for ${host} but for ${named}`,
    other: `does not hold (${named})`,
  };
  return `${which} ${faults[kind]}`;
}

/** The code of an invalid certificate in the causes of an error; undefined for any other error. */
const certificateCode = (error: unknown): string | undefined =>
  causesOf(error)
    .map(errorCode)
    .find((code) => Object.hasOwn(CERTIFICATE, code));

/** The faults as text; undefined where the second handshake shows none. */
async function describeFaults(url: string): Promise<string | undefined> {
  const { host, port } = targetOf(url);
  const { done, end } = handshake({ host, port });
  try {
    const shown = await within(systemClock, LOOK_WITHIN_MS, done, undefined);
    const faults = shown === undefined ? [] : faultsOf(shown, { host, now: Date.now() });
    return faults.length === 0 ? undefined : faults.map((fault) => describeFault(fault, host)).join('; ');
  } catch {
    // The caller then reports the original error.
    return undefined;
  } finally {
    end();
  }
}

/** A `fetch` whose errors say which certificate is invalid, if that is the cause. */
export const withCertificateErrors =
  (fetch: Platform['fetch']): Platform['fetch'] =>
  async (url, init) => {
    try {
      return await fetch(url, init);
    } catch (error) {
      const code = certificateCode(error);
      if (code === undefined || !url.startsWith('https:')) throw error;
      const described = await describeFaults(url);
      throw described === undefined ? error : new CertificateError(code, described, { cause: error });
    }
  };

/** How to trust the certificate of a private authority: by the variable that Node reads at start. */
const TRUST_IT = 'if the authority is your own, set NODE_EXTRA_CA_CERTS=/path/ca.pem to its root certificate';

const UNKNOWN = `its certificate is signed by an authority that this machine does not know; ${TRUST_IT}`;

/** What answers a handshake in plain text, such as this server without a proxy: the code depends on the version of OpenSSL. */
const NO_TLS = 'it does not speak https: check the port, or use http on your own machine';

const NETWORK: Readonly<Record<string, string>> = {
  ECONNREFUSED: 'nothing listens at its address',
  ENOTFOUND: 'its name is not known',
  EAI_AGAIN: 'its name could not be looked up',
  ECONNRESET: 'the connection was cut',
  ETIMEDOUT: 'no answer in time',
  ERR_SSL_WRONG_VERSION_NUMBER: NO_TLS,
  ERR_SSL_PACKET_LENGTH_TOO_LONG: NO_TLS,
};

/** OpenSSL's verification errors, as Node names them. */
const CERTIFICATE: Readonly<Record<string, string>> = {
  CERT_HAS_EXPIRED: 'its certificate has expired',
  CERT_NOT_YET_VALID: "its certificate is not valid yet: is this machine's clock right?",
  CERT_REVOKED: 'its certificate was revoked',
  DEPTH_ZERO_SELF_SIGNED_CERT:
    'its certificate is self-signed; if it is your own, set NODE_EXTRA_CA_CERTS=/path/cert.pem to it',
  CERT_SIGNATURE_FAILURE: 'its certificate is not signed by the authority that it names',
  CERT_CHAIN_TOO_LONG: 'the chain of its certificate is too long',
  INVALID_CA: 'its certificate is signed by a certificate that is no authority',
  INVALID_PURPOSE: 'its certificate is not for a server',
  PATH_LENGTH_EXCEEDED: 'its certificate is signed by an authority that may not sign it',
  CERT_REJECTED: 'its certificate is rejected by this machine',
  ...Object.fromEntries([...NO_AUTHORITY].map((code) => [code, UNKNOWN])),
  ERR_TLS_CERT_ALTNAME_INVALID: 'its certificate is for another name',
};

/**
 * An invalid certificate, with the details. The message is for the user of the device: the names in it come from the
 * server.
 */
export class CertificateError extends CodedError<string> {
  override readonly name = 'CertificateError';
}

/**
 * The cause of a network error as text, by the first known code in its chain of causes; empty where it is unknown.
 * `quoted` false: without any text from the server, for output that must not contain it.
 */
export function networkReason(error: NetworkError, { quoted = true }: { readonly quoted?: boolean } = {}): string {
  for (const cause of causesOf(error)) {
    if (quoted && cause instanceof CertificateError) return cause.message;
    const code = errorCode(cause);
    for (const known of [NETWORK, CERTIFICATE]) if (Object.hasOwn(known, code)) return known[code] ?? '';
  }
  return error.code === 'timeout' ? 'no answer in time' : '';
}
