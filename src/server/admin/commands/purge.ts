/** `service-admin purge`: runs the nightly jobs now. */
import { systemClock } from '../../../protocol/clock.js';
import { counted, sanitizeText, show, table } from '../../../terminal/output.js';
import { CommandError, EXIT } from '../../../terminal/terminal.js';
import { blobJobs, type Refused } from '../../app/blobs.js';
import { withStore } from '../../app/object-store.js';
import { Reaper } from '../../blobs/reaper.js';
import { runJobs, type JobReport } from '../../ops/nightly.js';
import { nightlyJobs, PostgresJobTurn } from '../../ops/store.js';
import { ADMIN_NAME, type AdminContext, type AdminCommand } from '../context.js';
import { titled } from '../progress.js';

export function registerPurge(program: AdminCommand): void {
  program
    .command('purge')
    .summary('run the nightly jobs now')
    .description(
      'Run the nightly jobs now, in place of the next night: items that were deleted long ago are emptied, keys of ' +
        'revoked devices, everything expired and unused blobs are removed, and the blobs are compared with their ' +
        'store. Servers may keep running',
    )
    .examples('purge')
    .changes(purge);
}

async function purge({ terminal, withReady, config }: AdminContext): Promise<void> {
  let missing = 0;
  const refused: Refused[] = [];
  const reports: JobReport[] = [];
  const faults: unknown[] = [];
  const settings = config();
  await withReady(({ pool, url }) =>
    withStore(settings, async (store) => {
      const turn = new PostgresJobTurn(pool, url);
      const jobs = [
        ...nightlyJobs({ pool, now: () => systemClock.now(), softDeleteMs: settings.softDeleteMs }),
        ...blobJobs(new Reaper(store, pool, url, systemClock), {
          onRefused: (what) => void refused.push(what),
          onCompared: (found) => void (missing = found.missing),
        }),
      ];
      const work = {
        ...{ jobs, clock: systemClock },
        onReport: (report: JobReport) => void reports.push(report),
        onFault: (error: unknown) => void faults.push(error),
      };
      const taken = await turn.take(async (lost) => {
        const through = await runJobs(work, AbortSignal.any([lost, terminal.interrupted]));
        if (through) await turn.ran(systemClock.now());
        else if (faults.length === 0)
          faults.push(new CommandError(EXIT.unavailable, 'the turn was lost before the jobs were done'));
      });
      const hint = 'Wait until it is done, and check its log.';
      if (!taken) throw new CommandError(EXIT.unavailable, 'a server is running them now', hint, { code: 'busy' });
    }),
  );
  const refusedBlobs = refused.map(({ job, refused: objects, fault }) => ({ job, objects, why: reasonOf(fault) }));
  show(terminal, { jobs: reports, missingBlobs: missing, refusedBlobs }, () => [
    ...table(
      terminal,
      titled('Job', 'Rows', 'ms'),
      reports.map(({ name, rows, ms }) => [name, String(rows), String(Math.round(ms))]),
    ),
    ...refusedBlobs.map(
      ({ job, objects, why }) => `${job}: the store refused ${counted(objects, 'blob')} (${sanitizeText(why)}).`,
    ),
    missing > 0 && `${counted(missing, 'blob')} missing in the store: see \`${ADMIN_NAME} verify\`.`,
  ]);
  // Thrown last: the other jobs ran, and their results are already shown.
  if (faults.length > 0) throw faults[0];
}

/** The text of the fault, which contains no text from the store. */
const reasonOf = (fault: Error | undefined): string =>
  fault?.cause instanceof Error ? fault.cause.message : 'no reason given';
