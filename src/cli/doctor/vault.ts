/** The local copy: is it consistent and complete, does every item verify, and can the outbox be sent? */
import type { Device } from '../../sdk/device.js';
import type { DeviceEvents } from '../../sdk/events.js';
import type { HiddenItem } from '../../sdk/item-reader.js';
import { REASONS } from '../../sdk/reasons.js';
import type { Held, Pending, Store } from '../../sdk/store/store.js';
import { within } from '../../protocol/clock.js';
import { errorCode } from '../../protocol/error-code.js';
import { type OpenDevice, PROGRAM_NAME } from '../context.js';
import { failureOf } from '../failure.js';
import { counted } from '../../terminal/output.js';
import { CommandError } from '../../terminal/terminal.js';
import { about, type Figures, type Finding, type DoctorContext } from './finding.js';

const COMPLETE_WITHIN_MS = 120_000;
const SEND_WITHIN_MS = 15_000;

/** All checks of the local copy. `figures`: undefined without live changes; only local checks are made then. */
export async function checkVault(doctor: DoctorContext, figures: Figures | undefined): Promise<readonly Finding[]> {
  const { problem } = about('store');
  try {
    return await doctor.withDevice(async (open) => {
      const store = await checkStore(open.store);
      const live = figures === undefined ? [] : await checkLive(doctor, open, figures);
      return [store, ...live, ...unverifiable(await open.device.hidden())];
    }, 'local');
  } catch (error) {
    if (error instanceof CommandError) return [problem(error.message, error.hint ?? 'Run doctor again.')];
    const { code, message, hint } = failureOf(error);
    const damaged = 'It is rebuilt from the server: see the reference, Doctor, "store".';
    if (code === 'failure') return [problem('The local copy cannot be read.', damaged)];
    // A full or read-only disk: rebuilding the copy would not help.
    const what = `The local copy cannot be opened: ${message}.`;
    return [problem(what, hint ?? 'Fix that, and run doctor again.')];
  }
}

/** Compares the store's counters with its entries. */
async function checkStore(store: Store): Promise<Finding> {
  const { ok, problem } = about('store');
  const [cursor, held] = [await store.cursor(), await store.held()];
  let [itemCount, versionSum, ahead] = [0, 0, 0];
  for await (const { state, version } of store.entries()) {
    if (state === 'deleted' || version === 0) continue;
    itemCount++;
    versionSum += version;
    if (version > cursor.since) ahead++;
  }
  if (held.itemCount === itemCount && held.versionSum === versionSum && (ahead === 0 || cursor.epoch !== null))
    return ok(`The local copy holds ${counted(itemCount, 'item')}, up to version ${cursor.since}.`);
  return problem(
    'The local copy is damaged: its tally and its items do not match.',
    `\`${PROGRAM_NAME} doctor\` with the server reachable reads everything again; if the damage remains, remove the local copy (the reference, Doctor, "store").`,
  );
}

type Observed = ReturnType<typeof observe>;

/** The events of a device. `progress` resolves when the next change is sent or refused, or a problem occurs. */
function observe(device: Device) {
  let progressed: () => void = () => undefined;
  const seen = {
    missing: undefined as DeviceEvents['missing'] | undefined,
    repaired: undefined as DeviceEvents['repaired'] | undefined,
    complete: false,
    problems: [] as Error[],
    rejected: [] as Error[],
    progress: (): Promise<true> => new Promise((resolve) => (progressed = () => resolve(true))),
  };
  device.on('missing', (event) => (seen.missing = event));
  device.on('caught_up', (event) => (seen.complete = event.complete === true));
  device.on('repaired', (event) => (seen.repaired = event));
  for (const [name, errors] of [['problem', seen.problems] as const, ['rejected', seen.rejected] as const])
    device.on(name, ({ error }) => {
      errors.push(error);
      progressed();
    });
  device.on('sent', () => progressed());
  return seen;
}

/** Connects like any device, so that the same code detects and repairs missing items. */
async function checkLive(doctor: DoctorContext, { device, store }: OpenDevice, figures: Figures) {
  const { clock } = doctor.platform;
  const { itemCount, versionSum } = await store.held();
  // At the server's head, but with other counts.
  const lacked =
    (await store.cursor()).since === figures.headVersion &&
    (itemCount !== figures.itemCount || versionSum !== figures.versionSum);
  const seen = observe(device);
  try {
    const connected = device.connect().then(() => true);
    if (!(await within(clock, COMPLETE_WITHIN_MS, connected, false))) {
      const what = 'The check that everything is here did not finish in two minutes.';
      return [about('completeness').warning(what, 'Run doctor again when the connection is better.')];
    }
    const complete = completeness(seen, lacked, await store.held());
    for (let waits = true; waits && seen.problems.length === 0 && (await unsent(store)).length > 0;)
      waits = await within(clock, SEND_WITHIN_MS, seen.progress(), false);
    return [complete, ...pendingFindings(seen, await unsent(store))];
  } finally {
    device.disconnect();
  }
}

const NAMED_MAX = 5;

/** The first of these names; an ellipsis stands for the others. */
const firstOf = (names: readonly string[], most: number): string =>
  `${names.slice(0, most).join(', ')}${names.length > most ? ', ...' : ''}`;

/** A sentence with the first items by id and version, as far as they are known; '' for none. */
function itemNames(items: readonly { readonly id: string | null; readonly version: number }[]): string {
  const names = items.map(({ id, version }) => (id === null ? `version ${version}` : `${id} (version ${version})`));
  return names.length === 0 ? '' : ` Which: ${firstOf(names, NAMED_MAX)}.`;
}

/** `lacked`: items were missing before the device connected. */
function completeness({ missing, complete, repaired }: Observed, lacked: boolean, held: Held): Finding {
  const { ok, warning, problem } = about('completeness');
  if (missing !== undefined)
    return problem(
      missingText(missing),
      'The server withholds items, or has lost them: check another device and the server log. Export what is here (`export`) before you continue.',
    );
  if (!complete) return warning('The server did not say how many items there are.', 'Update the server.');
  if (repaired === undefined && !lacked) return ok(`All items that the server counts are here: ${held.itemCount}.`);
  const which = itemNames(repaired?.items ?? []);
  return warning(
    `Items were missing here. They were fetched again: all ${held.itemCount} are here now.${which}`,
    'If this comes back, the disk or the server loses data: check the server log.',
  );
}

function missingText({ expected, held, unlisted, named }: DeviceEvents['missing']): string {
  const absent = expected.itemCount - held.itemCount;
  const counts = absent > 0 ? `missing here: ${absent}` : `here in addition: ${-absent}`;
  const how = absent === 0 ? 'some are here in other versions' : counts;
  const extra = ` ${counted(unlisted.length, 'item')} of this device ${unlisted.length === 1 ? 'is' : 'are'} not in the server's list any more, and can still be read.`;
  const more = unlisted.length === 0 ? '' : extra;
  return `The server counts ${counted(expected.itemCount, 'item')}, here: ${held.itemCount}; ${how}. Reading everything again did not help.${more}${itemNames(named)}`;
}

function unverifiable(hidden: readonly HiddenItem[]): readonly Finding[] {
  const { ok, problem } = about('unverifiable');
  if (hidden.length === 0) return [ok('Every item here verifies.')];
  return [...new Set(hidden.map(({ reason }) => reason))].map((reason) => {
    const items = hidden.filter((item) => item.reason === reason);
    const { meaning, whatToDo } = REASONS[reason];
    const kept = items.filter((item) => item.kept).length;
    const named = firstOf(
      items.map(({ id }) => id),
      3,
    );
    const many = items.length === 1 ? '1 item does' : `${items.length} items do`;
    return problem(`${many} not verify (${reason}; ${named}). ${meaning} A good state is kept of ${kept}.`, whatToDo);
  });
}

const unsent = async (store: Store): Promise<readonly Pending[]> =>
  (await store.pending()).filter((one) => one.version === null && !(one.kind === 'write' && one.rewrap));

/** By the server's code. */
const CAUSES: ReadonlyMap<string, string> = new Map([
  ['storage_cap_exceeded', 'The vault is full: delete what you do not need, or raise STORAGE_CAP_BYTES on the server.'],
  ['tenant_suspended', 'The account is suspended, and the server takes no changes: open the billing page.'],
  ['payment_required', 'The account is not paid for: open the billing page.'],
  ['uncertified_device', 'The server lists a device that nobody vouches for: see "devices".'],
  ['rate_limited', 'The server is rate-limiting: they are sent automatically.'],
]);

const codeOf = (error: Error): string => errorCode(error) || error.name;

function pendingFindings({ problems, rejected }: Observed, left: readonly Pending[]): readonly Finding[] {
  const { ok, problem } = about('pending');
  const findings: Finding[] = [];
  if (rejected.length > 0) {
    const codes = [...new Set(rejected.map(codeOf))].join(', ');
    const what = `${rejected.length} changes that waited here were refused for good (${codes}) and dropped.`;
    findings.push(problem(what, 'Make them again: the item was changed or removed elsewhere meanwhile.'));
  }
  if (left.length > 0) {
    const known = problems.find((error) => CAUSES.has(codeOf(error))) ?? problems[0];
    const why = known === undefined ? 'no answer came' : codeOf(known);
    const advice = CAUSES.get(why) ?? 'They are kept, and tried again by every command.';
    findings.push(problem(`${left.length} changes wait here and cannot be sent (${why}).`, advice));
  }
  return findings.length > 0 ? findings : [ok('No change waits to be sent.')];
}
