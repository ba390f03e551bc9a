/** Puts together what happens by night. */
import { Nightly } from '../ops/nightly.js';
import { nightlyJobs, PostgresJobTurn, type Job } from '../ops/store.js';
import type { Parts } from './parts.js';

/** What happens by night, on one instance; `more`: jobs beside those of the database alone. */
export async function composeNightly(
  { log, config, clock, database, stops, onFault }: Parts,
  more: readonly Job[],
): Promise<void> {
  const { pool, url } = database;
  const nightly = new Nightly({
    jobs: [...nightlyJobs({ pool, now: () => clock.now(), softDeleteMs: config.softDeleteMs }), ...more],
    turn: new PostgresJobTurn(pool, url),
    clock,
    at: config.purgeAt,
    onReport: (report) => log.info(report, 'nightly job'),
    onFault,
  });
  await nightly.start();
  stops.push(() => nightly.close());
}
