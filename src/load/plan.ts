/** What a run does: the plan that the coordinator gives to every process, and the bounds of its numbers. */

/** The kinds of operations of a mix. */
export const KINDS = ['insert', 'replace', 'delete', 'list', 'blob-put', 'blob-get'] as const;
export type Kind = (typeof KINDS)[number];
export const isKind = (text: string): text is Kind => KINDS.some((kind) => kind === text);

/** At a time of the writing (seconds), this share of all sockets is cut and comes back at once. */
export interface Storm {
  readonly at: number;
  readonly share: number;
}

/** A run. Rates and counts are of all processes together. */
export interface Plan {
  /** Names of what is made begin with it: `load-` and what makes it this run's. */
  readonly name: string;
  /** Origin of the server, such as `https://sync.example.com`. */
  readonly url: string;
  /** Tenants to make, and the devices of each; with a list of devices those of the list. */
  readonly tenants: number;
  readonly devices: number;
  /** Sockets opened a second, and seconds that they are held before the first write. */
  readonly connectRate: number;
  readonly hold: number;
  /** Operations a second by schedule, and for how many seconds; those of the first `warmUp` seconds are not in figures. */
  readonly rate: number;
  readonly seconds: number;
  readonly warmUp: number;
  readonly arrivals: 'poisson' | 'fixed';
  /** Shares of the kinds. */
  readonly mix: Readonly<Partial<Record<Kind, number>>>;
  /** Bytes of an item's ciphertext, and of a blob. */
  readonly size: number;
  readonly blobSize: number;
  readonly storms: readonly Storm[];
  /** HTTP connections of a process. */
  readonly connections: number;
  /** Source addresses; empty: the system's choice. */
  readonly from: readonly string[];
}

/** Which part of a run a process does: `part` of `parts`, from 0. */
export interface Share {
  readonly part: number;
  readonly parts: number;
}

/** Bounds of the numbers, smallest and largest. */
export const BOUNDS = {
  tenants: [1, 10_000],
  devices: [1, 100],
  'connect-rate': [1, 50_000],
  hold: [0, 86_400],
  rate: [0, 50_000],
  seconds: [0, 86_400],
  'warm-up': [0, 3_600],
  size: [64, 49_152],
  'blob-size': [1, 67_108_864],
  processes: [1, 256],
  connections: [1, 4_096],
  agents: [0, 100],
  count: [1, 100],
} as const;

/** The whole part of `total` that falls to a process. */
export const shareOf = (total: number, { part, parts }: Share): number =>
  Math.floor((total * (part + 1)) / parts) - Math.floor((total * part) / parts);
