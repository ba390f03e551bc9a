/**
 * The path to the server: address, DNS, connection and TLS, each checked separately so that the first failure is named.
 * Then the server: is it this service, is its database up, is it this device's vault, and what is its time? Does it serve
 * browsers the files of this release?
 *
 * And the WebSocket of live changes: does it open, does it transport frames, and how long does an idle one last?
 */
import { lookup } from 'node:dns/promises';
import { once } from 'node:events';
import { connect, isIP } from 'node:net';
import { isLocalHost } from '../../protocol/local-host.js';
import { faultsOf, handshake, targetOf, type CertificateFault, type Shown } from '../../sdk/node-certificate.js';
import type { OpenSocket } from '../../sdk/platform.js';
import { count, nullable, object, record, string } from '../../sdk/reader.js';
import { socketUrl } from '../../sdk/reconnecting-socket.js';
import { within } from '../../protocol/clock.js';
import { CLOSE } from '../../protocol/close-codes.js';
import { errorCode } from '../../protocol/error-code.js';
import { WS_TICKET_MS } from '../../protocol/limits.js';
import { PROGRAM_NAME } from '../context.js';
import { fetchOnce, compareWebApp, readRelease, type Reply } from '../web-check.js';
import { about, span, type CheckName, type DoctorContext, type Figures, type Finding } from './finding.js';

const WITHIN_MS = 10_000;
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

/** Plain http is safe on this machine only. */
export function checkAddress(doctor: DoctorContext): Finding {
  const { ok, problem } = about('address');
  const { serverUrl } = doctor.identity;
  const { host, tls } = targetOf(serverUrl);
  if (tls) return ok(`The address is ${serverUrl}.`);
  if (isLocalHost(new URL(serverUrl).hostname))
    return ok(`The address is ${serverUrl}, on this machine: no TLS is needed.`);
  return problem(
    `The address is plain http: everyone on the way to ${host} sees this device's token and can use it.`,
    'Put the server behind TLS (the reference, Configuration, "Behind a proxy"), then recover or pair this device with the https address.',
  );
}

/** DNS: does the name resolve? */
export async function checkName(doctor: DoctorContext): Promise<Finding> {
  const { ok, problem } = about('dns');
  const { host } = targetOf(doctor.identity.serverUrl);
  if (isIP(host) !== 0) return ok(`${host} is an address; no name is looked up.`);
  const advice = 'Is this machine online, and is the name spelled right? Try another network or name server.';
  try {
    const found = await within(doctor.platform.clock, WITHIN_MS, lookup(host, { all: true }), undefined);
    if (found === undefined) return problem(`The name ${host} was not answered within 10 s.`, advice);
    return ok(`${host} is ${found.map(({ address }) => address).join(', ')}.`);
  } catch (error) {
    const code = errorCode(error);
    const gone = code === 'ENOTFOUND' || code === 'ENODATA';
    const what = gone ? `There is no server named ${host}.` : `The name ${host} cannot be looked up (${code}).`;
    return problem(what, advice);
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
  const { host, port } = targetOf(doctor.identity.serverUrl);
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
  const target = targetOf(doctor.identity.serverUrl);
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
  const trusted = doctor.terminal.env['NODE_EXTRA_CA_CERTS'] ?? '';
  const faults = faultsOf(outcome, { host, now });
  if (faults.length === 0) return [sound(outcome, now)];
  return faults.map((fault) => faultFinding(fault, host, now, trusted));
}

/** A valid certificate. Short-lived ones are renewed often: the remaining share of the lifetime shows a failing renewal. */
export function sound({ chain: [certificate] }: Shown, now: number): Finding {
  const [from, until] = [Date.parse(certificate.valid_from), Date.parse(certificate.valid_to)];
  if (until - now < Math.min(SOON_MS, (until - from) * SOON_SHARE))
    return about('tls').warning(`The certificate expires in ${span(until - now)}.`, RENEW);
  return about('tls').ok(`The certificate is valid until ${certificate.valid_to}.`);
}

/** `trusted`: the value of `NODE_EXTRA_CA_CERTS`. */
function faultFinding({ kind, which, at = NaN, named }: CertificateFault, host: string, now: number, trusted: string) {
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

/** Reads the server's status, and its time from the `Date` header. */
export async function checkServer(doctor: DoctorContext): Promise<readonly Finding[]> {
  const url = `${doctor.identity.serverUrl}/api/service/status`;
  const headers = { accept: 'application/json', 'x-wire-shape': 'a' };
  let reply: Reply;
  try {
    reply = await fetchOnce(doctor.platform, url, { headers, max: REPLY_MAX });
  } catch (error) {
    const cause = error instanceof Error ? errorCode(error.cause) || error.name : '';
    const what = `The connection opens, but a request gets no answer (${cause}).`;
    return [about('server').problem(what, 'Is it an HTTP server on this port, and not overloaded?')];
  }
  const { sentAt, receivedAt } = reply;
  const at = Date.parse(reply.headers.get('date') ?? '');
  // The header has whole seconds: the middle of one is off by half a second at most.
  if (!Number.isNaN(at))
    doctor.time = { serverTime: at + DATE_RESOLUTION_MS / 2, resolutionMs: DATE_RESOLUTION_MS, sentAt, receivedAt };
  return [...serverFindings(doctor, reply), ...checkClock(doctor)];
}

function serverFindings(doctor: DoctorContext, reply: Reply): readonly Finding[] {
  const { ok, problem } = about('server');
  let status: ReturnType<typeof readStatus>;
  try {
    status = readStatus(JSON.parse(new TextDecoder().decode(reply.bytes)), '');
  } catch {
    return [problem(...otherServer(doctor, reply))];
  }
  const { version, database, claimed, tenantId } = status;
  const faults: Finding[] = [];
  const down = 'Start PostgreSQL, or check its log. Your changes wait here meanwhile.';
  if (database !== 'up')
    faults.push(problem(`The server (version ${version}) is up, its database is ${database}.`, down));
  if (tenantId !== '' && tenantId !== doctor.identity.tenantId) {
    const what = 'The server at this address holds a different vault from the one this device belongs to.';
    const advice =
      'Is the address right? If the server was set up again: `recover` with the twelve words, then `import` an archive.';
    faults.push(problem(what, advice));
  }
  const back = '`recover` with the twelve words brings a device back.';
  if (claimed === false) faults.push(problem('Nobody has claimed this server: its devices were wiped.', back));
  return faults.length > 0 ? faults : [ok(`The server runs version ${version}; its database is up.`)];
}

/** A response that is not from this service. */
function otherServer({ identity: { serverUrl } }: DoctorContext, { status, headers }: Reply): Fault {
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
function checkClock({ time }: DoctorContext): readonly Finding[] {
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

/** A missing web app, or one of another version, is no problem: there is nothing to compare. */
export async function checkWebApp({ platform, identity }: DoctorContext): Promise<Finding> {
  const { ok, problem } = about('web');
  const release = await readRelease();
  if (release === undefined) return ok('This program has no files of the web app, so it was not compared.');
  const { version } = release;
  const app = await compareWebApp(platform, identity.serverUrl, release);
  if (app.kind === 'none') return ok('The server serves no web app (WEB_APP is off).');
  if (app.kind === 'other')
    return ok(`The server runs version ${app.version}, this program ${version}: its web app was not compared.`);
  const wrong = app.files.filter(({ found }) => found !== 'same');
  const [first] = wrong;
  if (first === undefined) return ok(`The web app that the server serves is version ${version}.`);
  return problem(
    `The web app that the server serves is not version ${version}: ${wrong.length} of ${app.files.length} files (${first.path}).`,
    `Do not open it in a browser until you know why: \`${PROGRAM_NAME} verify-web\` lists the files. A proxy that rewrites pages does this too.`,
  );
}

const OPEN_WITHIN_MS = 15_000;
/** The server's default (the reference, Configuration). */
const PING_EVERY_MS = 30_000;
const PROXY_HINT =
  'A proxy in between must forward the Upgrade header for /ws (nginx: proxy_http_version 1.1; proxy_set_header Upgrade ' +
  '$http_upgrade; proxy_set_header Connection "upgrade";). Without it, changes arrive only when a command asks.';

const readTicket = object({ ticket: string, expiresAt: count });

interface Closed {
  readonly code: number;
  readonly reason: string;
  readonly at: number;
}

/** A connection under test: its frames, their times, and how it ended. */
class TestConnection {
  readonly closed: Promise<Closed>;
  /** Time of the last frame, and of each ping of the server. */
  heardAt: number;
  readonly pings: number[] = [];
  private readonly socket: OpenSocket;
  private readonly waiting = new Map<string, () => void>();

  constructor(
    private readonly doctor: DoctorContext,
    url: string,
  ) {
    const { clock, sockets } = doctor.platform;
    this.heardAt = clock.now();
    let close: (closed: Closed) => void = () => undefined;
    this.closed = new Promise((resolve) => (close = resolve));
    this.socket = sockets.open(url, {
      opened: () => this.arrived('opened'),
      message: (text) => {
        this.heardAt = clock.now();
        this.take(text);
      },
      closed: (code, reason) => close({ code, reason, at: clock.now() }),
    });
  }

  send(frame: Readonly<Record<string, unknown>>): void {
    this.socket.send(JSON.stringify(frame));
  }

  /** Waits for the opening or a frame of `type`, for the end of the connection, or for the time-out. */
  next(type: string, withinMs = WITHIN_MS): Promise<'here' | 'late' | Closed> {
    const here = new Promise<'here'>((resolve) => this.waiting.set(type, () => resolve('here')));
    return within(this.doctor.platform.clock, withinMs, Promise.race([here, this.closed]), 'late');
  }

  /** Sends a ping; true where it is answered. */
  async answers(): Promise<boolean> {
    const answered = this.next('pong');
    this.send({ type: 'ping' });
    return (await answered) === 'here';
  }

  end(): void {
    this.socket.close(1000, 'looked enough');
  }

  private take(text: string): void {
    let type: unknown;
    try {
      type = record(JSON.parse(text), 'frame')['type'];
    } catch {
      return;
    }
    if (type === 'ping') {
      this.pings.push(this.heardAt);
      this.send({ type: 'pong' });
    }
    if (typeof type === 'string') this.arrived(type);
  }

  private arrived(type: string): void {
    this.waiting.get(type)?.();
    this.waiting.delete(type);
  }
}

/** Gets a ticket, opens a connection, and leaves it idle for `idleMs`. */
export async function checkSocket(doctor: DoctorContext): Promise<readonly Finding[]> {
  const { platform, identity, session } = doctor;
  if (session === undefined) return [];
  const sentAt = platform.clock.now();
  const reply = await session.call({ method: 'POST', path: '/ws-ticket', body: {}, repeatable: true });
  const { ticket, expiresAt } = readTicket(reply.body, '/ws-ticket');
  const clock: Finding[] = [];
  if (doctor.time === undefined) {
    // A ticket's lifetime is known, so its expiry gives the server's time.
    const serverTime = expiresAt - WS_TICKET_MS;
    doctor.time = { serverTime, resolutionMs: 0, sentAt, receivedAt: platform.clock.now() };
    clock.push(...checkClock(doctor));
  }
  const connection = new TestConnection(doctor, socketUrl(identity.serverUrl, ticket));
  try {
    const upgrade = await checkUpgrade(connection);
    const idle = upgrade.status === 'ok' ? [await checkIdle(doctor, connection, session.figures)] : [];
    return [...clock, upgrade, ...idle];
  } finally {
    connection.end();
  }
}

async function checkUpgrade(connection: TestConnection): Promise<Finding> {
  const { ok, problem } = about('upgrade');
  const opened = await connection.next('opened', OPEN_WITHIN_MS);
  if (opened === 'late') return problem('The connection for live changes does not open: no answer came.', PROXY_HINT);
  if (opened !== 'here') {
    const status = /response: (\d{3})/.exec(opened.reason)?.[1];
    const full = 'The server has no room for another connection now (503).';
    if (status === '503') return problem(full, 'Wait a little and try again.');
    const how = status === undefined ? 'it was cut' : `the answer was ${status}`;
    return problem(`The connection for live changes is refused on the way (${how}).`, PROXY_HINT);
  }
  if (await connection.answers()) return ok('The connection for live changes opens and works.');
  return problem('The connection for live changes opens, but nothing comes through it.', PROXY_HINT);
}

/** Keeps the connection idle, as a device without changes does, and measures when it is cut. */
async function checkIdle(doctor: DoctorContext, connection: TestConnection, figures: Figures): Promise<Finding> {
  const { ok, problem } = about('idle');
  const { idleMs, terminal, platform } = doctor;
  const { clock } = platform;
  const caughtUp = connection.next('caught_up');
  connection.send({ type: 'hello', since: figures.headVersion, epoch: figures.epoch, acks: true });
  if ((await caughtUp) !== 'here') {
    const what = 'The server does not answer `hello` on the connection for live changes.';
    return problem(what, 'Check the server log.');
  }
  const began = clock.now();
  terminal.progress(`Holding an idle connection for ${span(idleMs)} ...`);
  const interrupted = once(terminal.interrupted, 'abort').then(() => 'enough' as const);
  const outcome = await within(clock, idleMs, Promise.race([connection.closed, interrupted]), 'enough' as const);
  terminal.progress('');
  if (outcome !== 'enough') return idleCut(outcome, connection, began);
  const alive = await connection.answers();
  const lasted = clock.now() - began;
  if (!alive) return idleCut({ code: 1006, at: clock.now() }, connection, began);
  const longer = lasted < PING_EVERY_MS ? ' (--idle 120 watches longer)' : '';
  return ok(`An idle connection lived for the ${span(lasted)} it was watched${longer}.`);
}

const OWN_CODES: ReadonlySet<number> = new Set<number>([...Object.values(CLOSE), 1000, 1001, 1012, 1013]);

function idleCut({ code, at }: Omit<Closed, 'reason'>, { heardAt, pings }: TestConnection, began: number): Finding {
  const { warning, problem } = about('idle');
  if (OWN_CODES.has(code)) {
    const what = `The server itself closed the idle connection (${code}).`;
    return warning(what, 'It may have been restarted. Run doctor again.');
  }
  const silent = at - Math.max(heardAt, began);
  const [first, second] = pings;
  const interval = first === undefined || second === undefined ? PING_EVERY_MS : second - first;
  return problem(
    `An idle connection was cut after ${span(silent)} of silence, without notice. The server sends something every ${span(interval)}.`,
    `A proxy or firewall in between ends connections that are silent this long. Raise its timeout for /ws above ${span(2 * interval)} ` +
      `(nginx: proxy_read_timeout), or set WS_PING_INTERVAL_MS on the server below ${span(silent)}.`,
  );
}
