/** The WebSocket of live changes: does it open, does it transport frames, and how long does an idle one last? */
import { once } from 'node:events';
import { count, object, record, string } from '../../sdk/reader.js';
import type { OpenSocket } from '../../sdk/platform.js';
import { within } from '../../protocol/clock.js';
import { CLOSE } from '../../protocol/close-codes.js';
import { WS_TICKET_MS } from '../../protocol/limits.js';
import { about, span, type Figures, type Finding, type DoctorContext } from './finding.js';
import { checkClock } from './network.js';

const OPEN_WITHIN_MS = 15_000;
const ANSWER_WITHIN_MS = 10_000;
/** The server's default (the reference, Limits). */
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
class Trial {
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
      opened: () => this.came('opened'),
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
  next(type: string, withinMs = ANSWER_WITHIN_MS): Promise<'here' | 'late' | Closed> {
    const here = new Promise<'here'>((resolve) => this.waiting.set(type, () => resolve('here')));
    return within(this.doctor.platform.clock, withinMs, Promise.race([here, this.closed]), 'late');
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
    if (typeof type === 'string') this.came(type);
  }

  private came(type: string): void {
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
  const url = `${identity.serverUrl.replace(/^http/, 'ws')}/ws?shape=a&ticket=${encodeURIComponent(ticket)}`;
  const trial = new Trial(doctor, url);
  try {
    const upgrade = await upgraded(trial);
    const idle = upgrade.status === 'ok' ? [await idled(doctor, trial, session.figures)] : [];
    return [...clock, upgrade, ...idle];
  } finally {
    trial.end();
  }
}

async function upgraded(trial: Trial): Promise<Finding> {
  const { ok, problem } = about('upgrade');
  const opened = await trial.next('opened', OPEN_WITHIN_MS);
  if (opened === 'late') return problem('The connection for live changes does not open: no answer came.', PROXY_HINT);
  if (opened !== 'here') {
    const status = /response: (\d{3})/.exec(opened.reason)?.[1];
    const full = 'The server has no room for another connection now (503).';
    if (status === '503') return problem(full, 'Wait a little and try again.');
    const how = status === undefined ? 'it was cut' : `the answer was ${status}`;
    return problem(`The connection for live changes is refused on the way (${how}).`, PROXY_HINT);
  }
  const answered = trial.next('pong');
  trial.send({ type: 'ping' });
  if ((await answered) === 'here') return ok('The connection for live changes opens and works.');
  return problem('The connection for live changes opens, but nothing comes through it.', PROXY_HINT);
}

/** Keeps the connection idle, as a device without changes does, and measures when it is cut. */
async function idled(doctor: DoctorContext, trial: Trial, { headVersion, epoch }: Figures): Promise<Finding> {
  const { ok, problem } = about('idle');
  const { idleMs, context, platform } = doctor;
  const { clock } = platform;
  const { terminal } = context;
  const caughtUp = trial.next('caught_up');
  trial.send({ type: 'hello', since: headVersion, epoch, acks: true });
  if ((await caughtUp) !== 'here') {
    const what = 'The server does not answer `hello` on the connection for live changes.';
    return problem(what, 'Check the server log.');
  }
  const began = clock.now();
  terminal.progress(`Holding an idle connection for ${span(idleMs)} ...`);
  const interrupted = once(terminal.interrupted, 'abort').then(() => 'enough' as const);
  const outcome = await within(clock, idleMs, Promise.race([trial.closed, interrupted]), 'enough' as const);
  terminal.progress('');
  if (outcome !== 'enough') return cut(outcome, trial, began);
  const answered = trial.next('pong');
  trial.send({ type: 'ping' });
  const alive = (await answered) === 'here';
  const lasted = clock.now() - began;
  if (!alive) return cut({ code: 1006, reason: '', at: clock.now() }, trial, began);
  const longer = lasted < PING_EVERY_MS ? ' (--idle 120 watches longer)' : '';
  return ok(`An idle connection lived for the ${span(lasted)} it was watched${longer}.`);
}

const OWN_CODES: ReadonlySet<number> = new Set<number>([...Object.values(CLOSE), 1000, 1001, 1012, 1013]);

function cut({ code, at }: Closed, { heardAt, pings }: Trial, began: number): Finding {
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
