/** Orders of the coordinator to the processes of a run, their reports, and the processes of this machine. */
import { fork } from 'node:child_process';
import { every, systemClock, type Clock } from '../protocol/clock.js';
import { forEach } from '../protocol/for-each.js';
import { sanitizeText } from '../protocol/sanitize.js';
import type { Tick } from './meter.js';
import type { Plan, Share } from './plan.js';
import type { Access, PartResult } from './worker.js';

/** The phases of a run, in their order; `remove` ends it at any time. */
export const PHASES = ['prepare', 'connect', 'write', 'finish', 'remove'] as const;
export type Phase = (typeof PHASES)[number];

/** An order as sent to another machine. `share`: of that machine's first process; the others get the next parts. */
export type Order =
  | { readonly phase: 'prepare'; readonly plan: Plan; readonly share: Share }
  | { readonly phase: Exclude<Phase, 'prepare'> };

/** An order within a machine. */
export type LocalOrder = Order & { readonly access?: Access };

/** How often a process reports that it lives, ms, and after how many such times without any report it counts as lost. */
export const ALIVE_EVERY_MS = 5_000;
const SILENT_TIMES = 24;

/** What a process reports at any time. `left`: what it could not remove, and why. */
export type Progress =
  | { readonly news: 'alive' }
  | { readonly news: 'tick'; readonly part: number; readonly tick: Tick }
  | { readonly news: 'result'; readonly result: PartResult }
  | { readonly news: 'left'; readonly left: readonly string[] };

/** Any report of a process: progress, or the outcome of an order. */
export type News =
  | Progress
  | { readonly news: 'done'; readonly phase: Phase }
  | { readonly news: 'failed'; readonly phase: Phase; readonly text: string };

/** Processes that act as one: those of a machine. */
export interface Crew {
  readonly name: string;
  readonly processes: number;
  /** Sends an order to all of them. Rejects if one fails or is gone, except for `prepare` once the others are done. */
  perform(order: Order): Promise<void>;
  /** Ends the processes, or the connection to them. */
  end(): void;
}

/** A process or a machine that no longer answers or could not perform an order, or an agent that cannot go on. */
export class CrewError extends Error {
  override readonly name = 'CrewError';
}

/** A process or an agent as a receiver of orders, of which it performs one at a time. */
export class Peer implements Crew {
  private current: { readonly phase: Phase; readonly outcome: Promise<void> } | undefined;
  private settle: (error?: Error) => void = () => undefined;
  private gone: string | undefined;
  /** The first of its parts. It has none before `prepare`. */
  private firstPart = Infinity;
  /** Times without a report. Not a time: this process may have been stopped itself. */
  private silent = 0;

  constructor(
    readonly name: string,
    readonly processes: number,
    private readonly options: {
      readonly onNews: (news: Progress) => void;
      readonly send: (order: LocalOrder) => void;
      readonly end: () => void;
    },
    private readonly clock: Clock = systemClock,
  ) {}

  /** `remove` may overtake another order, which then rejects. An order that is already under way is not sent again. */
  perform(order: LocalOrder): Promise<void> {
    const { phase } = order;
    if (this.gone !== undefined) return Promise.reject(this.failure(this.gone));
    if (this.current?.phase === phase) return this.current.outcome;
    this.settle(this.failure('interrupted'));
    this.silent = 0;
    const silence = every(this.clock, ALIVE_EVERY_MS, () => {
      if (++this.silent < SILENT_TIMES) return;
      this.lost('nothing was heard of it for two minutes');
      this.options.end();
    });
    const outcome = new Promise<void>((resolve, reject) => {
      this.settle = (error) => {
        this.current = undefined;
        silence.cancel();
        if (error === undefined) resolve();
        else reject(error);
      };
    });
    this.current = { phase, outcome };
    if (order.phase === 'prepare') this.firstPart = order.share.part;
    this.options.send(order);
    return outcome;
  }

  end(): void {
    if (this.gone === undefined) this.options.end();
  }

  /** Whether news are of its own parts, where they name one. */
  owns(news: News): boolean {
    const part = news.news === 'tick' ? news.part : news.news === 'result' ? news.result.part : undefined;
    return part === undefined || (part >= this.firstPart && part < this.firstPart + this.processes);
  }

  receive(news: News): void {
    this.silent = 0;
    if (news.news !== 'done' && news.news !== 'failed') this.options.onNews(news);
    // The outcome of an overtaken order does not settle the current one.
    else if (news.phase === this.current?.phase)
      this.settle(news.news === 'done' ? undefined : this.failure(news.text.slice(0, 500)));
  }

  /** The peer is gone: the current order and all later ones reject. */
  lost(text: string): void {
    this.gone ??= text;
    this.settle(this.failure(text));
  }

  private failure(text: string): CrewError {
    return new CrewError(`${this.name}: ${sanitizeText(text)}`);
  }
}

const WORKER = new URL('./worker-process.js', import.meta.url);

function forked(onNews: (news: Progress) => void): Peer {
  // Secrets of the environment are passed to the process only by an order.
  const { PATH, HOME, NODE_EXTRA_CA_CERTS } = process.env;
  const child = fork(WORKER, { env: { PATH, HOME, NODE_EXTRA_CA_CERTS }, execArgv: [] });
  const peer = new Peer('a process of the run', 1, {
    onNews,
    send: (order) => child.send(order),
    end: () => child.disconnect(),
  });
  child.on('message', (news: News) => peer.receive(news));
  for (const event of ['error', 'exit']) child.on(event, () => peer.lost('it has died'));
  return peer;
}

/** The processes of this machine, as one crew: where one fails, the others go on. */
export class LocalCrew implements Crew {
  readonly name = 'this machine';
  private readonly peers: readonly Peer[];
  /** Processes that failed: they get no order but `remove`. */
  private readonly failed = new Set<Peer>();

  constructor(
    readonly processes: number,
    private readonly access: Access,
    onNews: (news: Progress) => void,
  ) {
    this.peers = Array.from({ length: processes }, () => forked(onNews));
  }

  async perform(order: Order): Promise<void> {
    if (order.phase === 'prepare') {
      const { phase, plan, share } = order;
      // The credentials are this machine's own: a coordinator sends none.
      const one = (peer: Peer, at: number): Promise<void> =>
        peer.perform({ phase, plan, share: { ...share, part: share.part + at }, access: this.access });
      // A run of which a part cannot be made does not begin: the others are not waited for.
      await Promise.all(this.peers.map(one));
      return;
    }
    const remove = order.phase === 'remove';
    const going = this.peers.filter((peer) => remove || !this.failed.has(peer));
    const one = (peer: Peer): Promise<void> =>
      peer.perform(order).catch((error: unknown) => {
        this.failed.add(peer);
        // If it lives it must not go on, nor write while others audit.
        if (!remove) peer.perform({ phase: 'remove' }).catch(() => undefined);
        throw error;
      });
    await forEach(going, one, this.processes);
  }

  end(): void {
    for (const peer of this.peers) peer.end();
  }
}
