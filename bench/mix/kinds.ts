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

/** A change that was acknowledged: a line of the driver's log. */
export interface Acked {
  /** Number of the device in the population. */
  readonly who: number;
  readonly version: number;
  readonly kind: Kind;
  readonly id: string;
  readonly bin: string;
}

/** The kind is last because it may contain a space. */
export const lineOf = ({ who, version, kind, id, bin }: Acked): string => `${who} ${version} ${id} ${bin} ${kind}`;

const isKind = (text: string): text is Kind => KINDS.some((kind) => kind === text);

export function ackedIn(line: string): Acked {
  const [who, version, id = '', bin = '', ...rest] = line.split(' ');
  const kind = rest.join(' ');
  if (!isKind(kind)) throw new Error(`no change: ${line}`);
  return { who: Number(who), version: Number(version), id, bin, kind };
}

/** Measurements of one kind; ms. */
export interface KindResult {
  readonly kind: Kind;
  readonly count: number;
  readonly p50: number;
  readonly p99: number;
}
