/** The stops of the parts of a process. */

/** Stops one part of the server. */
export type Stop = () => Promise<void>;

/**
 * Runs all stops, last first, even if one fails: the database, which is the last, must still be stopped. Throws what
 * failed, an `AggregateError` where several did.
 */
export async function runStops(stops: Stop[]): Promise<void> {
  const failures: unknown[] = [];
  for (let stop = stops.pop(); stop !== undefined; stop = stops.pop()) {
    try {
      await stop();
    } catch (error) {
      failures.push(error);
    }
  }
  if (failures.length > 1) throw new AggregateError(failures, failures.map(String).join('; '));
  if (failures.length > 0) throw failures[0];
}

/** Runs `work`. If it fails, the stops run too: their error goes to `onFault`, and that of `work` is thrown. */
export async function orStop<T>(stops: Stop[], work: () => Promise<T>, onFault: (error: unknown) => void): Promise<T> {
  try {
    return await work();
  } catch (error) {
    await runStops(stops).catch(onFault);
    throw error;
  }
}
