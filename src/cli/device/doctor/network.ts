/** The way to the server: address, name, connection, TLS. Each is tried by itself, so that the first that fails is named. */
import { lookup } from 'node:dns/promises';
import { connect, isIP } from 'node:net';
import { checkServerIdentity, connect as connectTls, type PeerCertificate } from 'node:tls';
import { errorCode } from '../../../protocol/error-code.js';
import { ok, problem, span, warning, within, type CheckName, type Finding, type Patient } from './finding.js';

const WITHIN_MS = 10_000;
const SOON_MS = 14 * 24 * 3_600_000;

/** Host and port that are dialled. */
export interface Target {
  readonly host: string;
  readonly port: number;
  readonly tls: boolean;
}

/** The target of a server's address. */
export function targetOf(serverUrl: string): Target {
  const { hostname, port, protocol } = new URL(serverUrl);
  const tls = protocol === 'https:';
  return { host: hostname.replace(/^\[|\]$/g, ''), port: port === '' ? (tls ? 443 : 80) : Number(port), tls };
}

const isLoopback = (host: string): boolean =>
  host === 'localhost' || host.endsWith('.localhost') || host === '::1' || /^127(\.\d{1,3}){3}$/.test(host);

/** Plain http is for this machine only. */
export function checkAddress(serverUrl: string): Finding[] {
  const { host, tls } = targetOf(serverUrl);
  if (tls) return [ok('address', `The address is ${serverUrl}.`)];
  if (isLoopback(host)) return [ok('address', `The address is ${serverUrl}, on this machine: no TLS is needed.`)];
  return [
    problem(
      'address',
      `The address is plain http: everyone on the way to ${host} sees this device's token and can use it.`,
      'Put the server behind TLS (the reference, Hosting), then recover or pair this device with the https address.',
    ),
  ];
}

/** Does the name have an address? */
export async function checkName({ platform }: Patient, { host }: Target): Promise<Finding[]> {
  if (isIP(host) !== 0) return [ok('dns', `${host} is an address; no name is looked up.`)];
  const mend = 'Is this machine on line, and is the name spelled right? Try another network or name server.';
  try {
    const found = await within(platform.clock, WITHIN_MS, lookup(host, { all: true }), undefined);
    if (found === undefined) return [problem('dns', `The name ${host} was not answered within 10 s.`, mend)];
    return [ok('dns', `${host} is ${found.map(({ address }) => address).join(', ')}.`)];
  } catch (error) {
    const gone = errorCode(error) === 'ENOTFOUND' || errorCode(error) === 'ENODATA';
    const what = gone
      ? `There is no server of the name ${host}.`
      : `The name ${host} cannot be looked up (${errorCode(error)}).`;
    return [problem('dns', what, mend)];
  }
}

const CONNECT_CAUSES: Readonly<Record<string, readonly [what: string, mend: string]>> = {
  ECONNREFUSED: ['refuses the connection: nothing listens there', 'Is the server running, and is the port right?'],
  ETIMEDOUT: ['does not answer', 'A firewall may drop the connection, or the machine is off.'],
  EHOSTUNREACH: ['cannot be reached from here', 'Is this machine on line? Is a VPN needed?'],
  ENETUNREACH: ['cannot be reached: there is no network', 'Is this machine on line?'],
  ECONNRESET: ['ends the connection at once', 'A firewall or proxy in between refuses it: ask who runs it.'],
};

function connectFinding(check: CheckName, { host, port }: Target, code: string): Finding {
  const [what, mend] = CONNECT_CAUSES[code] ?? [`cannot be connected to (${code})`, 'Is the address right?'];
  return problem(check, `${host}, port ${port}, ${what}.`, mend);
}

/** Does anything listen there? */
export async function checkConnection({ platform }: Patient, target: Target): Promise<Finding[]> {
  const { host, port } = target;
  const socket = connect({ host, port });
  const began = platform.clock.now();
  try {
    const outcome = await within(
      platform.clock,
      WITHIN_MS,
      new Promise<string>((resolve) => {
        socket.once('connect', () => resolve(''));
        socket.once('error', (error) => resolve(errorCode(error)));
      }),
      'ETIMEDOUT',
    );
    if (outcome !== '') return [connectFinding('connection', target, outcome)];
    return [ok('connection', `${host}, port ${port}, answers after ${platform.clock.now() - began} ms.`)];
  } finally {
    socket.on('error', () => undefined).destroy();
  }
}

interface Handshake {
  readonly certificate: PeerCertificate;
  /** The library's verdict; empty where it holds. */
  readonly verdict: string;
}

function handshake({ host, port }: Target): { readonly done: Promise<Handshake | { code: string }>; end(): void } {
  const named = isIP(host) === 0 ? { servername: host } : {};
  // The certificate is judged below, in words; nothing of the user's is ever sent over this connection.
  const socket = connectTls({ host, port, ...named, rejectUnauthorized: false });
  const done = new Promise<Handshake | { code: string }>((resolve) => {
    socket.once('secureConnect', () => {
      const verdict: unknown = socket.authorizationError;
      const text = verdict instanceof Error ? errorCode(verdict) || verdict.message : verdict;
      resolve({ certificate: socket.getPeerCertificate(), verdict: socket.authorized ? '' : String(text) });
    });
    socket.once('error', (error) => resolve({ code: errorCode(error) || 'EPROTO' }));
  });
  return { done, end: () => socket.on('error', () => undefined).destroy() };
}

const SELF_SIGNED: ReadonlySet<string> = new Set(['DEPTH_ZERO_SELF_SIGNED_CERT', 'SELF_SIGNED_CERT_IN_CHAIN']);
const NO_ISSUER: ReadonlySet<string> = new Set([
  'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
  'UNABLE_TO_GET_ISSUER_CERT',
  'UNABLE_TO_GET_ISSUER_CERT_LOCALLY',
]);

/** Does the certificate hold? Every fault is named: mending one of two brings nobody further. */
export async function checkTls(patient: Patient, target: Target): Promise<Finding[]> {
  if (!target.tls) return [];
  const { done, end } = handshake(target);
  try {
    const outcome = await within(patient.platform.clock, WITHIN_MS, done, { code: 'ETIMEDOUT' });
    if ('code' in outcome) {
      if (outcome.code in CONNECT_CAUSES) return [connectFinding('tls', target, outcome.code)];
      const mend = 'Is it an http server? Then its proxy must speak TLS on this port, or the port is the wrong one.';
      return [problem('tls', `${target.host}, port ${target.port}, does not speak TLS (${outcome.code}).`, mend)];
    }
    const findings = judged(outcome, target, patient.platform.clock.now());
    return findings.length > 0
      ? findings
      : [ok('tls', `The certificate holds, until ${outcome.certificate.valid_to}.`)];
  } finally {
    end();
  }
}

function judged({ certificate, verdict }: Handshake, { host }: Target, now: number): Finding[] {
  const findings: Finding[] = [];
  const until = Date.parse(certificate.valid_to);
  const from = Date.parse(certificate.valid_from);
  const renew = 'Renew it on the server (or its proxy), and see why that did not happen by itself.';
  if (now > until)
    findings.push(problem('tls', `The certificate expired ${span(now - until)} ago (${certificate.valid_to}).`, renew));
  else if (until - now < SOON_MS)
    findings.push(warning('tls', `The certificate expires in ${span(until - now)}.`, renew));
  if (now < from)
    findings.push(
      problem('tls', `The certificate is valid from ${certificate.valid_from} only.`, "Is this machine's clock right?"),
    );
  if (SELF_SIGNED.has(verdict)) {
    const mend =
      'Give the server a certificate of a public authority, or point NODE_EXTRA_CA_CERTS at your own authority.';
    findings.push(
      problem('tls', 'The certificate is signed by itself or by an authority that this machine does not know.', mend),
    );
  }
  if (NO_ISSUER.has(verdict))
    findings.push(
      problem('tls', 'The server does not send the certificate of its authority.', 'Configure the full chain there.'),
    );
  const wrongName = checkServerIdentity(host, certificate);
  if (wrongName !== undefined) {
    const names = certificate.subjectaltname ?? certificate.subject.CN;
    findings.push(
      problem(
        'tls',
        `The certificate is not for ${host} but for ${String(names)}.`,
        'Is the address right? If it is, another site answers there.',
      ),
    );
  }
  if (verdict !== '' && !findings.some(({ status }) => status === 'problem'))
    findings.push(problem('tls', `The certificate does not hold (${verdict}).`, renew));
  return findings;
}
