/**
 * Profiles of one vault, a device of the library beside them, and what is known of both: which changes were asked for,
 * what was said of each, and what the server has. Every change of the server's state must be one that was asked for.
 */
import { chmodSync, cpSync, existsSync, readdirSync, rmSync, statfsSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Agent } from './cli-agent.js';
import { machine, spawnCli, type CallOptions, type Machine, type Result } from './cli.js';
import { Line, type Accepted, type Fault } from './cli-line.js';
import { letIn, world, type World } from './client-world.js';
import { temporaryFolder, type WithTeardown } from './postgres.js';

/** No process has it. */
const DEAD = '999999999 killed';
/** How long a command may take, ms: none is to wait for something that can never arrive. */
const STUCK_MS = 60_000;

/** What an item holds: the mark in its content is found nowhere else. */
export interface State {
  readonly mark: string;
  readonly bin: string;
  readonly version: number;
}

/** A change that was asked for, and what was said of it. */
export interface Attempt {
  readonly by: string;
  /** Undefined: it is a new item, and nothing was said. */
  id: string | undefined;
  readonly kind: 'put' | 'move' | 'delete';
  /** The mark of a put. */
  readonly mark?: string | undefined;
  readonly bin?: string | undefined;
  /** It may be written over what another device wrote meanwhile. */
  readonly overwrites?: boolean;
  /** The newest version when it was asked for; `Infinity`: others were on their way as well. */
  readonly head: number;
  /** How many changes were accepted then. */
  readonly after: number;
  said: 'sent' | 'queued' | 'unknown' | 'refused' | 'withdrawn';
}

/** A profile on a machine of its own. */
export interface Profile {
  readonly name: string;
  readonly machine: Machine;
  readonly line: Line;
  /** The ids that its numbers stand for, as they were shown; undefined: unknown. */
  numbers: readonly string[] | undefined;
  /** What it shows without the server; undefined: unknown. */
  view: Map<string, { readonly mark: string; readonly bin: string }> | undefined;
  /** Ids of deletions that wait, oldest first; undefined: unknown. */
  deleted: string[] | undefined;
  /** Ids of changes of which a note said that they were refused. */
  readonly refused: Set<string>;
  /** It may have changes that wait. */
  queued: boolean;
  /** Its local copy was damaged. */
  rotten: boolean;
}

/** How a command ran. */
export interface Ran extends Result {
  readonly killed: boolean;
}

const MARK = /\bm\d+x/;
/** The mark in something. */
export const markIn = (value: unknown): string => MARK.exec(JSON.stringify(value) ?? '')?.[0] ?? '';

const unhandled: unknown[] = [];
process.on('unhandledRejection', (error) => unhandled.push(error));

export class CliWorld {
  readonly attempts: Attempt[] = [];
  readonly accepted: readonly Accepted[];
  readonly scope: WithTeardown;
  /** For files that commands read and write. */
  readonly folder: string;
  readonly faults: string[] = [];
  readonly profiles: Profile[] = [];
  /** What was done, for a person who reads of a fault. */
  readonly story: string[] = [];
  /** Text or bytes of each mark. */
  readonly contents = new Map<string, Buffer>();
  /** What the server has. */
  items = new Map<string, State>();
  bins = new Map<string, string>();
  head = 0;
  /** The same before the last command. */
  before = this.items;
  /** Ids of all items that were ever there, and of those that are deleted. */
  readonly known = new Set<string>();
  readonly gone = new Set<string>();
  /** Marks of large files that are not written yet, by profile and place. */
  readonly sending = new Map<string, string>();
  agent: Agent | undefined;
  /** Devices that were revoked. */
  readonly left = new Set<string>();
  /** Files that were exported. */
  readonly exports: string[] = [];
  /** Profiles that may have sent a deletion that waits. */
  readonly doubtful = new Set<string>();
  /** Changes that are counted as waiting. */
  readonly counted = new Set<Attempt>();
  /** The disk of the profiles is full for so many commands. */
  full = 0;
  private readonly disk: string | undefined;
  private marks = 0;
  private seen = 0;

  private constructor(
    readonly made: World,
    readonly lines: Line[],
    given: Pick<CliWorld, 'folder' | 'accepted' | 'scope'> & { readonly disk: string | undefined },
  ) {
    this.folder = given.folder;
    this.scope = given.scope;
    this.disk = given.disk;
    this.accepted = given.accepted;
  }

  /** `disk`: a small file system for the profiles. */
  static async of(t: WithTeardown, count: number, disk: string | undefined): Promise<CliWorld> {
    const accepted: Accepted[] = [];
    const first = new Line('First', accepted);
    const made = await world(t, { tap: first.tap });
    const all = new CliWorld(made, [first], { scope: t, folder: await temporaryFolder(t), disk, accepted });
    // Both ask every other second whether the other one has answered.
    first.hurried = true;
    const names = ['Ann', 'Ben', 'Cem'].slice(0, count);
    for (const name of names) {
      const line = new Line(name, accepted);
      const own = await machine(t, line.tap, disk);
      line.hurried = true;
      await letIn(made.first, (words) => own.json(['join', made.url, ...words.split(' '), '--name', name]));
      line.mend();
      all.lines.push(line);
      all.profiles.push({
        ...{
          name,
          machine: own,
          line,
          numbers: [],
          view: new Map(),
          deleted: [],
          refused: new Set(),
          queued: false,
          rotten: false,
        },
      });
    }
    first.mend();
    await all.observe();
    return all;
  }

  nextMark(): string {
    return `m${++this.marks}x`;
  }

  /** A name that is no mark. */
  nextName(): string {
    return `b${++this.marks}n`;
  }

  fault(text: string): void {
    this.faults.push(text);
  }

  /** Runs a command. A killed one leaves its profile as it was at that moment. */
  async run(profile: Profile, argv: readonly string[], options?: CallOptions): Promise<Ran> {
    const { machine: own, line } = profile;
    const aside = join(this.folder, `${profile.name}.killed`);
    let killed = false;
    const began = performance.now();
    const running = own.start(argv, options);
    line.onFault = (fault: Fault) => {
      if (killed) return;
      if (fault.startsWith('kill')) {
        killed = true;
        if (existsSync(own.folder)) cpSync(own.folder, aside, { recursive: true });
      }
      running.interrupt();
    };
    let timer: NodeJS.Timeout | undefined;
    const stuck = new Promise<never>((_, reject) => {
      timer = setTimeout(
        () => reject(new Error(`stuck: ${argv.join(' ')}\n${this.story.join('\n')}\n${running.printed().join('\n')}`)),
        STUCK_MS,
      );
    });
    const result = await Promise.race([running.result, stuck]).finally(() => clearTimeout(timer));
    line.onFault = () => undefined;
    line.mend();
    if (killed) {
      rmSync(own.folder, { recursive: true, force: true });
      cpSync(aside, own.folder, { recursive: true });
      rmSync(aside, { recursive: true });
      chmodSync(own.folder, 0o700);
      const lock = join(own.folder, 'lock');
      if (existsSync(lock)) for (const file of readdirSync(lock)) writeFileSync(join(lock, file), DEAD);
    }
    this.story.push(
      `${Math.round(performance.now() - began)} ${profile.name}: ${argv.join(' ')} -> ${killed ? 'killed' : result.code} ${result.error === undefined ? '' : JSON.stringify(result.error)} ${result.notes.slice(0, 300)}`,
    );
    for (const [, id] of result.notes.matchAll(/a change of (\S+) that waited was refused/g))
      profile.refused.add(id ?? '');
    return { ...result, killed };
  }

  /** Runs a command in a process of its own, which is killed after so many ms. */
  async slay(home: string, argv: readonly string[], ms: number): Promise<void> {
    const child = spawnCli(this.scope, argv, { home });
    const timer = setTimeout(() => child.kill('SIGKILL'), ms);
    await child.ended;
    clearTimeout(timer);
  }

  /** Reads what the server has, and holds each change against what was asked for. */
  async observe(): Promise<void> {
    for (const line of this.lines) await line.idle();
    const { device } = this.made.first;
    await device.pull();
    const now = new Map<string, State>();
    for (const { id, payload, binId, version } of await device.list())
      now.set(id, { mark: markIn(payload), bin: binId, version });
    this.bins.clear();
    for (const { id, label } of await device.bins.list()) this.bins.set(id, label?.name ?? id);
    const fresh = this.accepted.slice(this.seen);
    for (const id of new Set([...now.keys(), ...this.items.keys()]))
      this.explain(id, { before: this.items.get(id), after: now.get(id), fresh });
    for (const id of this.items.keys()) if (!now.has(id)) this.gone.add(id);
    this.expectOnce(now);
    for (const id of now.keys()) this.known.add(id);
    this.items = now;
    this.seen = this.accepted.length;
    this.head = Math.max(this.head, ...this.accepted.map(({ version }) => version));
    for (const error of unhandled.splice(0)) this.fault(`unhandled: ${String(error)}`);
  }

  /** No content is there twice. */
  private expectOnce(items: ReadonlyMap<string, State>): void {
    const ids = new Map<string, string>();
    for (const [id, { mark }] of items) {
      const other = ids.get(mark);
      if (other !== undefined) this.fault(`${mark} is there twice: ${other}, ${id}`);
      ids.set(mark, id);
    }
  }

  private explain(
    id: string,
    change: {
      readonly before: State | undefined;
      readonly after: State | undefined;
      readonly fresh: readonly Accepted[];
    },
  ): void {
    const { before, after, fresh } = change;
    if (before?.version === after?.version) return;
    const writes = fresh.filter((one) => one.id === id);
    // Content that another device forestalled comes back under an id of its own.
    const isOf = (one: Attempt): boolean => (one.id ?? id) === id || before === undefined;
    const fits = (kind: Attempt['kind'], test: (one: Attempt) => boolean): boolean =>
      writes.some(({ by }) =>
        this.attempts.some(
          (one) =>
            one.by === by &&
            one.kind === kind &&
            !['withdrawn', 'refused'].includes(one.said) &&
            isOf(one) &&
            test(one),
        ),
      );
    if (after === undefined) {
      if (!fits('delete', () => true)) this.fault(`${id} (${before?.mark}) was deleted, which nobody asked for`);
      return;
    }
    if (after.mark !== before?.mark && !fits('put', ({ mark }) => mark === after.mark))
      this.fault(`${id} became ${after.mark}, which nobody asked for`);
    const asked =
      fits('put', ({ bin }) => (bin ?? after.bin) === after.bin) || fits('move', ({ bin }) => bin === after.bin);
    if (after.bin !== before?.bin && !asked) this.fault(`${id} came to ${after.bin}, which nobody asked for`);
    this.lost(id, after);
  }

  /** A put that was accepted over a change of another device that it could not know. */
  private lost(id: string, { mark }: State): void {
    const put = this.attempts.find((one) => one.kind === 'put' && one.mark === mark);
    if (put === undefined || put.overwrites === true) return;
    const over = this.accepted.filter((one) => one.id === id);
    const own = over.findIndex(({ by, version, kind }) => by === put.by && kind === 'put' && version > put.head);
    const other = over
      .slice(0, own)
      .find(({ by, version, kind }) => by !== put.by && kind === 'put' && version > put.head);
    if (other !== undefined) this.fault(`${id}: ${mark} was written over version ${other.version} of ${other.by}`);
  }

  /** Records a change that is asked for. */
  ask(by: string, change: Pick<Attempt, 'id' | 'kind' | 'mark' | 'bin' | 'overwrites'>, alone: boolean): Attempt {
    const attempt: Attempt = {
      by,
      ...change,
      head: alone ? this.head : Infinity,
      after: this.accepted.length,
      said: 'unknown',
    };
    this.attempts.push(attempt);
    return attempt;
  }

  /** Makes the disk full but for some bytes, for so many commands; where it is one of the test's own. */
  fill(left: number, commands: number): void {
    if (this.disk === undefined) return;
    const { bavail, bsize } = statfsSync(this.disk);
    try {
      writeFileSync(join(this.disk, 'ballast'), Buffer.alloc(bavail * bsize));
      truncateSync(join(this.disk, 'ballast'), Math.max(0, bavail * bsize - left));
    } catch {
      // It is as full as it can be.
    }
    this.full = commands;
  }

  free(): void {
    if (this.disk !== undefined) rmSync(join(this.disk, 'ballast'), { force: true });
    this.full = 0;
  }
}
