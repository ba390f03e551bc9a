/** The processes of this machine. */
import { fork, type ChildProcess } from 'node:child_process';
import { CrewError, type Crew, type CrewEvents, type News, type Order } from './orders.js';
import type { Access } from './worker.js';

const WORKER = new URL('./worker-process.js', import.meta.url);

interface Waiting {
  readonly resolve: () => void;
  readonly reject: (error: Error) => void;
}

/** One process. */
class Hand {
  private readonly child: ChildProcess;
  private waiting: Waiting | undefined;
  private gone = false;

  constructor(private readonly events: CrewEvents) {
    // The secrets of the environment go to it by an order, and to nobody else.
    const { PATH, HOME, NODE_EXTRA_CA_CERTS } = process.env;
    this.child = fork(WORKER, { env: { PATH, HOME, NODE_EXTRA_CA_CERTS }, execArgv: [] });
    this.child.on('message', (news: News) => this.heard(news));
    this.child.on('error', () => this.lost());
    this.child.on('exit', () => this.lost());
  }

  perform(order: Order): Promise<void> {
    if (this.gone) return Promise.reject(new CrewError('a process of the run has died', true));
    return new Promise((resolve, reject) => {
      // `remove` may overtake another order, whose outcome counts no more.
      this.waiting?.reject(new CrewError('interrupted'));
      this.waiting = { resolve, reject };
      this.child.send(order);
    });
  }

  end(): void {
    if (!this.gone) this.child.disconnect();
    this.gone = true;
  }

  private heard(news: News): void {
    if (news.news === 'tick') return this.events.onTick(news.part, news.tick);
    if (news.news === 'result') return this.events.onResult(news.result);
    const { waiting } = this;
    this.waiting = undefined;
    if (news.news === 'done') waiting?.resolve();
    else waiting?.reject(new CrewError(news.text));
  }

  private lost(): void {
    this.gone = true;
    this.waiting?.reject(new CrewError('a process of the run has died', true));
    this.waiting = undefined;
  }
}

/** So many processes of this machine. */
export class LocalCrew implements Crew {
  readonly name = 'this machine';
  private readonly hands: readonly Hand[];

  constructor(
    readonly processes: number,
    private readonly access: Access,
    events: CrewEvents,
  ) {
    this.hands = Array.from({ length: processes }, () => new Hand(events));
  }

  async perform(order: Order): Promise<void> {
    const { share } = order;
    const all = this.hands.map((hand, at) =>
      hand.perform({
        ...order,
        ...(share === undefined ? {} : { share: { ...share, part: share.part + at }, access: this.access }),
      }),
    );
    const failed = (await Promise.allSettled(all)).find((one) => one.status === 'rejected');
    if (failed !== undefined) throw failed.reason;
  }

  end(): void {
    for (const hand of this.hands) hand.end();
  }
}
