/** The processes of this machine. */
import { fork } from 'node:child_process';
import { Peer, type Crew, type CrewEvents, type News, type Order } from './orders.js';
import type { Access } from './worker.js';

const WORKER = new URL('./worker-process.js', import.meta.url);

function forked(events: CrewEvents): Peer {
  // Secrets of the environment are passed to the process only by an order.
  const { PATH, HOME, NODE_EXTRA_CA_CERTS } = process.env;
  const child = fork(WORKER, { env: { PATH, HOME, NODE_EXTRA_CA_CERTS }, execArgv: [] });
  const peer = new Peer({
    ...{ name: 'a process of the run', processes: 1, events },
    send: (order) => child.send(order),
    end: () => child.disconnect(),
  });
  child.on('message', (news: News) => peer.heard(news));
  for (const event of ['error', 'exit']) child.on(event, () => peer.lost('it has died'));
  return peer;
}

/** The processes of this machine, as one crew. */
export class LocalCrew implements Crew {
  readonly name = 'this machine';
  private readonly peers: readonly Peer[];

  constructor(
    readonly processes: number,
    private readonly access: Access,
    events: CrewEvents,
  ) {
    this.peers = Array.from({ length: processes }, () => forked(events));
  }

  async perform(order: Order): Promise<void> {
    const all = this.peers.map((peer, at) => {
      if (order.phase !== 'prepare') return peer.perform(order);
      const { phase, plan, share } = order;
      // The credentials are this machine's own: a coordinator sends none.
      return peer.perform({ phase, plan, share: { ...share, part: share.part + at }, access: this.access });
    });
    const failed = (await Promise.allSettled(all)).find((one) => one.status === 'rejected');
    if (failed !== undefined) throw failed.reason;
  }

  end(): void {
    for (const peer of this.peers) peer.end();
  }
}
