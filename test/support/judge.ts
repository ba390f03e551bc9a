/**
 * The judge of attacks: an honest device of another tenant that works as usual during an attack.
 * It counts its refused calls, and how much the server did between its requests and their answers. The server is
 * a process of its own, with the limits that a server has by default, so that its memory and CPU time are its own too.
 */
import { once } from 'node:events';
import { connect, type Socket as TcpSocket } from 'node:net';
import type { Test } from 'tap';
import { newItem, writeBody } from './devices.js';
import { until } from './events.js';
import { BASE, MULTI, neighbour, wireAt, type Neighbour } from './hosted.js';
import type { WithTeardown } from './postgres.js';
import { freePort } from './free-port.js';
import { residentBytes, ranMs } from './memory.js';
import { spawnServer, type Child } from './server.js';
import type { Reply, Wire } from './wire.js';

const MIB = 1024 * 1024;
/** For however many rounds, on a busy machine. */
const ROUNDS_MAX_MS = 300_000;

/** A hosted server in a process of its own with default limits. */
export interface HostedServer {
  readonly server: Child;
  readonly apex: Wire;
  /** A new tenant, signed up and claimed. */
  tenant(slug: string): Promise<Neighbour>;
  /** Resident memory of the server, MiB. */
  memory(): Promise<number>;
  /** What the server holds of each budget now, by the budget's name. */
  budgets(): Promise<Readonly<Record<string, number>>>;
}

/** As if they were not set: a server has its own. */
const DEFAULT_LIMITS = { RATE_READ_PER_S: '', RATE_WRITE_PER_S: '', RATE_PAIR_PER_MIN: '', LOG_LEVEL: 'warn' };

/** Starts the server. Loopback is a proxy to it, so `X-Forwarded-For` is whatever a test says. */
export async function hostedServer(t: WithTeardown, env: Readonly<Record<string, string>> = {}): Promise<HostedServer> {
  const metricsPort = await freePort();
  const server = await spawnServer(t, {
    env: {
      ...DEFAULT_LIMITS,
      ...MULTI,
      ...{ TRUSTED_PROXIES: '127.0.0.0/8', METRICS_PORT: String(metricsPort) },
      ...env,
    },
  });
  return {
    server,
    apex: wireAt(t, server.port, BASE),
    tenant: (slug) => neighbour(t, server.port, slug),
    memory: async () => (await residentBytes(server.process.pid ?? 0)) / MIB,
    budgets: async () => {
      const text = await (await fetch(`http://127.0.0.1:${metricsPort}/metrics`)).text();
      const found = [...text.matchAll(/^service_held\{budget="(\w+)"\} (\d+)$/gm)];
      return Object.fromEntries(found.map(([, name = '', value]) => [name, Number(value)]));
    },
  };
}

/** The median wait may be this many times that on an idle server, or `LEAST_MS` where that is more (FAIR-15). */
const TIMES_MAX = 3;
const LEAST_MS = 10;

/** What the judge saw. */
export interface Findings {
  /** Answers that were no success, as they came. */
  readonly refusals: readonly string[];
  readonly calls: number;
  /**
   * The median CPU time of the server's main thread between a request for `/me` or a write and its answer, ms: the work
   * that was done before the device's turn came. The time on the clock also has what other programs of the machine do.
   */
  readonly waitMs: number;
  /** The most memory that the server had, MiB. */
  readonly peakMib: number;
}

/** Works from `begin` to `end`, one call after the other. */
export class Judge {
  private waits: number[] = [];
  private refusals: string[] = [];
  private calls = 0;
  private peak = 0;
  private rounds = 0;
  private stopped = true;
  private work: Promise<void> | undefined;

  constructor(
    private readonly place: HostedServer,
    private readonly tenant: Neighbour,
  ) {}

  begin(): void {
    Object.assign(this, { waits: [], refusals: [], calls: 0, peak: 0, rounds: 0, stopped: false });
    this.work = this.run();
  }

  /** Resolves when it has done so many rounds since `begin`. */
  async after(rounds: number): Promise<void> {
    await until(`${rounds} rounds`, () => this.rounds >= rounds || this.stopped, ROUNDS_MAX_MS);
  }

  async end(): Promise<Findings> {
    this.stopped = true;
    await this.work;
    const sorted = [...this.waits].sort((one, other) => one - other);
    return {
      refusals: this.refusals,
      calls: this.calls,
      waitMs: sorted[Math.floor(sorted.length / 2)] ?? NaN,
      peakMib: this.peak,
    };
  }

  private async run(): Promise<void> {
    while (!this.stopped) {
      await this.round();
      this.rounds++;
      this.peak = Math.max(this.peak, await this.place.memory());
      await new Promise((resolve) => setTimeout(resolve, 110));
    }
  }

  /** Reads who it is, writes an item, opens a socket and hears of everything, and asks without a token, as anybody may. */
  private async round(): Promise<void> {
    const { wire, device } = this.tenant;
    const mine = { token: device.token, shape: 'a' } as const;
    const stranger = { headers: { 'x-forwarded-for': '198.51.100.7' } };
    await this.timed(() => wire.get('/me', mine));
    await this.timed(() => wire.post('/items', writeBody('a', newItem([device.id])), mine));
    await this.judged(() => wire.get('/items?since=0&limit=20', mine));
    await this.judged(() => wire.get('/password/exists', stranger));
    await this.judged(() => wire.get('//docs/errors', stranger));
    await this.judged(() => this.listen());
  }

  private async listen(): Promise<undefined> {
    const { wire, device } = this.tenant;
    const socket = await wire.connect({ token: device.token, shape: 'a' });
    try {
      await socket.hello(0);
    } finally {
      socket.terminate();
    }
    return undefined;
  }

  private async timed(call: () => Promise<Reply>): Promise<void> {
    const { pid = 0 } = this.place.server.process;
    const before = ranMs(pid);
    await this.judged(call);
    this.waits.push(ranMs(pid) - before);
  }

  private async judged(call: () => Promise<Reply | undefined>): Promise<void> {
    this.calls++;
    try {
      const reply = await call();
      if (reply !== undefined && reply.status !== 200) this.refusals.push(reply.outcome);
    } catch (error) {
      this.refusals.push(String(error));
    }
  }
}

/** Asserts that the device was refused nothing, and waited about as it does on an idle server (FAIR-15). */
export function servedInTime(t: Test, idle: Findings, seen: Findings, name: string): void {
  const text = `${seen.waitMs.toFixed(1)} ms of the server's time, idle ${idle.waitMs.toFixed(1)} ms`;
  t.ok(seen.waitMs <= Math.max(LEAST_MS, TIMES_MAX * idle.waitMs), `${name}: ${text}`);
  t.same(seen.refusals, [], name);
}

/** A connection that sends what it is told to and never reads. */
export class Unread {
  closed = false;

  private constructor(readonly socket: TcpSocket) {
    socket.on('error', () => undefined);
    socket.on('close', () => (this.closed = true));
    // Nothing reads, so nothing would see the end either: a socket that is written to learns of a reset.
    socket.pause();
  }

  static async open(port: number, text: string | Buffer): Promise<Unread> {
    const socket = connect(port, '127.0.0.1');
    const unread = new Unread(socket);
    await once(socket, 'connect');
    socket.write(text);
    return unread;
  }

  destroy(): void {
    this.socket.destroy();
  }
}

/** A request without a body, as it stands on the wire. */
export const requestText = (
  path: string,
  { host = BASE, token, address }: { readonly host?: string; readonly token?: string; readonly address?: string } = {},
): string =>
  `GET ${path} HTTP/1.1\r\nHost: ${host}\r\n` +
  (token === undefined ? '' : `Authorization: Bearer ${token}\r\n`) +
  (address === undefined ? '' : `X-Forwarded-For: ${address}\r\n`) +
  '\r\n';
