/** A process of a run: performs its parent's orders and reports their outcomes. Ends with its parent. */
import { asError } from '../protocol/error-code.js';
import { ALIVE_EVERY_MS, type LocalOrder, type News } from './orders.js';
import { LoadWorker } from './worker.js';

/** Set before the worker is there: a removal that is ordered meanwhile waits for it, and for what it begins to make. */
let opened: Promise<LoadWorker> | undefined;
const report = (news: News): void => {
  // Without a callback the failure of a send, to a parent that has just died, would end this process with all it has made.
  if (process.connected) process.send?.(news, () => undefined);
};

async function perform(order: LocalOrder): Promise<void> {
  switch (order.phase) {
    case 'prepare': {
      const { plan, share, access = {} } = order;
      // The tenants of the first run would never be removed.
      if (opened !== undefined) throw new Error('a second run');
      opened = LoadWorker.open({
        ...{ plan, share, access },
        onTick: (tick) => report({ news: 'tick', part: share.part, tick }),
      });
      return (await opened).prepare();
    }
    case 'connect':
      return (await opened)?.connect();
    case 'write':
      return (await opened)?.write();
    case 'finish':
      if (opened !== undefined) report({ news: 'result', result: await (await opened).finish() });
      return;
    case 'remove':
      report({ news: 'left', left: (await (await opened)?.remove()) ?? [] });
  }
}

process.on('message', (order: LocalOrder) => {
  const { phase } = order;
  perform(order).then(
    () => report({ news: 'done', phase }),
    (error: unknown) => report({ news: 'failed', phase, text: asError(error).message }),
  );
});
// Not what keeps it going: its parent may have gone before it listened for that.
setInterval(() => report({ news: 'alive' }), ALIVE_EVERY_MS).unref();
// Ctrl-C reaches the whole process group. Ignored here: the parent then orders this process to remove what it has made.
for (const signal of ['SIGINT', 'SIGHUP', 'SIGTERM'] as const) process.on(signal, () => undefined);
// Nothing else would end this process once its parent is gone.
process.on('disconnect', () => {
  const end = (): void => process.exit();
  Promise.resolve(opened)
    .then((worker) => worker?.remove())
    .then(end, end);
});
