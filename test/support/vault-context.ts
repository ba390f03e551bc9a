/** What a command is given, in the test's hand: a terminal that answers from a list, a keychain in memory, a context. */
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { KeychainError, type Keychain } from '../../src/cli/keychain.js';
import type { Context, OpenDevice } from '../../src/cli/context.js';
import { Secrets, type KeychainSetting } from '../../src/cli/secrets.js';
import { CommandError, EXIT, type Terminal } from '../../src/terminal/terminal.js';
import { Device } from '../../src/sdk/device.js';
import type { Identity } from '../../src/sdk/identity.js';
import type { Platform } from '../../src/sdk/platform.js';
import { MemoryStore, type Store } from '../../src/sdk/store/store.js';
import { nodeSodium } from '../../src/crypto/sodium-node.js';

/** A terminal that keeps what it is told. */
export interface FakeTerminal extends Terminal {
  readonly printed: string[];
  readonly documents: unknown[];
  readonly notes: string[];
  readonly steps: string[];
  readonly asked: { readonly question: string; readonly hidden: boolean }[];
  /** Called with each text of `progress`, and each note. */
  onStep: (text: string) => void;
  /** Everything that was shown anywhere. */
  all(): string;
}

/** `answers` are given in turn; where none is left, nobody can be asked. */
export function fakeTerminal(
  options: Partial<Pick<Terminal, 'json' | 'interactive' | 'onScreen'>> & {
    readonly answers?: string[];
    readonly input?: string;
    readonly interrupted?: AbortSignal;
  } = {},
): FakeTerminal {
  const { answers = [], input = '', interactive = true } = options;
  const terminal: FakeTerminal = {
    json: options.json ?? false,
    interactive,
    onScreen: options.onScreen ?? interactive,
    colours: false,
    width: 100,
    env: {},
    printed: [],
    documents: [],
    notes: [],
    steps: [],
    asked: [],
    onStep: () => undefined,
    all: () =>
      [
        ...terminal.printed,
        ...terminal.documents.map((one) => JSON.stringify(one)),
        ...terminal.notes,
        ...terminal.steps,
      ].join('\n'),
    print: (text) => void terminal.printed.push(text),
    write: (bytes) => Promise.resolve(void terminal.printed.push(Buffer.from(bytes).toString('latin1'))),
    data: (value) => void terminal.documents.push(value),
    note: (text) => {
      terminal.notes.push(text);
      terminal.onStep(text);
    },
    progress: (text) => {
      terminal.steps.push(text);
      terminal.onStep(text);
    },
    ask: (question, { hidden = false } = {}) => {
      terminal.asked.push({ question, hidden });
      const answer = answers.shift();
      if (answer === undefined)
        return Promise.reject(new CommandError(EXIT.usage, 'there is no terminal to confirm at'));
      return Promise.resolve(answer);
    },
    openInput: () => Readable.from([Buffer.from(input)]),
    readInput: (max) => {
      const bytes = Buffer.from(input);
      if (bytes.length > max) return Promise.reject(new CommandError(EXIT.usage, 'too much input'));
      return Promise.resolve(bytes);
    },
    interrupted: options.interrupted ?? new AbortController().signal,
  };
  return terminal;
}

/** A keychain in memory, which can be broken. */
interface FakeKeychain extends Keychain {
  readonly entries: Map<string, string>;
  fails: 'absent' | 'silent' | undefined;
}

/** `fails`: how it is broken from the start. */
export function fakeKeychain(fails?: FakeKeychain['fails']): FakeKeychain {
  const expectWorking = (): void => {
    if (keychain.fails !== undefined) throw new KeychainError(keychain.fails, 'broken by the test');
  };
  const keychain: FakeKeychain = {
    entries: new Map(),
    fails,
    get: async (account) => {
      expectWorking();
      return keychain.entries.get(account);
    },
    set: async (account, secret) => {
      expectWorking();
      keychain.entries.set(account, secret);
    },
    delete: async (account) => {
      expectWorking();
      keychain.entries.delete(account);
    },
  };
  return keychain;
}

/** Secrets in a folder of the test. */
export function secretsIn(
  folder: string,
  options: { readonly keychain?: Keychain; readonly setting?: KeychainSetting; readonly warnings?: string[] } = {},
): Secrets {
  return new Secrets({
    sodium: nodeSodium,
    folder: join(folder, 'default'),
    keychain: options.keychain ?? fakeKeychain('absent'),
    setting: options.setting ?? 'auto',
    warn: (text) => options.warnings?.push(text),
  });
}

/** What a context of the test is made of. */
interface ContextOptions {
  readonly terminal: FakeTerminal;
  readonly platform: Platform;
  readonly secrets: Secrets;
  readonly folder: string;
  readonly store?: Store;
  /** Told of what fails in the device's background. */
  readonly onProblem?: (error: Error) => void;
  /** A device that is open already, in the place of one opened for each command. */
  readonly device?: Device;
}

/** A context without a lock: a test runs one command at a time. */
export function contextOf(options: ContextOptions): Context {
  const { terminal, platform, secrets, folder } = options;
  const store = options.store ?? new MemoryStore();
  const profile = {
    name: 'default',
    folder: join(folder, 'default'),
    identity: () => secrets.read(),
    keep: (identity: Identity) => secrets.keep(identity),
    renew: (identity: Identity) => secrets.renew(identity),
    forget: () => secrets.forget(),
  };
  const opened = async (identity: Identity): Promise<Device> =>
    options.device ??
    Device.open({
      platform,
      identity,
      store,
      onIdentity: (next) => void secrets.keep(next),
      onProblem: options.onProblem ?? (() => undefined),
    });
  const withDevice: Context['withDevice'] = async (work, sync = 'catch up') => {
    const identity = await secrets.read();
    if (identity === undefined) throw new CommandError(EXIT.notFound, 'there is no device here');
    const device = await opened(identity);
    let current = false;
    if (sync === 'catch up') {
      current = await device.pull().then(
        () => true,
        () => false,
      );
    }
    const open: OpenDevice = { device, identity, store, current, catchUp: () => Promise.resolve(current) };
    try {
      return await work(open);
    } finally {
      if (options.device === undefined) device.close();
    }
  };
  return { terminal, platform, profile, withDevice };
}
