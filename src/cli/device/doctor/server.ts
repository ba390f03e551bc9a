/** Is it our server, is its database up, is it this device's vault, and what time is it there? */
import { count, nullable, object, record, string } from '../../../client/reader.js';
import { errorCode } from '../../../protocol/error-code.js';
import { ok, problem, span, warning, type Finding, type Patient } from './finding.js';

const WITHIN_MS = 15_000;
const REPLY_MAX = 64 * 1024;
/** Certificates and tokens bear more than this; codes of pairing, by the minute, do not bear more than the second. */
const SKEW_WARNING_MS = 30_000;
const SKEW_PROBLEM_MS = 120_000;
/** `Date` names whole seconds. */
const DATE_RESOLUTION_MS = 1_000;

const readStatus = object({
  version: string,
  claimed: nullable((value) => value === true),
  tenantId: string,
  database: string,
});

interface Reply {
  readonly status: number;
  readonly location: string | null;
  readonly date: string | null;
  readonly text: string;
  /** By this machine's clock, ms. */
  readonly sentAt: number;
  readonly receivedAt: number;
}

/** One look at the server's clock: its time, and between when and when it was read. */
export interface TimeProbe {
  readonly serverTime: number;
  readonly resolutionMs: number;
  readonly sentAt: number;
  readonly receivedAt: number;
}

/** What the server's status says, and its time where the reply named it. */
export interface ServerLook {
  readonly findings: Finding[];
  readonly time?: TimeProbe;
}

async function ask({ platform, identity }: Patient): Promise<Reply> {
  const stop = new AbortController();
  const timer = platform.clock.setTimer(WITHIN_MS, () => stop.abort());
  const sentAt = platform.clock.now();
  try {
    const response = await platform.fetch(`${identity.serverUrl}/api/service/status`, {
      headers: { accept: 'application/json', 'x-wire-shape': 'a' },
      redirect: 'manual',
      credentials: 'omit',
      cache: 'no-store',
      signal: stop.signal,
    });
    const receivedAt = platform.clock.now();
    const { status, headers } = response;
    const text = await capped(response);
    return { status, location: headers.get('location'), date: headers.get('date'), text, sentAt, receivedAt };
  } finally {
    timer.cancel();
  }
}

async function capped({ body }: Response): Promise<string> {
  if (body === null) return '';
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let text = '';
  for (let size = 0; size <= REPLY_MAX;) {
    const { done, value } = await reader.read();
    if (done) return text;
    size += value.length;
    text += decoder.decode(value, { stream: true });
  }
  await reader.cancel();
  return text;
}

/** Asks for the server's status. */
export async function checkServer(patient: Patient): Promise<ServerLook> {
  let reply: Reply;
  try {
    reply = await ask(patient);
  } catch (error) {
    const cause = error instanceof Error ? errorCode(error.cause) || error.name : '';
    const what = `The connection opens, but a request gets no answer (${cause}).`;
    return { findings: [problem('server', what, 'Is it an HTTP server on this port, and not overloaded?')] };
  }
  const parsed = statusOf(reply.text);
  const findings = parsed === undefined ? [stranger(patient, reply)] : judged(patient, parsed);
  const at = reply.date === null ? NaN : Date.parse(reply.date);
  if (Number.isNaN(at)) return { findings };
  // The time was anywhere within that second: its middle is off by half of it at most.
  const { sentAt, receivedAt } = reply;
  return {
    findings,
    time: { serverTime: at + DATE_RESOLUTION_MS / 2, resolutionMs: DATE_RESOLUTION_MS, sentAt, receivedAt },
  };
}

function statusOf(text: string): ReturnType<typeof readStatus> | undefined {
  try {
    return readStatus(record(JSON.parse(text), ''), '');
  } catch {
    return undefined;
  }
}

/** Something answers, and it is not our server. */
function stranger({ identity }: Patient, { status, location }: Reply): Finding {
  const { serverUrl } = identity;
  if (status >= 300 && status < 400) {
    const mend = 'Redirects are not followed, since a token must not go where they point. Use the final address.';
    return problem('server', `${serverUrl} redirects to ${location ?? 'nowhere'}.`, mend);
  }
  if (status === 502 || status === 504)
    return problem(
      'server',
      `A proxy answers (${status}): it does not reach the server behind it.`,
      'Is the server running? Look into its log.',
    );
  if (status === 503)
    return problem('server', 'The server is there, and not ready (503).', 'Wait a little, then look into its log.');
  if (status === 401 || status === 403 || status === 407)
    return problem(
      'server',
      `A proxy in between asks for a login (${status}).`,
      'Let it pass /api and /ws through: the devices have tokens of their own.',
    );
  const path = new URL(serverUrl).pathname;
  const wrongPath =
    path === '/'
      ? 'Is this the address of the server, and not of another site on the same host?'
      : `Is the path ${path} right? The API must be under ${path}/api.`;
  return problem('server', `Something answers at ${serverUrl} (${status}), but it is not this service.`, wrongPath);
}

function judged(
  { identity }: Patient,
  { version, database, claimed, tenantId }: ReturnType<typeof readStatus>,
): Finding[] {
  const findings: Finding[] = [];
  if (database !== 'up')
    findings.push(
      problem(
        'server',
        `The server (version ${version}) is up, its database is ${database}.`,
        'Start PostgreSQL, or look into its log. What you write meanwhile waits here.',
      ),
    );
  if (tenantId !== '' && tenantId !== identity.tenantId)
    findings.push(
      problem(
        'server',
        'The server at this address holds another vault than the one this device belongs to.',
        'Is the address right? If the server was set up anew: `recover` with the twelve words, then `import` an archive.',
      ),
    );
  if (claimed === false)
    findings.push(
      problem(
        'server',
        'Nobody has claimed this server: its devices were wiped.',
        '`recover` with the twelve words brings a device back.',
      ),
    );
  return findings.length > 0 ? findings : [ok('server', `The server runs version ${version}; its database is up.`)];
}

/** How far this machine's clock is from the server's, the time on the way left out of account. */
export function checkClock(time: TimeProbe): Finding[] {
  const middle = (time.sentAt + time.receivedAt) / 2;
  const skew = middle - time.serverTime;
  const doubt = (time.receivedAt - time.sentAt) / 2 + time.resolutionMs / 2;
  const off = Math.max(0, Math.abs(skew) - doubt);
  const way = skew > 0 ? 'ahead of' : 'behind';
  const what = `This machine's clock is about ${span(Math.abs(skew))} ${way} the server's.`;
  const mend =
    'Let the system set the clock (NTP), here or on the server: pairing codes, tokens and the order of changes depend on it.';
  if (off >= SKEW_PROBLEM_MS) return [problem('clock', what, mend)];
  if (off >= SKEW_WARNING_MS) return [warning('clock', what, mend)];
  return [
    ok('clock', `This machine's clock agrees with the server's (within ${Math.ceil((off + doubt) / 100) / 10} s).`),
  ];
}

/** The time that a ticket tells: it ends a known time after it was made. */
export const readTicketTime = object({ ticket: string, expiresAt: count });
