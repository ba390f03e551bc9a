/** Live changes come over a WebSocket: does it open, does it carry, and how long does an idle one live? */
import { record } from '../../../client/reader.js';
import type { Call } from '../../../client/http.js';
import type { OpenSocket } from '../../../client/platform.js';
import { CLOSE } from '../../../protocol/close-codes.js';
import { WS_TICKET_MS } from '../../../protocol/limits.js';
import { ok, problem, span, warning, within, type Finding, type Patient } from './finding.js';
import { readTicketTime, type TimeProbe } from './server.js';
import type { Figures } from './token.js';

const OPEN_WITHIN_MS = 15_000;
const ANSWER_WITHIN_MS = 10_000;
/** The server's default (specification, Limits). */
const PING_EVERY_MS = 30_000;
const PROXY_HINT =
  'A proxy in between must pass the Upgrade header on for /ws (nginx: proxy_http_version 1.1; proxy_set_header Upgrade ' +
  '$http_upgrade; proxy_set_header Connection "upgrade";). Without it changes come only when a command asks.';

interface Closed {
  readonly code: number;
  readonly reason: string;
  readonly at: number;
}

/** A connection under trial: what came, when, and how it ended. */
class Trial {
  readonly opened: Promise<boolean>;
  readonly closed: Promise<Closed>;
  /** When the last frame came, and when each ping of the server did. */
  heardAt: number;
  readonly pings: number[] = [];
  private readonly socket: OpenSocket;
  private readonly waiting = new Map<string, () => void>();

  constructor({ platform }: Patient, url: string) {
    const { clock } = platform;
    this.heardAt = clock.now();
    let open: (opened: boolean) => void = () => undefined;
    let close: (closed: Closed) => void = () => undefined;
    this.opened = new Promise((resolve) => (open = resolve));
    this.closed = new Promise((resolve) => (close = resolve));
    this.socket = platform.sockets.open(url, {
      opened: () => open(true),
      message: (text) => {
        this.heardAt = clock.now();
        this.take(text);
      },
      closed: (code, reason) => {
        open(false);
        close({ code, reason, at: clock.now() });
      },
    });
  }

  send(frame: Readonly<Record<string, unknown>>): void {
    this.socket.send(JSON.stringify(frame));
  }

  /** Resolves at the next frame of a type. */
  next(type: string): Promise<void> {
    return new Promise((resolve) => this.waiting.set(type, resolve));
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
    if (typeof type !== 'string') return;
    this.waiting.get(type)?.();
    this.waiting.delete(type);
  }
}

/** What the socket's trials found; `time`: the server's clock, as the ticket tells it. */
export interface SocketLook {
  readonly findings: Finding[];
  readonly time?: TimeProbe;
}

/** Gets a ticket, opens a connection, and lets it idle for as long as was asked. */
export async function checkSocket(patient: Patient, call: Call, figures: Figures): Promise<SocketLook> {
  const { platform, identity } = patient;
  const sentAt = platform.clock.now();
  const reply = await call({ method: 'POST', path: '/ws-ticket', body: {}, repeatable: true });
  const { ticket, expiresAt } = readTicketTime(reply.body, '/ws-ticket');
  const time = { serverTime: expiresAt - WS_TICKET_MS, resolutionMs: 0, sentAt, receivedAt: platform.clock.now() };
  const url = `${identity.serverUrl.replace(/^http/, 'ws')}/ws?shape=a&ticket=${encodeURIComponent(ticket)}`;
  const trial = new Trial(patient, url);
  try {
    const upgrade = await upgraded(patient, trial);
    if (upgrade.status !== 'ok') return { findings: [upgrade], time };
    return { findings: [upgrade, await idled(patient, trial, figures)], time };
  } finally {
    trial.end();
  }
}

async function upgraded({ platform }: Patient, trial: Trial): Promise<Finding> {
  const opened = await within(platform.clock, OPEN_WITHIN_MS, trial.opened, 'late' as const);
  if (opened === 'late')
    return problem('upgrade', 'The connection for live changes does not open: no answer came.', PROXY_HINT);
  if (!opened) {
    const { reason } = await trial.closed;
    const status = /response: (\d{3})/.exec(reason)?.[1];
    if (status === '503')
      return problem(
        'upgrade',
        'The server has no room for another connection now (503).',
        'Wait a little and try again.',
      );
    const how = status === undefined ? 'it was cut' : `the answer was ${status}`;
    return problem('upgrade', `The connection for live changes is refused on the way (${how}).`, PROXY_HINT);
  }
  const answered = trial.next('pong').then(() => 'pong' as const);
  trial.send({ type: 'ping' });
  const outcome = await within(
    platform.clock,
    ANSWER_WITHIN_MS,
    Promise.race([answered, trial.closed]),
    'late' as const,
  );
  if (outcome === 'pong') return ok('upgrade', 'The connection for live changes opens and carries.');
  return problem('upgrade', 'The connection for live changes opens, but nothing comes through it.', PROXY_HINT);
}

/** Holds the connection as a device that has nothing to say, and measures when it is cut. */
async function idled(patient: Patient, trial: Trial, { headVersion, epoch }: Figures): Promise<Finding> {
  const { platform, idleMs, context } = patient;
  const { clock } = platform;
  const caughtUp = trial.next('caught_up').then(() => true);
  trial.send({ type: 'hello', since: headVersion, epoch, acks: true });
  const cut = trial.closed.then(() => false);
  if (!(await within(clock, ANSWER_WITHIN_MS, Promise.race([caughtUp, cut]), false)))
    return problem(
      'idle',
      'The server does not answer to `hello` on the connection for live changes.',
      'Look into the log of the server.',
    );
  const began = clock.now();
  context.terminal.progress(`Holding an idle connection for ${span(idleMs)} ...`);
  const interrupted = new Promise<'enough'>((resolve) => {
    context.terminal.interrupted.addEventListener('abort', () => resolve('enough'), { once: true });
  });
  const outcome = await within(clock, idleMs, Promise.race([trial.closed, interrupted]), 'enough' as const);
  context.terminal.progress('');
  if (outcome !== 'enough') return cutFinding(outcome, trial, began);
  const answered = trial.next('pong').then(() => true);
  trial.send({ type: 'ping' });
  const alive = await within(clock, ANSWER_WITHIN_MS, Promise.race([answered, cut]), false);
  const lasted = clock.now() - began;
  if (!alive) return cutFinding({ code: 1006, reason: '', at: clock.now() }, trial, began);
  return ok(
    'idle',
    `An idle connection lived for the ${span(lasted)} it was watched${lasted < PING_EVERY_MS ? ' (--idle 120 watches longer)' : ''}.`,
  );
}

const OWN_CODES: ReadonlySet<number> = new Set<number>([...Object.values(CLOSE), 1000, 1001, 1012, 1013]);

function cutFinding({ code, at }: Closed, { heardAt, pings }: Trial, began: number): Finding {
  if (OWN_CODES.has(code))
    return warning(
      'idle',
      `The server itself closed the idle connection (${code}).`,
      'It may have been restarted. Run doctor again.',
    );
  const silent = at - Math.max(heardAt, began);
  const [first, second] = pings;
  const interval = first === undefined || second === undefined ? PING_EVERY_MS : second - first;
  const what =
    `An idle connection was cut after ${span(silent)} of silence, without a word. ` +
    `The server speaks every ${span(interval)}.`;
  const mend =
    `A proxy or firewall in between ends what is silent for so long. Raise its time-out for /ws above ${span(2 * interval)} ` +
    `(nginx: proxy_read_timeout), or set WS_PING_INTERVAL_MS on the server below ${span(silent)}.`;
  return problem('idle', what, mend);
}
