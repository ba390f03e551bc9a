/**
 * The path to the server: address, DNS, connection and TLS, each checked separately so that the first failure is named.
 * Then the server: is it this service, is its database up, is it this device's vault, and what is its time?
 */
import { lookup } from 'node:dns/promises';
import { connect, isIP } from 'node:net';
import { faultsOf, handshake, type CertificateFault, type Shown } from '../../sdk/node-certificate.js';
import { isLocalHost } from '../../sdk/address.js';
import { nullable, object, string } from '../../sdk/reader.js';
import { within } from '../../protocol/clock.js';
import { errorCode } from '../../protocol/error-code.js';
import { cappedBody } from '../../terminal/capped-body.js';
import { about, span, type CheckName, type Finding, type DoctorContext } from './finding.js';

const WITHIN_MS = 10_000;
const ANSWER_WITHIN_MS = 15_000;
const REPLY_MAX = 64 * 1024;
const SOON_MS = 14 * 24 * 3_600_000;
/** Proxies renew a certificate when about a third of its lifetime is left. */
const SOON_SHARE = 0.15;
const RENEW = 'Renew it on the server (or its proxy), and find out why that did not happen automatically.';
/** Pairing codes live for minutes and fail beyond the second limit; certificates and tokens tolerate more. */
const SKEW_WARNING_MS = 30_000;
const SKEW_PROBLEM_MS = 120_000;
/** Resolution of the `Date` header. */
const DATE_RESOLUTION_MS = 1_000;

/** What is wrong, and what to do. */
type Fault = readonly [what: string, advice: string];

/** Host and port to connect to. */
function targetOf({ identity }: DoctorContext) {
  const { hostname, port, protocol } = new URL(identity.serverUrl);
  const tls = protocol === 'https:';
  return { host: hostname.replace(/^\[|\]$/g, ''), port: port === '' ? (tls ? 443 : 80) : Number(port), tls };
}

/** Plain http is safe on this machine only. */
export function checkAddress(doctor: DoctorContext): Finding {
  const { ok, problem } = about('address');
  const { host, tls } = targetOf(doctor);
  const { serverUrl } = doctor.identity;
  if (tls) return ok(`The address is ${serverUrl}.`);
  if (isLocalHost(new URL(serverUrl).hostname))
    return ok(`The address is ${serverUrl}, on this machine: no TLS is needed.`);
  return problem(
    `The address is plain http: everyone on the way to ${host} sees this device's token and can use it.`,
    'Put the server behind TLS (the reference, Hosting), then recover or pair this device with the https address.',
  );
}

/** DNS: does the name resolve? */
export async function checkName(doctor: DoctorContext): Promise<Finding> {
  const { ok, problem } = about('dns');
  const { host } = targetOf(doctor);
  if (isIP(host) !== 0) return ok(`${host} is an address; no name is looked up.`);
  const advice = 'Is this machine online, and is the name spelled right? Try another network or name server.';
  try {
    const found = await within(doctor.platform.clock, WITHIN_MS, lookup(host, { all: true }), undefined);
    if (found === undefined) return problem(`The name ${host} was not answered within 10 s.`, advice);
    return ok(`${host} is ${found.map(({ address }) => address).join(', ')}.`);
  } catch (error) {
    const code = errorCode(error);
    const gone = code === 'ENOTFOUND' || code === 'ENODATA';
    return problem(
      gone ? `There is no server named ${host}.` : `The name ${host} cannot be looked up (${code}).`,
      advice,
    );
  }
}

const CONNECT_CAUSES: Readonly<Record<string, Fault>> = {
  ECONNREFUSED: ['refuses the connection: nothing listens there', 'Is the server running, and is the port right?'],
  ETIMEDOUT: ['does not answer', 'A firewall may drop the connection, or the machine is off.'],
  EHOSTUNREACH: ['cannot be reached from here', 'Is this machine online? Is a VPN needed?'],
  ENETUNREACH: ['cannot be reached: there is no network', 'Is this machine online?'],
  ECONNRESET: ['ends the connection at once', 'A firewall or proxy in between refuses it: ask who runs it.'],
};

function connectFinding(check: CheckName, place: string, code: string): Finding {
  const [what, advice] = CONNECT_CAUSES[code] ?? [`cannot be connected to (${code})`, 'Is the address right?'];
  return about(check).problem(`${place}, ${what}.`, advice);
}

/** TCP: does anything listen there? */
export async function checkConnection(doctor: DoctorContext): Promise<Finding> {
  const { clock } = doctor.platform;
  const { host, port } = targetOf(doctor);
  const place = `${host}, port ${port}`;
  const socket = connect({ host, port });
  const began = clock.now();
  const outcome = new Promise<string>((resolve) => {
    socket.once('connect', () => resolve(''));
    socket.on('error', (error) => resolve(errorCode(error)));
  });
  const code = await within(clock, WITHIN_MS, outcome, 'ETIMEDOUT').finally(() => socket.destroy());
  if (code !== '') return connectFinding('connection', place, code);
  return about('connection').ok(`${place}, answers after ${clock.now() - began} ms.`);
}

/** TLS: is the certificate valid? Every fault is listed, since fixing one of two is not enough. */
export async function checkTls(doctor: DoctorContext): Promise<readonly Finding[]> {
  const target = targetOf(doctor);
  if (!target.tls) return [];
  const { host, port } = target;
  const { clock } = doctor.platform;
  const { done, end } = handshake(target);
  const shown = done.catch((error: unknown) => errorCode(error) || 'EPROTO');
  const outcome = await within<Shown | string, string>(clock, WITHIN_MS, shown, 'ETIMEDOUT').finally(end);
  if (typeof outcome === 'string') {
    if (outcome in CONNECT_CAUSES) return [connectFinding('tls', `${host}, port ${port}`, outcome)];
    const advice = 'Is it an http server? Then its proxy must speak TLS on this port, or the port is the wrong one.';
    return [about('tls').problem(`${host}, port ${port}, does not speak TLS (${outcome}).`, advice)];
  }
  const now = clock.now();
  const trusted = doctor.context.terminal.env['NODE_EXTRA_CA_CERTS'] ?? '';
  const faults = faultsOf(outcome, { host, now });
  return faults.length === 0
    ? [sound(outcome, now)]
    : faults.map((fault) => faultFinding(fault, { host, now, trusted }));
}

/** A valid certificate. Short-lived ones are renewed often: the remaining share of the lifetime shows a failing renewal. */
export function sound({ chain: [certificate] }: Shown, now: number): Finding {
  const [from, until] = [Date.parse(certificate.valid_from), Date.parse(certificate.valid_to)];
  if (until - now < Math.min(SOON_MS, (until - from) * SOON_SHARE))
    return about('tls').warning(`The certificate expires in ${span(until - now)}.`, RENEW);
  return about('tls').ok(`The certificate is valid until ${certificate.valid_to}.`);
}

/** `trusted`: the value of `NODE_EXTRA_CA_CERTS`. */
function faultFinding(
  { kind, which, at = NaN, named }: CertificateFault,
  { host, now, trusted }: { readonly host: string; readonly now: number; readonly trusted: string },
): Finding {
  const date = Number.isNaN(at) ? 'an unknown time' : new Date(at).toUTCString();
  const set =
    trusted === ''
      ? 'set NODE_EXTRA_CA_CERTS=/path/ca.pem'
      : `look at NODE_EXTRA_CA_CERTS: ${trusted} cannot be read or does not have it`;
  const root = `If the authority is your own, ${set} (its root certificate) for every program that connects`;
  const faults: Readonly<Record<CertificateFault['kind'], Fault>> = {
    expired: [`expired ${span(now - at)} ago (${date}).`, RENEW],
    not_yet_valid: [`is not valid before ${date}.`, "Is this machine's clock right?"],
    self_signed: [
      'is signed by itself.',
      `If it is your own, ${set} (the certificate) for every program that connects; else get one from a public authority.`,
    ],
    unknown_authority: [
      `is signed by an authority that this machine does not know: ${named}.`,
      `${root}; else get a certificate from a public authority.`,
    ],
    no_chain: [
      'comes without its chain, and this machine does not know its issuer.',
      `${root}; else configure the full chain on the server.`,
    ],
    wrong_name: [`is not for ${host} but for ${named}.`, 'Is the address right? If it is, another site answers there.'],
    other: [`is not valid (${named}).`, RENEW],
  };
  const [what, advice] = faults[kind];
  return about('tls').problem(`${which.charAt(0).toUpperCase()}${which.slice(1)} ${what}`, advice);
}

const readStatus = object({
  version: string,
  claimed: nullable((value) => value === true),
  tenantId: string,
  database: string,
});

async function statusReply({ platform, identity }: DoctorContext) {
  const { clock } = platform;
  const stop = new AbortController();
  const timer = clock.setTimer(ANSWER_WITHIN_MS, () => stop.abort());
  const sentAt = clock.now();
  try {
    const response = await platform.fetch(`${identity.serverUrl}/api/service/status`, {
      headers: { accept: 'application/json', 'x-wire-shape': 'a' },
      redirect: 'manual',
      credentials: 'omit',
      cache: 'no-store',
      signal: stop.signal,
    });
    const receivedAt = clock.now();
    return { response, text: new TextDecoder().decode(await cappedBody(response, REPLY_MAX)), sentAt, receivedAt };
  } finally {
    timer.cancel();
  }
}

/** Reads the server's status, and its time from the `Date` header. */
export async function checkServer(doctor: DoctorContext): Promise<readonly Finding[]> {
  let reply: Awaited<ReturnType<typeof statusReply>>;
  try {
    reply = await statusReply(doctor);
  } catch (error) {
    const cause = error instanceof Error ? errorCode(error.cause) || error.name : '';
    const what = `The connection opens, but a request gets no answer (${cause}).`;
    return [about('server').problem(what, 'Is it an HTTP server on this port, and not overloaded?')];
  }
  const { response, text, sentAt, receivedAt } = reply;
  const at = Date.parse(response.headers.get('date') ?? '');
  // The header has whole seconds: the middle of one is off by half a second at most.
  if (!Number.isNaN(at))
    doctor.time = { serverTime: at + DATE_RESOLUTION_MS / 2, resolutionMs: DATE_RESOLUTION_MS, sentAt, receivedAt };
  return [...serverFindings(doctor, response, text), ...checkClock(doctor)];
}

function serverFindings(doctor: DoctorContext, response: Response, text: string): readonly Finding[] {
  const { ok, problem } = about('server');
  let status: ReturnType<typeof readStatus>;
  try {
    status = readStatus(JSON.parse(text), '');
  } catch {
    return [problem(...otherServer(doctor, response))];
  }
  const { version, database, claimed, tenantId } = status;
  const faults: Finding[] = [];
  if (database !== 'up') {
    const advice = 'Start PostgreSQL, or check its log. Your changes wait here meanwhile.';
    faults.push(problem(`The server (version ${version}) is up, its database is ${database}.`, advice));
  }
  if (tenantId !== '' && tenantId !== doctor.identity.tenantId) {
    const what = 'The server at this address holds a different vault from the one this device belongs to.';
    const advice =
      'Is the address right? If the server was set up again: `recover` with the twelve words, then `import` an archive.';
    faults.push(problem(what, advice));
  }
  if (claimed === false) {
    const advice = '`recover` with the twelve words brings a device back.';
    faults.push(problem('Nobody has claimed this server: its devices were wiped.', advice));
  }
  return faults.length > 0 ? faults : [ok(`The server runs version ${version}; its database is up.`)];
}

/** A response that is not from this service. */
function otherServer({ identity: { serverUrl } }: DoctorContext, { status, headers }: Response): Fault {
  if (status >= 300 && status < 400) {
    const final = 'Redirects are not followed, since a token must not go where they point. Use the final address.';
    return [`${serverUrl} redirects to ${headers.get('location') ?? 'nowhere'}.`, final];
  }
  if (status === 502 || status === 504) {
    const what = `A proxy answers (${status}): it does not reach the server behind it.`;
    return [what, 'Is the server running? Check its log.'];
  }
  if (status === 503) return ['The server is up but not ready (503).', 'Wait a little, then check its log.'];
  if (status === 401 || status === 403 || status === 407) {
    const pass = 'Let it pass /api and /ws through: the devices have their own tokens.';
    return [`A proxy in between asks for a login (${status}).`, pass];
  }
  const path = new URL(serverUrl).pathname;
  const wrongPath =
    path === '/'
      ? 'Is this the address of the server, and not of another site on the same host?'
      : `Is the path ${path} right? The API must be under ${path}/api.`;
  return [`Something answers at ${serverUrl} (${status}), but it is not this service.`, wrongPath];
}

/** The offset between this machine's clock and the server's, less the uncertainty of the request's duration. */
export function checkClock({ time }: DoctorContext): readonly Finding[] {
  if (time === undefined) return [];
  const { ok, warning, problem } = about('clock');
  const skew = (time.sentAt + time.receivedAt) / 2 - time.serverTime;
  const doubt = (time.receivedAt - time.sentAt) / 2 + time.resolutionMs / 2;
  const off = Math.max(0, Math.abs(skew) - doubt);
  const way = skew > 0 ? 'ahead of' : 'behind';
  const what = `This machine's clock is about ${span(Math.abs(skew))} ${way} the server's.`;
  const advice =
    'Let the system set the clock (NTP), here or on the server: pairing codes, tokens and the order of changes depend on it.';
  if (off >= SKEW_PROBLEM_MS) return [problem(what, advice)];
  if (off >= SKEW_WARNING_MS) return [warning(what, advice)];
  return [ok(`This machine's clock agrees with the server's (within ${Math.ceil((off + doubt) / 100) / 10} s).`)];
}
