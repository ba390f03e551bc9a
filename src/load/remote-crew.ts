/** Agents on other machines, as the coordinator has them; and the agent's own side. */
import { once } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { delay, systemClock } from '../protocol/clock.js';
import { asError } from '../protocol/error-code.js';
import { sanitizeText } from '../protocol/sanitize.js';
import { Channel } from './channel.js';
import { LocalCrew } from './local-crew.js';
import { BOUNDS, type Share } from './plan.js';
import { CrewError, PHASES, type Crew, type CrewEvents, type News, type Order } from './orders.js';
import type { Access } from './worker.js';

/** Why an agent could not go on. */
export class AgentError extends Error {
  override readonly name = 'AgentError';
}

/** What an agent says first. */
interface Joined {
  readonly joins: number;
}

const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === 'object' && value !== null;
const isJoined = (value: unknown): value is Joined =>
  isObject(value) &&
  Number.isSafeInteger(value['joins']) &&
  Number(value['joins']) >= 1 &&
  Number(value['joins']) <= BOUNDS.processes[1];
const isNews = (value: unknown): value is News =>
  isObject(value) &&
  typeof value['news'] === 'string' &&
  (value['news'] !== 'failed' || typeof value['text'] === 'string');
const isOrder = (value: unknown): value is Order => isObject(value) && PHASES.some((phase) => phase === value['phase']);

/** An agent that has joined. */
class RemoteCrew implements Crew {
  private waiting: { resolve: () => void; reject: (error: Error) => void } | undefined;
  private gone: string | undefined;

  constructor(
    readonly name: string,
    readonly processes: number,
    private readonly parts: { readonly channel: Channel; readonly events: CrewEvents },
  ) {}

  perform(order: Order): Promise<void> {
    if (this.gone !== undefined) return Promise.reject(new CrewError(`${this.name}: ${this.gone}`, true));
    return new Promise((resolve, reject) => {
      this.waiting?.reject(new CrewError('interrupted'));
      this.waiting = { resolve, reject };
      this.parts.channel.send(order);
    });
  }

  end(): void {
    this.parts.channel.end();
  }

  heard(news: News): void {
    const { events } = this.parts;
    if (news.news === 'tick') return events.onTick(news.part, news.tick);
    if (news.news === 'result') return events.onResult(news.result);
    const { waiting } = this;
    this.waiting = undefined;
    if (news.news === 'done') waiting?.resolve();
    else waiting?.reject(new CrewError(`${this.name}: ${sanitizeText(news.text.slice(0, 500))}`));
  }

  lost(text: string): void {
    this.gone = text;
    this.waiting?.reject(new CrewError(`${this.name}: ${text}`, true));
    this.waiting = undefined;
  }
}

/** The coordinator's door. */
export class AgentDoor {
  readonly crews: RemoteCrew[] = [];
  private readonly server: Server;
  private changed: () => void = () => undefined;

  /** @param options.onNote is told who comes, and who is turned away. */
  constructor(
    private readonly options: {
      readonly secret: string;
      readonly wanted: number;
      readonly events: CrewEvents;
      readonly onNote: (text: string) => void;
    },
  ) {
    this.server = createServer((socket) => this.arrived(socket));
  }

  /** Listens; gives the port. */
  listen({ host, port }: { readonly host: string; readonly port: number }): Promise<number> {
    return new Promise((resolve, reject) => {
      this.server.once('error', reject);
      this.server.listen({ host, port }, () => {
        const address = this.server.address();
        resolve(typeof address === 'object' && address !== null ? address.port : port);
      });
    });
  }

  /** Resolves with the agents, once all have joined. Rejects when interrupted. */
  async all(signal: AbortSignal): Promise<readonly Crew[]> {
    while (this.crews.length < this.options.wanted) {
      signal.throwIfAborted();
      await Promise.race([new Promise<void>((resolve) => (this.changed = resolve)), delay(systemClock, 1_000)]);
    }
    return this.crews;
  }

  close(): void {
    for (const crew of this.crews) crew.end();
    this.server.close();
  }

  private arrived(socket: Socket): void {
    const { secret, wanted, events, onNote } = this.options;
    const address = `${socket.remoteAddress ?? 'unknown'}:${socket.remotePort ?? 0}`;
    let crew: RemoteCrew | undefined;
    const channel: Channel = new Channel(socket, {
      ...{ role: 'c', secret },
      onMessage: (message) => {
        if (crew !== undefined) {
          if (isNews(message)) crew.heard(message);
        } else if (isJoined(message) && this.crews.length < wanted) {
          crew = new RemoteCrew(`agent ${this.crews.length + 1} (${address})`, message.joins, { channel, events });
          this.crews.push(crew);
          onNote(`${crew.name} has joined with ${message.joins} processes.`);
          this.changed();
        } else socket.destroy();
      },
      onEnd: (text) => {
        if (crew === undefined) onNote(`${address} was turned away: ${text}.`);
        crew?.lost(text);
      },
    });
  }
}

/** How long an agent waits for its coordinator to be there. */
const DIAL_WITHIN_MS = 600_000;
const DIAL_EVERY_MS = 1_000;

/** A connection to the coordinator, which may be started later. Rejects with `AgentError`. */
async function dial(to: { readonly host: string; readonly port: number }, signal: AbortSignal): Promise<Socket> {
  const until = systemClock.now() + DIAL_WITHIN_MS;
  for (;;) {
    const socket = connect(to);
    try {
      await once(socket, 'connect', { signal });
      return socket;
    } catch (error) {
      socket.destroy();
      signal.throwIfAborted();
      if (systemClock.now() >= until)
        throw new AgentError(`no coordinator at ${to.host}:${to.port}: ${asError(error).message}`);
    }
    await delay(systemClock, DIAL_EVERY_MS, signal);
  }
}

/** Does what a coordinator orders, on this machine, until the coordinator ends the run. Rejects with `AgentError`. */
export async function serveAsAgent(options: {
  readonly host: string;
  readonly port: number;
  readonly secret: string;
  /** The only server that it loads. */
  readonly url: string;
  readonly processes: number;
  readonly access: Access;
  readonly signal: AbortSignal;
  readonly onNote: (text: string) => void;
}): Promise<void> {
  const { host, port, secret, processes, access, signal, onNote } = options;
  const socket = await dial({ host, port }, signal);
  let finished = false;
  const crew = new LocalCrew(processes, access, {
    onTick: (part, tick) => channel.send({ news: 'tick', part, tick } satisfies News),
    onResult: (result) => channel.send({ news: 'result', result } satisfies News),
  });
  const obey = (order: Order): void => {
    const { phase, plan, share } = order;
    onNote(`${phase} ...`);
    if (plan !== undefined && plan.url !== options.url) {
      const text = `this agent loads ${options.url} only`;
      return channel.send({ news: 'failed', phase, text } satisfies News);
    }
    // What an agent may act by is its own: nothing of it comes from the coordinator.
    const own: Order = { phase, ...(plan === undefined ? {} : { plan }), ...(share === undefined ? {} : { share }) };
    crew.perform(own).then(
      () => {
        if (phase === 'finish' || phase === 'remove') finished = true;
        channel.send({ news: 'done', phase } satisfies News);
      },
      (error: unknown) => {
        const text = error instanceof Error ? error.message : String(error);
        channel.send({ news: 'failed', phase, text } satisfies News);
      },
    );
  };
  let ended: (text: string) => void = () => undefined;
  const end = new Promise<string>((resolve) => (ended = resolve));
  const channel: Channel = new Channel(socket, {
    ...{ role: 'a', secret, onEnd: ended },
    onMessage: (message) => {
      if (isOrder(message)) obey(message);
    },
  });
  const joined: Joined = { joins: processes };
  channel.send(joined);
  const interrupted = (): void => channel.end();
  signal.addEventListener('abort', interrupted);
  const text = await end;
  signal.removeEventListener('abort', interrupted);
  // Without a coordinator nobody would remove what was made.
  if (!finished) await crew.perform({ phase: 'remove' }).catch(() => undefined);
  crew.end();
  if (!finished) throw new AgentError(`the coordinator is gone: ${text}`);
}

/** The shares of crews, one behind the other. */
export function sharesOf(crews: readonly Pick<Crew, 'processes'>[]): Share[] {
  const parts = crews.reduce((sum, { processes }) => sum + processes, 0);
  let part = 0;
  return crews.map(({ processes }) => {
    const share = { part, parts };
    part += processes;
    return share;
  });
}
