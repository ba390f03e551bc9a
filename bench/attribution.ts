/** Where a leg spends its time inside the servers, and their garbage, as measured by themselves (see measure.ts). */
import type { Probe } from './leg.js';
import type { Line } from './child.js';
import type { Allocated, LoadReport, Measured, Turn } from './measure.js';
import { mean, median, percentile, type Book } from './stats.js';
import type { World } from './world.js';

/** Makes every instance of a world measure something during a leg. */
abstract class Measuring implements Probe {
  protected abstract readonly what: Measured;
  protected lines: readonly Line[] = [];

  constructor(protected readonly world: World) {}

  async begin(): Promise<void> {
    await Promise.all(this.world.servers.map(async (server) => server.ask(`begin ${this.what}`, 'begun')));
  }

  async end(): Promise<void> {
    const { servers } = this.world;
    this.lines = await Promise.all(servers.map(async (server) => server.ask(`end ${this.what}`, 'measured')));
  }
}

const FUNCTIONS_MOST = 10;

/** Allocations in the heaps, collected or not. Costs time: only for a leg whose timings are discarded. */
export class Garbage extends Measuring {
  protected readonly what = 'garbage';

  get bytes(): number {
    return this.functions.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /** As text: the functions that allocated most, in bytes per write. */
  ofEach(writes: number): string {
    const all = new Map<string, number>();
    for (const { name, bytes } of this.functions) all.set(name, (all.get(name) ?? 0) + bytes);
    const most = [...all].sort(([, one], [, other]) => other - one).slice(0, FUNCTIONS_MOST);
    return `garbage of a write by function, bytes: ${most.map(([name, bytes]) => `${name} ${Math.round(bytes / writes)}`).join(', ')}`;
  }

  private get functions(): Allocated[] {
    return this.lines.flatMap((line) => line['functions'] as readonly Allocated[]);
  }
}

/** The longest turns of the event loops, from a CPU profile: only for a leg whose timings are discarded. */
export class Turns extends Measuring {
  protected readonly what = 'turns';

  /** As text, longest first. */
  get longest(): string[] {
    const turns = this.lines.flatMap((line) => line['turns'] as readonly Turn[]);
    const longest = turns.sort((one, other) => other.ms - one.ms).slice(0, 5);
    return longest.map(({ ms, functions }) => {
      const where = functions.map((each) => `${each.name} ${each.ms.toFixed(1)}`).join(', ');
      return `turn of the event loop (profiled leg) of ${ms.toFixed(1)} ms: ${where}`;
    });
  }
}

/** The two commit functions: the statement that calls each, and its name in the database. */
const FUNCTIONS = { insert: 'insert_changes', commit: 'commit_changes' } as const;

interface InDatabase {
  readonly calls: number;
  /** ms. */
  readonly time: number;
}

async function inDatabase(world: World): Promise<Map<string, InDatabase>> {
  return await world.cluster.with(world.database, async (client) => {
    const { rows } = await client.query<{ name: string; calls: number; time: number }>(
      'SELECT funcname AS name, calls::float8 AS calls, total_time AS time FROM pg_stat_user_functions',
    );
    return new Map(rows.map(({ name, calls, time }) => [name, { calls, time }]));
  });
}

const longest = (values: readonly number[]): number => values.reduce((most, each) => Math.max(most, each), 0);

/** Collections, waiting for a core, and calls of the commit functions, measured by the server and by the database. */
export class Load extends Measuring {
  private before = new Map<string, InDatabase>();
  private after = new Map<string, InDatabase>();

  protected readonly what = 'load';

  override async begin(): Promise<void> {
    this.before = await inDatabase(this.world);
    await super.begin();
  }

  override async end(): Promise<void> {
    await super.end();
    this.after = await inDatabase(this.world);
  }

  /** Adds the figures to `book` under names that begin with `of`. `writes`: number of writes during the measurement. */
  note(book: Book, of: string, writes: number): void {
    const reports = this.lines.map((line) => line as unknown as LoadReport);
    const seconds = reports.reduce((sum, report) => sum + report.seconds, 0);
    for (const kind of ['minor', 'major'] as const) {
      const all = reports.flatMap((report) => report[kind]);
      book.add(`${of}: ${kind} collections`, 'count', all.length);
      // Without collections nothing waited: 0, not NaN.
      book.add(`${of}: ${kind} collection, median`, 'ms', all.length === 0 ? 0 : median(all));
      book.add(`${of}: ${kind} collection, longest`, 'ms', longest(all));
    }
    const collecting = reports.flatMap(({ minor, major, steps }) => [...minor, ...major, ...steps]);
    const share = (ms: readonly number[]): number => ms.reduce((sum, each) => sum + each, 0) / 10 / seconds;
    book.add(`${of}: collections, share of the time`, '%', share(collecting));
    book.add(`${of}: main thread ran`, '%', share(reports.map(({ ran }) => ran)));
    book.add(`${of}: main thread waited for a core`, '%', share(reports.map(({ waited }) => waited)));
    for (const statement of ['insert', 'commit'] as const) {
      const calls = reports.flatMap((report) => report.calls[statement] ?? []);
      const called = `${of}: call of ${FUNCTIONS[statement]}`;
      if (calls.length > 0 && statement === 'insert')
        book.add(`${called}: writes in it, mean`, 'count', writes / calls.length);
      if (calls.length > 0) this.noteCalls(book, called, { name: FUNCTIONS[statement], calls });
    }
  }

  private noteCalls(book: Book, of: string, made: { readonly name: string; readonly calls: readonly number[] }): void {
    const { name, calls } = made;
    book.add(`${of}, median`, 'ms', median(calls));
    book.add(`${of}, p99`, 'ms', percentile(calls, 0.99));
    book.add(`${of}, longest`, 'ms', longest(calls));
    book.add(`${of}, mean`, 'ms', mean(calls));
    const since = (of: keyof InDatabase): number =>
      (this.after.get(name)?.[of] ?? 0) - (this.before.get(name)?.[of] ?? 0);
    // Backends report calls once a second, so the set of calls differs slightly: compare means, not sums.
    const own = since('time') / since('calls');
    book.add(`${of}, mean inside the database`, 'ms', own);
  }
}
