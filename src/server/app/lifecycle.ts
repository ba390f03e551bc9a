/** The stops of the parts of a process, and work that is repeated until its stop. */
import { every, type Clock } from '../../protocol/clock.js';
import { SingleFlight } from '../../protocol/single-flight.js';

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

/**
 * Calls `work`, which must not reject, every `ms` milliseconds, unless the previous call is still running. Returns its
 * stop, which waits for that call.
 */
export function repeated(clock: Clock, ms: number, work: () => Promise<void>): Stop {
  const working = new SingleFlight(work);
  const timer = every(clock, ms, () => void working.join());
  return () => {
    timer.cancel();
    return working.idle();
  };
}
