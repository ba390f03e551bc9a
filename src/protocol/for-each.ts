/** Work on several items at once. */

const AT_ONCE = 8;

/** Runs `work` for each item, `atOnce` at a time. A failure is thrown once all work under way has ended; no more begins. */
export async function forEach<T>(
  items: readonly T[],
  work: (item: T, at: number) => Promise<void>,
  atOnce = AT_ONCE,
): Promise<void> {
  let next = 0;
  const lane = async (): Promise<void> => {
    while (next < items.length) await work(items[next] as T, next++);
  };
  const lanes = Array.from({ length: Math.min(atOnce, items.length) }, () =>
    lane().catch((error: unknown) => {
      next = items.length;
      throw error;
    }),
  );
  const failed = (await Promise.allSettled(lanes)).find((one) => one.status === 'rejected');
  if (failed !== undefined) throw failed.reason;
}
