/** The local copy: is it whole, is it complete, does everything in it verify, and is anything stuck? */
import type { Device } from '../../../client/device.js';
import { UncertifiedDeviceError } from '../../../client/errors.js';
import type { DeviceEvents } from '../../../client/events.js';
import type { HiddenItem } from '../../../client/library.js';
import { REASONS, type HiddenReason } from '../../../client/reasons.js';
import type { Held, Pending, Store } from '../../../client/store/store.js';
import { errorCode } from '../../../protocol/error-code.js';
import { SERVICE_NAME } from '../../../protocol/limits.js';
import type { OpenDevice } from '../context.js';
import { failureOf } from '../failure.js';
import { CommandError } from '../../../device/terminal.js';
import { ok, problem, warning, within, type Finding, type Patient } from './finding.js';
import type { Figures } from './token.js';

const COMPLETE_WITHIN_MS = 120_000;
const SEND_WITHIN_MS = 15_000;

/** What is asked of the server too; absent where it cannot be. */
export interface Live {
  readonly figures: Figures;
}

/** All checks of the local copy. `live`: undefined where live changes do not come, so only what is here is looked at. */
export async function checkVault(patient: Patient, live: Live | undefined): Promise<Finding[]> {
  try {
    return await patient.context.withDevice(
      async (open) => {
        const store = await checkStore(open.store);
        const follow = live === undefined ? [] : await checkLive(patient, open, live);
        return [...store, ...follow, ...unverifiable(await open.device.hidden())];
      },
      { sync: 'local' },
    );
  } catch (error) {
    if (error instanceof CommandError) return [problem('store', error.message, error.hint ?? 'Run doctor again.')];
    const { code, message, hint } = failureOf(error);
    // A full or read-only disk is no damage: to have the copy rebuilt would not help.
    if (code !== 'failure')
      return [
        problem('store', `The local copy cannot be opened: ${message}.`, hint ?? 'Mend that, and run doctor again.'),
      ];
    return [
      problem(
        'store',
        'The local copy cannot be read.',
        'It is rebuilt from the server: see the reference, Doctor, "store".',
      ),
    ];
  }
}

/** The store's own tally against its entries. */
async function checkStore(store: Store): Promise<Finding[]> {
  const [cursor, held] = [await store.cursor(), await store.held()];
  let [itemCount, versionSum, ahead] = [0, 0, 0];
  for await (const { state, version } of store.entries()) {
    if (state === 'deleted' || version === 0) continue;
    itemCount++;
    versionSum += version;
    if (version > cursor.since) ahead++;
  }
  if (held.itemCount !== itemCount || held.versionSum !== versionSum || (ahead > 0 && cursor.epoch === null)) {
    const what = 'The local copy is damaged: its tally and its items do not agree.';
    return [
      problem(
        'store',
        what,
        `\`${SERVICE_NAME}-device doctor\` with a server at hand reads everything again; if it stays, remove the local copy (the reference, Doctor, "store").`,
      ),
    ];
  }
  return [ok('store', `The local copy holds ${itemCount} items, up to version ${cursor.since}.`)];
}

/** What a device told while it was connected. */
interface Told {
  missing: DeviceEvents['missing'] | undefined;
  repaired: DeviceEvents['repaired'] | undefined;
  complete: boolean;
  readonly problems: Error[];
  readonly rejected: Error[];
  /** Resolves when the next change went out, was refused, or met a problem. */
  moved(): Promise<true>;
  end(): void;
}

function listen(device: Device): Told {
  let move: () => void = () => undefined;
  const ends = [
    device.on('missing', (event) => (told.missing = event)),
    device.on('caught_up', (event) => (told.complete = event.complete === true)),
    device.on('repaired', (event) => (told.repaired = event)),
    device.on('problem', ({ error }) => {
      told.problems.push(error);
      move();
    }),
    device.on('rejected', ({ error }) => {
      told.rejected.push(error);
      move();
    }),
    device.on('sent', () => move()),
  ];
  const told: Told = {
    ...{ missing: undefined, repaired: undefined, complete: false, problems: [], rejected: [] },
    moved: () => new Promise((resolve) => (move = () => resolve(true))),
    end: () => ends.forEach((end) => end()),
  };
  return told;
}

/** Connects as a device does, so that what is missing is found and mended by the same code. */
async function checkLive(patient: Patient, { device, store }: OpenDevice, { figures }: Live): Promise<Finding[]> {
  const { clock } = patient.platform;
  const before = { held: await store.held(), since: (await store.cursor()).since };
  const told = listen(device);
  try {
    const connected = device.connect().then(() => true);
    if (!(await within(clock, COMPLETE_WITHIN_MS, connected, false)))
      return [
        warning(
          'completeness',
          'It could not be checked in two minutes whether everything is here.',
          'Run doctor again when the connection is better.',
        ),
      ];
    const complete = completeness(told, wasShort(before, figures), await store.held());
    for (let waits = true; waits && told.problems.length === 0 && (await unsent(store)).length > 0;)
      waits = await within(clock, SEND_WITHIN_MS, told.moved(), false);
    return [...complete, ...stuck(await unsent(store), told.problems, told.rejected)];
  } finally {
    told.end();
    device.disconnect();
  }
}

/** True where this device stood at the server's head and did not hold what is counted there. */
const wasShort = ({ held, since }: { readonly held: Held; readonly since: number }, figures: Figures): boolean =>
  since === figures.headVersion &&
  (held.itemCount !== figures.server.itemCount || held.versionSum !== figures.versionSum);

const NAMED_MAX = 5;

/** Which items, by id and version, as far as anybody can say. */
function naming(items: readonly { readonly id: string | null; readonly version: number }[]): string {
  if (items.length === 0) return '';
  const list = items
    .slice(0, NAMED_MAX)
    .map(({ id, version }) => (id === null ? `version ${version}` : `${id} (version ${version})`));
  return ` Which: ${list.join(', ')}${items.length > NAMED_MAX ? ', ...' : ''}.`;
}

/** `short`: it did not hold everything when it connected. */
function completeness({ missing, complete, repaired }: Told, short: boolean, held: Held): Finding[] {
  if (missing !== undefined) {
    const { expected, unlisted, named } = missing;
    const lack = expected.itemCount - missing.held.itemCount;
    const how =
      lack > 0
        ? `${lack} items are missing here`
        : lack < 0
          ? `${-lack} items too many are here`
          : 'items are here in other versions';
    const more =
      unlisted.length === 0
        ? ''
        : ` ${unlisted.length} items that are here are not in the server's list any more; they stay readable.`;
    const what = `The server counts ${expected.itemCount} items, ${missing.held.itemCount} are here: ${how}. Reading everything again did not help.${more}${naming(named)}`;
    return [
      problem(
        'completeness',
        what,
        'The server withholds items, or has lost them: look at another device, and at the log of the server. Export what is here (`export`) before you go on.',
      ),
    ];
  }
  if (!complete)
    return [warning('completeness', 'The server did not say how many items there are.', 'Update the server.')];
  if (repaired !== undefined || short)
    return [
      warning(
        'completeness',
        `Items were missing here. They were fetched again: all ${held.itemCount} are here now.${naming(repaired?.items ?? [])}`,
        'If this comes back, the disk or the server loses data: see the log of the server.',
      ),
    ];
  return [ok('completeness', `All ${held.itemCount} items that the server counts are here.`)];
}

function unverifiable(hidden: readonly HiddenItem[]): Finding[] {
  if (hidden.length === 0) return [ok('unverifiable', 'Every item here verifies.')];
  const byReason = new Map<HiddenReason, HiddenItem[]>();
  for (const item of hidden) byReason.set(item.reason, [...(byReason.get(item.reason) ?? []), item]);
  return [...byReason].map(([reason, items]) => {
    const { meaning, whatToDo } = REASONS[reason];
    const kept = items.filter((item) => item.kept).length;
    const named = items.slice(0, 3).map(({ id }) => id);
    const which = `${reason}; ${named.join(', ')}${items.length > named.length ? ', ...' : ''}`;
    const many = items.length === 1 ? '1 item does' : `${items.length} items do`;
    return problem(
      'unverifiable',
      `${many} not verify (${which}). ${meaning} A good state is kept of ${kept}.`,
      whatToDo,
    );
  });
}

async function unsent(store: Store): Promise<readonly Pending[]> {
  return (await store.pending()).filter(
    (pending) => pending.version === null && !(pending.kind === 'write' && pending.rewrap),
  );
}

const CAUSES: Readonly<Record<string, string>> = {
  storage_cap_exceeded: 'The vault is full: delete what you do not need, or raise STORAGE_CAP_BYTES on the server.',
  tenant_suspended: 'The account is past due, and the server takes no changes: open the billing page.',
  payment_required: 'The account is not paid for: open the billing page.',
  uncertified_device: 'The server lists a device that nobody vouches for: see "devices".',
  rate_limited: 'The server asks for patience: they go out by themselves.',
};

const codeOf = (error: Error): string => errorCode(error) || error.name;

function stuck(left: readonly Pending[], problems: readonly Error[], rejected: readonly Error[]): Finding[] {
  const findings: Finding[] = [];
  if (rejected.length > 0) {
    const codes = [...new Set(rejected.map(codeOf))].join(', ');
    findings.push(
      problem(
        'pending',
        `${rejected.length} changes that waited here were refused for good (${codes}) and dropped.`,
        'Make them again: the item was changed or removed elsewhere meanwhile.',
      ),
    );
  }
  if (left.length === 0) return findings.length > 0 ? findings : [ok('pending', 'No change waits to be sent.')];
  const known = problems.find((error) => codeOf(error) in CAUSES) ?? problems[0];
  const why =
    known === undefined
      ? 'no answer came'
      : known instanceof UncertifiedDeviceError
        ? 'uncertified_device'
        : codeOf(known);
  const mend = CAUSES[why] ?? 'They are kept, and tried again by every command.';
  findings.push(problem('pending', `${left.length} changes wait here and cannot be sent (${why}).`, mend));
  return findings;
}
