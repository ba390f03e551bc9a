/** What users do, in percent; bench/README.md has the reasons for these shares. */
export const SHARES = {
  insert: 40,
  replace: 20,
  list: 12,
  delete: 10,
  move: 6,
  rewrap: 4,
  'blob put': 4,
  'blob get': 4,
} as const;

export type Kind = keyof typeof SHARES;

export const KINDS = Object.keys(SHARES) as readonly Kind[];

/** Bins: the one that each tenant has, and the one that items are moved to. */
export const BINS = ['inbox', 'kept'] as const;

/** A change that was acknowledged: a line of the driver's log, as JSON. */
export interface Acked {
  /** Number of the device in the population. */
  readonly who: number;
  readonly version: number;
  readonly kind: Kind;
  readonly id: string;
  readonly bin: string;
}

/** Measurements of one kind; ms. */
export interface KindResult {
  readonly kind: Kind;
  readonly count: number;
  readonly p50: number;
  readonly p99: number;
}
