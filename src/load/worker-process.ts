/** A process of a run: performs its parent's orders and reports their outcomes. Ends with its parent. */
import { asError } from '../protocol/error-code.js';
import type { LocalOrder, News } from './orders.js';
import { LoadWorker } from './worker.js';

let worker: LoadWorker | undefined;
const report = (news: News): void => {
  if (process.connected) process.send?.(news);
};

async function perform(order: LocalOrder): Promise<void> {
  switch (order.phase) {
    case 'prepare': {
      const { plan, share, access = {} } = order;
      // The tenants of the first run would never be removed.
      if (worker !== undefined) throw new Error('a second run');
      worker = await LoadWorker.open({
        ...{ plan, share, access },
        onTick: (tick) => report({ news: 'tick', part: share.part, tick }),
      });
      return worker.prepare();
    }
    case 'connect':
      return worker?.connect();
    case 'write':
      return worker?.write();
    case 'finish':
      if (worker !== undefined) report({ news: 'result', result: await worker.finish() });
      return;
    case 'remove':
      report({ news: 'left', left: (await worker?.remove()) ?? [] });
  }
}

process.on('message', (order: LocalOrder) => {
  const { phase } = order;
  perform(order).then(
    () => report({ news: 'done', phase }),
    (error: unknown) => report({ news: 'failed', phase, text: asError(error).message }),
  );
});
// Ctrl-C reaches the whole process group. Ignored here: the parent then orders this process to remove what it has made.
for (const signal of ['SIGINT', 'SIGHUP', 'SIGTERM'] as const) process.on(signal, () => undefined);
// Nothing else would end this process once its parent is gone.
process.on('disconnect', () => {
  const end = (): void => process.exit();
  Promise.resolve(worker?.remove()).then(end, end);
});
