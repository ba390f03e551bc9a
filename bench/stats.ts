/** Series of figures, floors, and their tables. */

/** One figure, measured once a round. */
export interface Series {
  readonly name: string;
  readonly unit: string;
  readonly values: readonly number[];
}

/** A figure with a target. `atLeast`: larger is better, else smaller. */
export interface Target extends Series {
  readonly atLeast: boolean;
  /** A value worse than this fails the run. */
  readonly floor: number;
  /** Null: none beyond the floor. */
  readonly goal: number | null;
}

/** A series as a target that larger values meet. */
export const atLeast = (series: Series, floor: number, goal: number): Target => ({
  ...series,
  ...{ atLeast: true, floor, goal },
});

/** A series as a target that smaller values meet. */
export const atMost = (series: Series, floor: number, goal: number | null = null): Target => ({
  ...series,
  ...{ atLeast: false, floor, goal },
});

/** The result of a scenario. */
export interface Outcome {
  readonly id: string;
  readonly title: string;
  readonly targets: readonly Target[];
  readonly figures: readonly Series[];
  /** The audits that held, as sentences. */
  readonly audits: readonly string[];
  /** Findings that are not figures. */
  readonly notes?: readonly string[];
}

/** Collects figures round by round, by name. */
export class Book {
  private readonly all = new Map<string, { unit: string; values: number[] }>();

  add(name: string, unit: string, value: number): void {
    const entry = this.all.get(name) ?? { unit, values: [] };
    entry.values.push(value);
    this.all.set(name, entry);
  }

  /** Latencies in microseconds, as p50 and p99 in ms. */
  addLatency(name: string, { p50, p99 }: { readonly p50: number; readonly p99: number }): void {
    this.add(`${name}, p50`, 'ms', p50 / 1_000);
    this.add(`${name}, p99`, 'ms', p99 / 1_000);
  }

  one(name: string): Series {
    const entry = this.all.get(name);
    if (entry === undefined) throw new Error(`nothing was measured as "${name}"`);
    return { name, ...entry };
  }

  values(name: string): readonly number[] {
    return this.one(name).values;
  }

  /** The quotient of two figures in each round. */
  ratio(name: string, over: string, as = `${name} / ${over}`): Series {
    return ratio(as, this.values(name), this.values(over));
  }

  /** The figures that are not among `others`, in the order of their first entries. */
  without(others: readonly Series[]): Series[] {
    const names = [...this.all.keys()].filter((name) => others.every((other) => other.name !== name));
    return names.map((name) => this.one(name));
  }
}

const sorted = (values: readonly number[]): number[] => [...values].sort((a, b) => a - b);

export function median(values: readonly number[]): number {
  const all = sorted(values);
  const middle = all.length >> 1;
  return all.length % 2 === 1 ? (all[middle] ?? NaN) : ((all[middle - 1] ?? NaN) + (all[middle] ?? NaN)) / 2;
}

/** The value below which this share of all values lies; NaN if there are none. */
export const percentile = (values: readonly number[], share: number): number =>
  sorted(values)[Math.round(share * (values.length - 1))] ?? NaN;

export const mean = (values: readonly number[]): number => values.reduce((sum, each) => sum + each, 0) / values.length;

const least = (values: readonly number[]): number => sorted(values)[0] ?? NaN;
const most = (values: readonly number[]): number => sorted(values).at(-1) ?? NaN;

/** The median decides: a single round that other processes disturbed must neither fail a run nor save it. */
export function meets(target: Target, bound: number): boolean {
  const value = median(target.values);
  return target.atLeast ? value >= bound : value <= bound;
}

/** The quotient of two figures in each round. */
export const ratio = (name: string, a: readonly number[], b: readonly number[]): Series => ({
  ...{ name, unit: 'ratio', values: a.map((value, round) => value / (b[round] ?? NaN)) },
});

function shown(value: number): string {
  if (!Number.isFinite(value)) return '-';
  const digits = Math.abs(value) >= 1_000 ? 0 : Math.abs(value) >= 10 ? 1 : 3;
  return digits === 0 ? Math.round(value).toLocaleString('en') : value.toFixed(digits);
}

function cells(series: Series): string[] {
  const { values } = series;
  return [series.name, series.unit, shown(least(values)), shown(median(values)), shown(most(values))];
}

function bound(target: Target, value: number | null): string {
  return value === null ? '' : `${target.atLeast ? '>=' : '<='} ${shown(value)}`;
}

function verdict(target: Target): string {
  if (!meets(target, target.floor)) return 'BELOW THE FLOOR';
  return target.goal !== null && meets(target, target.goal) ? 'goal reached' : 'floor holds';
}

const HEAD = ['', 'unit', 'min', 'median', 'max', 'floor', 'goal', ''];

function rowsOf(outcome: Outcome): string[][] {
  return [
    ...outcome.targets.map((target) => [
      ...cells(target),
      bound(target, target.floor),
      bound(target, target.goal),
      verdict(target),
    ]),
    ...outcome.figures.map((series) => [...cells(series), '', '', '']),
  ];
}

function plainTable(rows: readonly (readonly string[])[]): string {
  const widths = HEAD.map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0)));
  const line = (row: readonly string[]): string =>
    row
      .map((cell, column) =>
        column < 2 || column === 7 ? cell.padEnd(widths[column] ?? 0) : cell.padStart(widths[column] ?? 0),
      )
      .join('  ')
      .trimEnd();
  return rows.map(line).join('\n');
}

function markdownTable(rows: readonly (readonly string[])[]): string {
  const [head = [], ...body] = rows.map((row) => `| ${row.join(' | ')} |`);
  return [head, '| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |', ...body].join('\n');
}

/** One scenario as a table, for a terminal or for a Markdown page. */
export function table(outcome: Outcome, markdown: boolean): string {
  const rows = [HEAD, ...rowsOf(outcome)];
  const title = markdown ? `### ${outcome.id}: ${outcome.title}` : `${outcome.id}  ${outcome.title}`;
  const notes = (outcome.notes ?? []).map((text) => (markdown ? `- ${text}` : `  ${text}`));
  const audits = outcome.audits.map((text) => (markdown ? `- ${text}` : `  audit: ${text}`));
  const below = [...notes, ...audits].map((line) => `${line}\n`).join('');
  return `${title}\n\n${markdown ? markdownTable(rows) : plainTable(rows)}\n${below === '' ? '' : `\n${below}`}`;
}
