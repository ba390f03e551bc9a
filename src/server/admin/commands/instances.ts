/** The running server processes: listing them, and draining the sockets of some of them before a restart. */
import { delay, MINUTE_MS, systemClock } from '../../../protocol/clock.js';
import { HEAD_COMPARE_MS } from '../../../protocol/limits.js';
import { counted, show, table, throttledProgress } from '../../../terminal/output.js';
import { CommandError, EXIT, type Terminal } from '../../../terminal/terminal.js';
import { ADMIN_NAME, type AdminContext, type AdminCommand } from '../context.js';
import { titled, wholeNumber } from '../progress.js';
import type { InstanceRow, OperatorStore } from '../store.js';

const MINUTES_MAX = 120;
const POLL_MS = 1_000;
/** Time limit for confirming an order, ms: an instance reads it with one heartbeat, and confirms it with the next. */
const CONFIRM_MAX_MS = 4 * HEAD_COMPARE_MS;
/** Grace beyond the order's time, ms: the last sockets receive what is unsent, and the instance reports the end. */
const GRACE_MS = MINUTE_MS;

export function registerInstances(program: AdminCommand): void {
  program
    .command('instances')
    .summary('list the running server processes with their sockets')
    .description('List the server processes that run on this database, as of their last heartbeat')
    .examples('instances', 'instances --json')
    .does(async ({ terminal, withReady }) => {
      const instances = await withReady(({ store }) => store.instances());
      show(terminal, { instances }, () =>
        instances.length === 0 ? ['No server runs on this database.'] : instanceTable(terminal, instances),
      );
    });
  program
    .command('drain')
    .summary('send the sockets of an instance away before it is stopped')
    .description(
      'Send the sockets of an instance, or of all on one machine, to the others over some minutes. From then on it is ' +
        'not ready and accepts no sockets, but still answers requests. Ends when no socket is left; if interrupted, the ' +
        'draining continues. A restart ends it',
    )
    .argument('<instance>', 'its name, or that of its machine, as `instances` shows it')
    .option('--minutes <count>', 'over this many minutes (default: DRAIN_MINUTES)', wholeNumber(0, MINUTES_MAX))
    .option('--force', 'even if no other instance is left to take the sockets')
    .examples('drain sync-1', 'drain 01K2ZD6E0Q4W3SMXX0PZ7VJ5R1 --minutes 2')
    .changes(drain);
}

const stateOf = ({ draining, sockets }: InstanceRow): string =>
  draining ? (sockets === 0 ? 'drained' : 'draining') : 'serving';

const instanceTable = (terminal: Terminal, rows: readonly InstanceRow[]): string[] =>
  table(
    terminal,
    titled('Instance', 'Machine', 'Process', 'Port', 'Version', 'Secrets', 'Sockets', 'State'),
    rows.map((row) => [
      ...[row.id, row.host, String(row.pid), String(row.port), row.version, row.secrets],
      ...[String(row.sockets), stateOf(row)],
    ]),
  );

async function drain(
  { terminal, config, withReady }: AdminContext,
  named: string,
  { minutes = config().drainMinutes, force = false }: { readonly minutes?: number; readonly force?: boolean },
): Promise<void> {
  await withReady(async ({ store }) => {
    const all = await store.instances();
    const chosen = all.filter(({ id, host }) => id === named || host === named);
    if (chosen.length === 0) throw notFound(named);
    const remaining = all.filter((one) => !one.draining && !chosen.includes(one));
    if (remaining.length === 0 && !force) throw lastInstance();
    const sharesPort = (one: InstanceRow): boolean =>
      all.some((other) => other.host === one.host && other.port === one.port && !chosen.includes(other));
    for (const alone of [true, false]) {
      const rows = chosen.filter((one) => sharesPort(one) === alone);
      if (rows.length > 0) await store.drain(idsOf(rows), minutes * MINUTE_MS, alone);
    }
    const stopped = await untilDrained(store, terminal, chosen, minutes * MINUTE_MS);
    const sockets = chosen.reduce((sum, one) => sum + one.sockets, 0);
    show(terminal, { drained: idsOf(chosen), sockets, stopped }, () => [
      `Drained: ${counted(chosen.length, 'instance')}, which had ${counted(sockets, 'socket')}. Stop or restart ` +
        `${chosen.length === 1 ? 'it' : 'them'} now.`,
      stopped.length > 0 && `${counted(stopped.length, 'instance')} of them stopped meanwhile.`,
    ]);
  });
}

const idsOf = (rows: readonly InstanceRow[]): string[] => rows.map(({ id }) => id);

const notFound = (named: string): CommandError =>
  new CommandError(
    EXIT.notFound,
    `no instance or machine is called ${JSON.stringify(named)}`,
    `See \`${ADMIN_NAME} instances\`.`,
    { code: 'instance_not_found' },
  );

const lastInstance = (): CommandError =>
  new CommandError(
    EXIT.refused,
    'no other instance would be left to take the sockets',
    'Start another one first. To send them away anyway, until the restart: --force.',
    { code: 'last_instance' },
  );

/** Waits until each instance has no socket or has stopped; resolves with the ids of those that stopped. */
async function untilDrained(
  store: OperatorStore,
  terminal: Terminal,
  chosen: readonly InstanceRow[],
  ms: number,
): Promise<string[]> {
  const begun = systemClock.now();
  const report = throttledProgress(terminal);
  for (;;) {
    const now = systemClock.now();
    const running = (await store.instances()).filter(({ id }) => idsOf(chosen).includes(id));
    const open = running.filter((one) => !one.draining || one.sockets > 0);
    if (open.length === 0) return idsOf(chosen).filter((id) => !idsOf(running).includes(id));
    const sockets = open.reduce((sum, one) => sum + one.sockets, 0);
    const unconfirmed = open.filter(({ draining }) => !draining);
    if (unconfirmed.length > 0 && now - begun > CONFIRM_MAX_MS) throw notConfirmed(unconfirmed);
    if (now - begun > ms + GRACE_MS) throw notDrained(sockets);
    const minutes = Math.max(0, Math.ceil((begun + ms - now) / MINUTE_MS));
    report(() => `Draining: ${counted(sockets, 'socket')} left, ${counted(minutes, 'minute')} to go`);
    await delay(systemClock, POLL_MS, terminal.interrupted).catch(() => {
      throw new CommandError(EXIT.interrupted, 'interrupted; the draining continues');
    });
  }
}

const notConfirmed = (rows: readonly InstanceRow[]): CommandError =>
  new CommandError(
    EXIT.unavailable,
    `${counted(rows.length, 'instance')} did not accept the order: ${idsOf(rows).join(', ')}`,
    'It may be an older version, or hang: stop it with SIGTERM.',
    { code: 'not_followed' },
  );

const notDrained = (sockets: number): CommandError =>
  new CommandError(EXIT.failure, `${counted(sockets, 'socket')} did not close in time`, 'Stop the instance anyway.', {
    code: 'not_emptied',
  });
