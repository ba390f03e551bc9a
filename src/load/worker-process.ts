/** A process of a run: takes orders from its parent and tells it what comes of them. Ends with its parent. */
import { asError } from '../protocol/error-code.js';
import type { LocalOrder, News } from './orders.js';
import { LoadWorker } from './worker.js';

let worker: LoadWorker | undefined;
const tell = (news: News): void => {
  if (process.connected) process.send?.(news);
};

async function perform(order: LocalOrder): Promise<void> {
  switch (order.phase) {
    case 'prepare': {
      const { plan, share, access = {} } = order;
      // The first one's tenants would never be removed.
      if (worker !== undefined) throw new Error('a second run');
      worker = await LoadWorker.open({
        ...{ plan, share, access },
        onTick: (tick) => tell({ news: 'tick', part: share.part, tick }),
      });
      return worker.prepare();
    }
    case 'connect':
      return worker?.connect();
    case 'write':
      return worker?.write();
    case 'finish':
      if (worker !== undefined) tell({ news: 'result', result: await worker.finish() });
      return;
    case 'remove':
      tell({ news: 'left', left: (await worker?.remove()) ?? [] });
  }
}

process.on('message', (order: LocalOrder) => {
  const { phase } = order;
  perform(order).then(
    () => tell({ news: 'done', phase }),
    (error: unknown) => tell({ news: 'failed', phase, text: asError(error).message }),
  );
});
// Ctrl-C at a terminal reaches the whole group: the parent decides, and removes what was made first.
for (const signal of ['SIGINT', 'SIGHUP', 'SIGTERM'] as const) process.on(signal, () => undefined);
// Without its parent nobody would ever end it.
process.on('disconnect', () => {
  const end = (): void => process.exit();
  Promise.resolve(worker?.remove()).then(end, end);
});
