/** Agents on other machines: the coordinator's side and the agent's. */
import { once } from 'node:events';
import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net';
import type typiaLibrary from 'typia';
import { delay, systemClock } from '../protocol/clock.js';
import { asError } from '../protocol/error-code.js';
import { Channel } from './channel.js';
import { CrewError, LocalCrew, Peer, PHASES, type Crew, type News, type Order, type Progress } from './orders.js';
import type { Whole } from './plan.js';
import type { Access } from './worker.js';

/** Its calls are replaced at build time: an import would load the library at every start, for nothing. */
declare const typia: typeof typiaLibrary;

/** The first message of an agent. */
interface Joined {
  readonly joins: Whole<'processes'>;
}

// Another machine's messages may be of another version, or from any holder of the secret: they are validated like a
// client's. An incremental build regenerates these only when this file or orders.ts changes, not a third file's type.
const isJoined = typia.createIs<Joined>();
const isNews = typia.createIs<News>();
const isOrder = typia.createIs<Order>();

/** Connections that have not joined yet; beyond these the oldest is closed. */
const UNAUTHENTICATED_MAX = 32;
const LOOK_EVERY_MS = 100;

/** Accepts the agents of a run at the coordinator. */
export class AgentListener {
  readonly crews: Peer[] = [];
  private readonly server: Server;
  private readonly unauthenticated = new Set<Socket>();
  /** All agents have joined: one that leaves after that is lost, and no other may take its place. */
  private complete = false;

  /** @param options.onNote is called for each agent that joins, leaves before the run or is refused. */
  constructor(
    private readonly options: {
      readonly secret: string;
      readonly wanted: number;
      readonly onNews: (news: Progress) => void;
      readonly onNote: (text: string) => void;
    },
  ) {
    this.server = createServer((socket) => this.accept(socket));
  }

  /** Listens; resolves with the port. */
  async listen(at: { readonly host: string; readonly port: number }): Promise<number> {
    this.server.listen(at);
    await once(this.server, 'listening');
    // Emitted where a connection cannot be accepted, for example for lack of file descriptors; its agent tries again.
    this.server.on('error', (error) => this.options.onNote(`An agent could not connect: ${error.message}.`));
    return (this.server.address() as AddressInfo).port;
  }

  /** Resolves with the agents, once all have joined. Rejects when interrupted. */
  async allJoined(signal: AbortSignal): Promise<readonly Crew[]> {
    while (this.crews.length < this.options.wanted) await delay(systemClock, LOOK_EVERY_MS, signal);
    this.complete = true;
    return this.crews;
  }

  close(): void {
    for (const crew of this.crews) crew.end();
    for (const socket of this.unauthenticated) socket.destroy();
    this.server.close();
  }

  private accept(socket: Socket): void {
    const { secret, wanted, onNews, onNote } = this.options;
    const address = `${socket.remoteAddress ?? 'unknown'}:${socket.remotePort ?? 0}`;
    let crew: Peer | undefined;
    socket.once('close', () => this.unauthenticated.delete(socket));
    // An agent proves at once that it has the secret, so the oldest connection without a proof is hardly ever an agent.
    const [oldest] = this.unauthenticated.add(socket);
    if (this.unauthenticated.size > UNAUTHENTICATED_MAX) oldest?.destroy();
    const channel: Channel = new Channel(socket, {
      ...{ role: 'c', secret },
      onMessage: (message) => {
        if (crew !== undefined) {
          if (!isNews(message) || !crew.owns(message)) return 'it sent an invalid progress message';
          crew.receive(message);
          return undefined;
        }
        if (!isJoined(message)) return 'it did not join';
        if (this.crews.length >= wanted) return 'there are enough agents';
        crew = new Peer(`agent ${this.crews.length + 1} (${address})`, message.joins, {
          onNews,
          send: (order) => channel.send(order),
          end: () => channel.end(),
        });
        this.crews.push(crew);
        this.unauthenticated.delete(socket);
        onNote(`${crew.name} has joined with ${message.joins} processes.`);
        return undefined;
      },
      onEnd: (text) => {
        if (crew === undefined) return onNote(`${address} was rejected: ${text}.`);
        crew.lost(text);
        if (this.complete) return;
        // Before the run another agent, or the same one restarted, may take its place.
        this.crews.splice(this.crews.indexOf(crew), 1);
        onNote(`${crew.name} has left: ${text}.`);
      },
    });
  }
}

/** How long an agent tries to reach its coordinator, and the wait between two attempts, ms. */
const DIAL_WITHIN_MS = 600_000;
const DIAL_EVERY_MS = 1_000;

/** A connection to the coordinator, which may be started later. Rejects with `CrewError`. */
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
        throw new CrewError(`no coordinator at ${to.host}:${to.port}: ${asError(error).message}`);
    }
    await delay(systemClock, DIAL_EVERY_MS, signal);
  }
}

/** Performs a coordinator's orders on this machine until the coordinator ends the run. Rejects with `CrewError`. */
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
  let [finished, gone] = [false, false];
  const report = (news: News): void => channel.send(news);
  const crew = new LocalCrew(processes, access, (news) => {
    if (gone && news.news === 'left') onNote(`Left on the server: ${news.left.join(', ')}.`);
    else report(news);
  });
  const execute = (order: Order): void => {
    const { phase } = order;
    onNote(`${phase} ...`);
    if (order.phase === 'prepare' && order.plan.url !== options.url) {
      return report({ news: 'failed', phase, text: `this agent loads ${options.url} only` });
    }
    crew.perform(order).then(
      () => {
        if (phase === 'remove') finished = true;
        report({ news: 'done', phase });
      },
      (error: unknown) => report({ news: 'failed', phase, text: asError(error).message }),
    );
  };
  let last = -1;
  // Each phase once, else sockets and writes would add up beyond the plan.
  const isNext = ({ phase }: Order): boolean => phase === 'remove' || PHASES.indexOf(phase) > last;
  let ended: (text: string) => void = () => undefined;
  const end = new Promise<string>((resolve) => (ended = resolve));
  const channel: Channel = new Channel(socket, {
    ...{ role: 'a', secret, onEnd: ended },
    onMessage: (message) => {
      if (!isOrder(message) || !isNext(message)) return 'it sent an invalid order';
      last = PHASES.indexOf(message.phase);
      execute(message);
      return undefined;
    },
  });
  const joined: Joined = { joins: processes };
  channel.send(joined);
  const interrupted = (): void => channel.end();
  signal.addEventListener('abort', interrupted);
  const text = await end;
  gone = true;
  signal.removeEventListener('abort', interrupted);
  // The coordinator is gone, so nobody else orders the removal of what this agent created.
  const noteFailure = (error: unknown): void =>
    onNote(`The data of the run could not be removed: ${asError(error).message}.`);
  if (!finished) await crew.perform({ phase: 'remove' }).catch(noteFailure);
  crew.end();
  if (!finished) throw new CrewError(`the coordinator is gone: ${text}`);
}
