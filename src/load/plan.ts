/** What a run does: the plan that the coordinator gives to every process, and the bounds of its numbers. */
import type { tags } from 'typia';

/** The kinds of operations of a mix. */
export const KINDS = ['insert', 'replace', 'delete', 'list', 'blob-put', 'blob-get'] as const;
export type Kind = (typeof KINDS)[number];
export const isKind = (text: string): text is Kind => KINDS.some((kind) => kind === text);

/** Bounds of the numbers of a plan, smallest and largest. */
export const PLAN_BOUNDS = {
  tenants: [1, 10_000],
  devices: [1, 100],
  connectRate: [1, 50_000],
  hold: [0, 86_400],
  rate: [0, 50_000],
  seconds: [0, 86_400],
  warmUp: [0, 3_600],
  size: [64, 49_152],
  blobSize: [1, 67_108_864],
  connections: [1, 4_096],
} as const;

/** Those of all options that are numbers. */
export const BOUNDS = { ...PLAN_BOUNDS, processes: [1, 256], agents: [0, 100], count: [1, 100] } as const;

/** A number within its bounds, where a plan comes from another machine (src/load/remote-crew.ts). */
type Within<N extends keyof typeof BOUNDS> = number &
  tags.Minimum<(typeof BOUNDS)[N][0]> &
  tags.Maximum<(typeof BOUNDS)[N][1]>;
/** A whole number within its bounds. */
export type Whole<N extends keyof typeof BOUNDS> = Within<N> & tags.Type<'int64'>;

/** At this time of the writing (seconds), this share of all sockets is cut and reconnects at once. */
export interface Storm {
  readonly at: Within<'seconds'>;
  readonly share: number & tags.Minimum<0> & tags.Maximum<1>;
}

/** A run. Rates and counts are of all processes together. */
export interface Plan {
  /** Prefix of the names of all that is made: `load-` and the run's own part. */
  readonly name: string & tags.Pattern<'^load-[a-z0-9]{1,20}$'>;
  /** Origin of the server, such as `https://sync.example.com`. */
  readonly url: string;
  /** Tenants to make, and the devices of each; with a list of devices those of the list. */
  readonly tenants: Whole<'tenants'>;
  readonly devices: Whole<'devices'>;
  /** Sockets opened per second, and seconds that they are held before the first write. */
  readonly connectRate: Within<'connectRate'>;
  readonly hold: Within<'hold'>;
  /** Scheduled operations per second, and for how many seconds, after `warmUp` seconds that are not in the figures. */
  readonly rate: Within<'rate'>;
  readonly seconds: Within<'seconds'>;
  readonly warmUp: Within<'warmUp'>;
  readonly arrivals: 'poisson' | 'fixed';
  /** Shares of the kinds. */
  readonly mix: Readonly<Partial<Record<Kind, number & tags.Minimum<0>>>>;
  /** Bytes of an item's ciphertext, and of a blob. */
  readonly size: Whole<'size'>;
  readonly blobSize: Whole<'blobSize'>;
  readonly storms: readonly Storm[];
  /** HTTP connections of a process. */
  readonly connections: Whole<'connections'>;
  /** Source addresses; empty: the system's choice. */
  readonly from: readonly string[];
}

/** Which part of a run a process does: `part` of `parts`, from 0. */
export interface Share {
  readonly part: number & tags.Type<'int64'> & tags.Minimum<0>;
  readonly parts: number & tags.Type<'int64'> & tags.Minimum<1>;
}

/** The number, out of `total`, that is assigned to a process. */
export const shareOf = (total: number, { part, parts }: Share): number =>
  Math.floor((total * (part + 1)) / parts) - Math.floor((total * part) / parts);

/** A value for each of these names. */
export const byName = <N extends string, T>(names: readonly N[], of: (name: N) => T): Record<N, T> =>
  Object.fromEntries(names.map((name) => [name, of(name)])) as Record<N, T>;

export const sum = <T>(all: readonly T[], of: (one: T) => number): number =>
  all.reduce((total, one) => total + of(one), 0);
