/** A command of a drawn script, the ways in which it may be run, and what is right of it in each. */
import { randomBytes } from 'node:crypto';
import { ulid } from '../../src/sdk/ulid.js';
import type { CallOptions, Json } from './cli.js';
import type { Attempt, CliWorld, Profile, Ran } from './cli-world.js';

/** Numbers that choose among what exists at that moment. */
export interface Numbers {
  readonly a: number;
  readonly b: number;
  readonly c: number;
}

/** How a command is run. */
export interface Way {
  /** No other one runs at the same time. */
  readonly alone: boolean;
  /** Nothing goes wrong. */
  readonly clean: boolean;
  /** Nothing goes wrong but that the server is away. */
  readonly away: boolean;
  /** What the profile showed before, and which deletions waited. */
  readonly view: Profile['view'];
  readonly deleted: Profile['deleted'];
  readonly numbers: Profile['numbers'];
}

/** A command, and what is right of it. */
export interface Step {
  readonly profile: Profile;
  readonly argv: readonly string[];
  readonly options?: CallOptions;
  /** It does not contact the server. */
  readonly local?: boolean;
  /** Called before it is looked at what the server has. */
  said?(result: Ran, way: Way): void;
  /** Called afterwards. */
  check?(result: Ran, way: Way): void;
}

export type Builder = (world: CliWorld, numbers: Numbers, alone: boolean) => Step | undefined;

export const pick = <T>(from: readonly T[], n: number): T | undefined =>
  from.length === 0 ? undefined : from[n % from.length];

export const profileOf = (world: CliWorld, n: number): Profile => {
  const found = pick(world.profiles, n);
  if (found === undefined) throw new Error('no profiles');
  return found;
};

/** Codes of refusals after which nothing was changed. */
const REFUSED = [
  'not_found',
  'conflict',
  'bin_not_found',
  'deleted_item',
  'unknown_item',
  'ambiguous',
  'usage',
  'needs_file',
];

const codeOf = ({ error }: Ran): string => String(error?.['code']);

/** What a change is now known to be. */
export function settled(attempt: Attempt, result: Ran): void {
  if (result.killed) return;
  const [document] = result.data;
  if (result.code === 0 && document !== undefined) {
    attempt.said = document['queued'] === true ? 'queued' : 'sent';
    attempt.id ??= String(document['id']);
  } else if (REFUSED.includes(codeOf(result))) attempt.said = 'refused';
}

/** The item of a change that was sent: it has the version that was named, or a later one. */
export function expectSent(world: CliWorld, { id, kind, mark, bin, said }: Attempt, result: Ran): void {
  if (said !== 'sent' || id === undefined) return;
  const state = world.items.get(id);
  const version = Number(result.data[0]?.['version']);
  if (kind === 'delete') {
    if (state !== undefined) world.fault(`${id} is there, though its deletion was acknowledged`);
  } else if (state === undefined) {
    const later = world.attempts.some((one) => one.kind === 'delete' && (one.id ?? id) === id);
    if (!later) world.fault(`${id} is gone after it was acknowledged`);
  } else if (state.version < version)
    world.fault(`${id} has version ${state.version}, and ${version} was acknowledged`);
  else if (state.version === version) {
    if (mark !== undefined && state.mark !== mark)
      world.fault(`${id} holds ${state.mark}, and ${mark} was acknowledged`);
    if (bin !== undefined && state.bin !== bin) world.fault(`${id} is in ${state.bin}, not in ${bin}`);
  }
}

/** Code 0, sent at once; or where the server is away, what `away` says. */
export function expectCode(
  world: CliWorld,
  step: Step,
  { result, way }: { readonly result: Ran; readonly way: Way },
  codes: { clean: number[]; away: number[] },
): void {
  const allowed = way.clean ? codes.clean : way.away ? codes.away : undefined;
  if (allowed !== undefined && !allowed.includes(result.code))
    world.fault(
      `${step.profile.name}: ${step.argv.join(' ')} ended with ${result.code}, ${codeOf(result)}: ${result.notes}`,
    );
  if (way.clean && result.data[0]?.['queued'] === true)
    world.fault(`${step.argv.join(' ')} is queued at a server that is there`);
}

/** A command that names an item works on that one. */
export function expectId(
  world: CliWorld,
  { argv }: Step,
  id: string | undefined,
  { result, way }: { readonly result: Ran; readonly way: Way },
): void {
  const [document] = result.data;
  if (result.code !== 0 || document === undefined) return;
  const ids =
    document['deleted'] === undefined ? [document['id']] : (document['deleted'] as Json[]).map((one) => one['id']);
  if (id === undefined ? way.numbers !== undefined : !ids.includes(id))
    world.fault(`${argv.join(' ')} worked on ${ids.join(' ')}, not on ${String(id)}`);
}

/** What a pipe gets: texts are printed with a line end where they have none. */
export function expectContent(world: CliWorld, mark: string, { bytes, out }: Ran): void {
  const right = world.contents.get(mark);
  if (right === undefined) return;
  const same = bytes.equals(right) || out === right.toString() || bytes.toString() === `${right.toString()}\n`;
  if (!same) world.fault(`${mark} came back as ${bytes.toString().slice(0, 80)} ${out.slice(0, 80)}`);
}

/** The bins, in the order of their creation. */
export const binIn = (world: CliWorld, n: number): string =>
  n % 3 === 0 ? (pick([...world.bins.keys()], n >> 2) ?? 'inbox') : 'inbox';

/** An id of an item that is there, was there, or never was. */
export function idIn(world: CliWorld, n: number): string | undefined {
  if (n % 17 === 16) return ulid(Date.now(), (length) => randomBytes(length));
  if (n % 13 === 12) return pick([...world.gone], n >> 4);
  return pick([...world.items.keys()], n >> 1);
}

/** Numbers of the last list, ids, and the ends of ids. */
export function typedOf(
  world: CliWorld,
  { numbers }: Profile,
  n: number,
): { typed: string; id: string | undefined } | undefined {
  if (n % 3 === 0) {
    const number = 1 + ((n >> 2) % 6);
    return { typed: String(number), id: numbers?.[number - 1] };
  }
  const id = idIn(world, n);
  return id === undefined ? undefined : { typed: n % 3 === 1 ? id : id.slice(-12), id };
}

/** A deletion of the profile may wait. */
export const waits = (world: CliWorld, { name }: Profile, id: string): boolean =>
  world.attempts.some((one) => one.by === name && one.id === id && one.kind === 'delete' && one.said !== 'refused');

export const rowsOf = (result: Ran): Json[] => (result.data[0]?.['items'] as Json[] | undefined) ?? [];

export const line = (id: string, { mark, bin }: { readonly mark: string; readonly bin: string }): string =>
  `${id} ${mark} ${bin}`;

export const linesOf = (items: ReadonlyMap<string, { readonly mark: string; readonly bin: string }>): string =>
  [...items]
    .map(([id, state]) => line(id, state))
    .sort()
    .join('\n');
