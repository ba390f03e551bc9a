/** A machine with the companion's commands: run in this process, with a scripted person in front of them, or nobody. */
import type { Identity } from '../../src/sdk/identity.js';
import type { Platform } from '../../src/sdk/platform.js';
import { runCommand } from '../../src/mcp/command.js';
import { loadIdentity, savePairing, type Keeper } from '../../src/mcp/config-file.js';
import { McpError } from '../../src/mcp/errors.js';
import { machineOf } from '../../src/mcp/machine.js';
import { pathsOf, type Paths, type Terminal } from '../../src/mcp/context.js';
import { PassThrough, Readable } from 'node:stream';
import { answering, type Answers } from './answers.js';
import { wiretap, type Wiretap } from './client-world.js';
import { Notifier } from './events.js';
import { temporaryFolder, type WithTeardown } from './postgres.js';

export interface DeskOptions {
  /** Given: a person sits there. */
  readonly answers?: Answers;
  readonly env?: Readonly<Record<string, string>>;
  /** Standard input of a call without a person. */
  readonly input?: string;
}

interface Outcome {
  readonly code: number;
  readonly out: string;
  readonly notes: string;
  readonly questions: readonly { readonly text: string; readonly hidden: boolean }[];
  readonly progress: readonly string[];
}

/** A command under way. */
interface Call {
  readonly result: Promise<Outcome>;
  /** The first line for the person that fits, perhaps one that is there already. */
  noted(fits: RegExp): Promise<RegExpExecArray>;
  interrupt(): void;
}

export interface Desk {
  readonly tap: Wiretap;
  readonly paths: Paths;
  readonly keeper: Keeper;
  start(argv: readonly string[], options?: DeskOptions): Call;
  call(argv: readonly string[], options?: DeskOptions): Promise<Outcome>;
}

/** A machine of its own; `id` is its identifier, of 32 hex digits. Its files are removed after the test. */
export async function desk(
  t: WithTeardown,
  { tap = wiretap(), id = '0123456789abcdef0123456789abcdee', platform = tap.platform }: Partial<DeskSetup> = {},
): Promise<Desk> {
  const machine = machineOf({
    platform: 'linux',
    read: () => Promise.resolve(id),
    run: () => Promise.reject(new Error('ENOENT')),
    hostName: () => 'desk',
    userName: () => 'me',
    systemRoot: '',
  });
  const paths = pathsOf({ XDG_CONFIG_HOME: await temporaryFolder(t) }, machine);
  const start: Desk['start'] = (argv, options = {}) => started({ paths, platform }, argv, options);
  const keeper: Keeper = { paths, platform, note: () => undefined };
  return { tap, paths, keeper, start, call: (argv, options) => start(argv, options).result };
}

interface DeskSetup {
  readonly tap: Wiretap;
  readonly id: string;
  readonly platform: Platform;
}

/** Keeps a pairing whose person allowed nothing. */
export const saveIdentity = (keeper: Keeper, identity: Identity) => savePairing(keeper, { identity, passwords: false });

/** The pairing that is kept on a machine. */
export const pairingOf = (desk: Desk) => loadIdentity(desk.keeper);

function started(
  { paths, platform }: { readonly paths: Paths; readonly platform: Platform },
  argv: readonly string[],
  options: DeskOptions,
): Call {
  const out: string[] = [];
  const notes: string[] = [];
  const questions: { text: string; hidden: boolean }[] = [];
  const progress: string[] = [];
  const changed = new Notifier();
  const interruption = new AbortController();
  const answerTo = answering(options.answers);
  const note = (text: string): void => {
    notes.push(text);
    changed.notify();
  };
  const terminal: Terminal = {
    interactive: options.answers !== undefined,
    print: (text) => void out.push(text),
    note,
    progress: (text) => void progress.push(text),
    ask: async (text, { hidden = false } = {}) => {
      questions.push({ text, hidden });
      const answer = answerTo(text);
      if (answer !== undefined) return answer;
      // Whoever has no opinion presses Enter.
      if (text.endsWith('[y/N] ')) return '';
      throw new McpError('interrupted', `nobody was expected to ask: ${text}`);
    },
    openInput: () => Readable.from([Buffer.from(options.input ?? '')]),
  };
  const result = runCommand(argv, {
    ...{
      paths,
      platform,
      env: options.env ?? {},
      version: '1.2.3',
      commit: '0123456789ab',
      interrupted: interruption.signal,
      note,
      terminal,
    },
    ...{ input: new PassThrough(), output: new PassThrough() },
  }).then((code) => ({ code, out: out.join('\n'), notes: notes.join('\n'), questions, progress }));
  const noted = async (fits: RegExp): Promise<RegExpExecArray> => {
    for (;;) {
      const found = notes.map((text) => fits.exec(text)).find((each) => each !== null);
      if (found !== undefined && found !== null) return found;
      const ended = await Promise.race([changed.next(), result]);
      if (ended !== undefined) throw new Error(`nothing fits ${String(fits)}:\n${ended.out}\n${ended.notes}`);
    }
  };
  return { result, noted, interrupt: () => interruption.abort() };
}
