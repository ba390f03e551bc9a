/** The line between one profile and the server: what a script does to it, and what the server accepted over it. */
import type { Platform } from '../../src/sdk/platform.js';
import { wiretap, type Wiretap } from './client-world.js';

/** What happens at one request of a command. */
export type Fault =
  /** Nothing gets through any more. */
  | 'cut'
  /** This request does not arrive. */
  | 'lose'
  /** It is carried out, and its answer does not arrive. */
  | 'mute'
  /** The server is in trouble. */
  | 'trouble'
  /** No answer comes, and the connection stays open. */
  | 'hang'
  /** The user presses Ctrl-C: before it, or once it was answered. */
  | 'interrupt'
  | 'interrupt after'
  /** The program is killed: before it, or once it was answered. */
  | 'kill'
  | 'kill after';

export const FAULTS: readonly Fault[] = [
  ...['cut', 'lose', 'mute', 'mute', 'trouble', 'hang', 'interrupt', 'interrupt after'].map((fault) => fault as Fault),
  ...['kill', 'kill after', 'kill after'].map((fault) => fault as Fault),
];

/** A change that the server has accepted. */
export interface Accepted {
  readonly by: string;
  readonly id: string;
  readonly version: number;
  readonly kind: 'put' | 'move' | 'delete';
}

/** Timers are divided by this where a fault is expected: only their order matters. */
const SPEED_UP = 20;

const never = (signal?: AbortSignal | null): Promise<never> =>
  new Promise((_, reject) => {
    const abort = (): void => reject(new TypeError('aborted'));
    if (signal?.aborted === true) abort();
    signal?.addEventListener('abort', abort, { once: true });
  });

/** A line. One command at a time may have faults. */
export class Line {
  /** Nothing gets through. */
  away = false;
  /** Its clock minus the true time, ms. */
  skew = 0;
  /** Timers are short. */
  hurried = false;
  /** Called where a fault is the user's, or that of a killed program. */
  onFault: (fault: Fault) => void = () => undefined;
  /** What the server accepted. */
  readonly accepted: Accepted[];
  readonly tap: Wiretap;
  private readonly underWay = new Set<Promise<void>>();
  private plan: { readonly fault: Fault; readonly at: number } | undefined;
  private asked = 0;

  constructor(
    private readonly by: string,
    accepted: Accepted[],
  ) {
    this.accepted = accepted;
    const tap = wiretap({
      now: () => Date.now() + this.skew,
      setTimer: (ms, fn) => {
        const timer = setTimeout(fn, this.hurried ? ms / SPEED_UP : ms);
        return { cancel: () => clearTimeout(timer) };
      },
    });
    const platform: Platform = {
      ...tap.platform,
      fetch: (url, init) => this.ask(url, init),
      sockets: {
        open: (url, events) => {
          if (!this.away) return tap.platform.sockets.open(url, events);
          setImmediate(() => events.closed(1006, 'away'));
          return { send: () => undefined, close: () => undefined };
        },
      },
    };
    this.tap = { ...tap, platform };
  }

  /** The next command meets a fault at its request `at`. */
  expect(fault: Fault, at: number): void {
    this.plan = { fault, at };
    this.asked = 0;
    this.hurried = true;
  }

  /** Several commands run at once: what a user or a kill does would hit another one than asked the question. */
  share(): void {
    if (this.plan !== undefined && /interrupt|kill/.test(this.plan.fault)) this.plan = undefined;
  }

  /** The command has ended. */
  mend(): void {
    this.plan = undefined;
    this.hurried = false;
  }

  private async ask(url: string, init: RequestInit): Promise<Response> {
    const { plan } = this;
    const at = this.asked++;
    const fault = plan === undefined || at < plan.at ? undefined : plan.fault;
    const lasting = fault === 'cut' || fault === 'kill' || fault === 'kill after';
    const met = fault !== undefined && (lasting || at === plan?.at) ? fault : undefined;
    if (this.away || met === 'cut' || met === 'lose') throw new TypeError('fetch failed');
    if (met === 'trouble')
      return Response.json({ error: { code: 'unavailable', message: 'unavailable: in trouble' } }, { status: 503 });
    if (met === 'hang') return never(init.signal);
    if (met === 'interrupt' || met === 'kill' || (met === 'kill after' && at !== plan?.at)) {
      this.onFault(met);
      return never(init.signal);
    }
    const response = await this.send(url, init);
    if (met === 'mute') throw new TypeError('the connection was cut');
    if (met === 'kill after' || met === 'interrupt after') {
      this.onFault(met);
      if (met === 'kill after') return never(init.signal);
    }
    return response;
  }

  /** The server gets also what the client has given up meanwhile. */
  private send(url: string, init: RequestInit): Promise<Response> {
    const sent = fetch(url, { ...init, signal: null }).then(async (response) => {
      await this.record(new URL(url).pathname.replace(/^\/api/, ''), init, response);
      return response;
    });
    const settled = sent
      .then(
        () => undefined,
        () => undefined,
      )
      .finally(() => this.underWay.delete(settled));
    this.underWay.add(settled);
    return Promise.race([sent, never(init.signal)]);
  }

  /** Resolves when every request has been carried out. */
  async idle(): Promise<void> {
    while (this.underWay.size > 0) await Promise.all(this.underWay);
  }

  private async record(path: string, { method = 'GET' }: RequestInit, response: Response): Promise<void> {
    const [, subject, id = '', action] = path.split('/');
    if (subject !== 'items' || method === 'GET' || !response.ok) return;
    const body = (await response.clone().json()) as { id?: string; version?: number; results?: unknown[] };
    const kind = method === 'DELETE' ? 'delete' : action === 'reconcile' ? 'move' : 'put';
    const stored = (id === 'batch' ? (body.results ?? []) : [body]) as { id: string; version?: number }[];
    for (const { id: of, version } of stored)
      if (version !== undefined) this.accepted.push({ by: this.by, id: of, version, kind });
  }
}
