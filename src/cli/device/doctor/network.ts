/** The way to the server: address, name, connection, TLS. Each is tried by itself, so that the first that fails is named. */
import { lookup } from 'node:dns/promises';
import { connect, isIP } from 'node:net';
import { faultsOf, handshake, type CertificateFault, type Shown } from '../../../client/node-certificate.js';
import { errorCode } from '../../../protocol/error-code.js';
import { ok, problem, span, warning, within, type CheckName, type Finding, type Patient } from './finding.js';

const WITHIN_MS = 10_000;
const SOON_MS = 14 * 24 * 3_600_000;
/** Proxies renew when about a third of a certificate's life is left. */
const SOON_SHARE = 0.15;
const RENEW = 'Renew it on the server (or its proxy), and see why that did not happen by itself.';

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

/** Does the certificate hold? Every fault is named: mending one of two brings nobody further. */
export async function checkTls(patient: Patient, target: Target): Promise<Finding[]> {
  if (!target.tls) return [];
  const { clock } = patient.platform;
  const { done, end } = handshake(target);
  try {
    const outcome = await within<Shown | string, string>(
      clock,
      WITHIN_MS,
      done.catch((error: unknown) => errorCode(error) || 'EPROTO'),
      'ETIMEDOUT',
    );
    if (typeof outcome === 'string') {
      if (outcome in CONNECT_CAUSES) return [connectFinding('tls', target, outcome)];
      const mend = 'Is it an http server? Then its proxy must speak TLS on this port, or the port is the wrong one.';
      return [problem('tls', `${target.host}, port ${target.port}, does not speak TLS (${outcome}).`, mend)];
    }
    const now = clock.now();
    const trusted = patient.context.terminal.env['NODE_EXTRA_CA_CERTS'] ?? '';
    const faults = faultsOf(outcome, { host: target.host, now });
    return faults.length === 0 ? [sound(outcome, now)] : faults.map((fault) => told(fault, { target, now, trusted }));
  } finally {
    end();
  }
}

/** It holds. One that lives for hours is renewed every few of them: how much of its life is left says whether that fails. */
export function sound({ chain: [certificate] }: Shown, now: number): Finding {
  const [from, until] = [Date.parse(certificate.valid_from), Date.parse(certificate.valid_to)];
  if (until - now < Math.min(SOON_MS, (until - from) * SOON_SHARE))
    return warning('tls', `The certificate expires in ${span(until - now)}.`, RENEW);
  return ok('tls', `The certificate holds, until ${certificate.valid_to}.`);
}

interface Telling {
  readonly target: Target;
  readonly now: number;
  /** What `NODE_EXTRA_CA_CERTS` says. */
  readonly trusted: string;
}

function told(
  { kind, which, at = NaN, named }: CertificateFault,
  { target: { host }, now, trusted }: Telling,
): Finding {
  const what = `${which.charAt(0).toUpperCase()}${which.slice(1)}`;
  const date = Number.isNaN(at) ? 'an unknown time' : new Date(at).toUTCString();
  const set =
    trusted === ''
      ? 'set NODE_EXTRA_CA_CERTS=/path/ca.pem'
      : `look at NODE_EXTRA_CA_CERTS: ${trusted} cannot be read or does not have it`;
  switch (kind) {
    case 'expired':
      return problem('tls', `${what} expired ${span(now - at)} ago (${date}).`, RENEW);
    case 'not_yet_valid':
      return problem('tls', `${what} is valid from ${date} only.`, "Is this machine's clock right?");
    case 'self_signed':
      return problem(
        'tls',
        `${what} is signed by itself.`,
        `If it is your own, ${set} (the certificate) for every program that connects; else get one of a public authority.`,
      );
    case 'unknown_authority':
      return problem(
        'tls',
        `${what} is signed by an authority that this machine does not know: ${named}.`,
        `If the authority is your own, ${set} (its root certificate) for every program that connects; else get a certificate of a public authority.`,
      );
    case 'no_chain':
      return problem(
        'tls',
        `${what} comes alone, and this machine does not know who issued it.`,
        `If the authority is your own, ${set} (its root certificate) for every program that connects; else configure the full chain on the server.`,
      );
    case 'wrong_name':
      return problem(
        'tls',
        `${what} is not for ${host} but for ${named}.`,
        'Is the address right? If it is, another site answers there.',
      );
    case 'other':
      return problem('tls', `${what} does not hold (${named}).`, RENEW);
  }
}
