/** Opens a profile's device for one command: lock, identity, local copy, and what the server has meanwhile. */
import { asError } from '../protocol/error-code.js';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { type BinView, type EventName } from '../sdk/events.js';
import { Device } from '../sdk/device.js';
import { isPassing, NetworkError } from '../sdk/errors.js';
import type { Identity } from '../sdk/identity.js';
import { type Fetch } from '../sdk/platform.js';
import type { DeviceEntry } from '../sdk/replies.js';
import type { StoreRepair } from '../sdk/store/open.js';
import { openNodeStore } from '../sdk/store/node-store.js';
import { MemoryStore, type Entry, type Store } from '../sdk/store/store.js';
import { tokenSaver } from '../device/identity.js';
import type { Saver } from '../files/saver.js';
import { delay, type Timer } from '../protocol/clock.js';
import type { Context, OpenDevice, Profile, Sync } from './context.js';
import { failureOf } from './failure.js';
import { readKnown, writeKnown } from './known.js';
import { exclusively } from './lock.js';
import { counted, sanitizeText } from '../terminal/output.js';
import { CommandError, EXIT, type Terminal } from '../terminal/terminal.js';

/** The local copy, in a profile's folder. */
const STORE_FOLDER = 'store';
/** How long the first question, whether the server is there at all, may take. */
const PROBE_MS = 5_000;
/** When it is asked once more. */
const ASK_AGAIN_MS = 1_000;
/** How long a command waits for changes to go out that an earlier one left. They stay queued otherwise. */
const FLUSH_MS = 20_000;

type Outside = Pick<Context, 'terminal' | 'platform' | 'profile'>;

/** The context of one command. */
export function contextOf(outside: Outside): Context {
  return { ...outside, withDevice: (work, options) => opened(outside, work, options?.sync ?? 'catch up') };
}

/** Nobody has claimed or paired here. */
export const noDevice = (profile: Profile): CommandError =>
  new CommandError(
    EXIT.notFound,
    `there is no device in profile ${profile.name} yet`,
    'Claim a new server (`service-device claim URL`) or join one from another device (`service-device join URL`).',
    { code: 'no_device' },
  );

/** Runs `work` while nobody else works on this profile. */
export const alone = <T>({ terminal, platform, profile }: Outside, work: () => Promise<T>): Promise<T> =>
  exclusively(
    profile.folder,
    { clock: platform.clock, signal: terminal.interrupted, progress: (text) => terminal.progress(text) },
    work,
  );

/** What a damaged copy means for a person: everything acknowledged is on the server, only what waited can be gone. */
export function repairNote({ carried, lost }: Pick<StoreRepair, 'carried' | 'lost'>): string {
  const kept =
    carried === 0
      ? ''
      : ` ${counted(carried, 'change')} that waited to be sent ${carried === 1 ? 'was' : 'were'} kept.`;
  const gone = lost === 0 ? '' : lossNote(lost);
  const fine = carried === 0 && lost === 0 ? ' Nothing was lost.' : '';
  return `the local copy was damaged; it is read again from the server.${kept}${gone}${fine}`;
}

function lossNote(lost: number | null): string {
  if (lost === null) return ' Changes that waited to be sent may be lost.';
  const [are, them] = lost === 1 ? ['is', 'it'] : ['are', 'them'];
  return ` ${counted(lost, 'change')} that waited to be sent ${are} lost: make ${them} again.`;
}

function opened<T>(outside: Outside, work: (open: OpenDevice) => Promise<T>, sync: Sync): Promise<T> {
  const { profile } = outside;
  // Looked at before the lock: that would make a folder for whatever name was mistyped.
  if (!existsSync(profile.folder)) return Promise.reject(noDevice(profile));
  return alone(outside, async () => {
    const identity = await profile.identity();
    if (identity === undefined) throw noDevice(profile);
    const { store, repair } = await openNodeStore(join(profile.folder, STORE_FOLDER), identity);
    if (repair !== null) outside.terminal.note(`Warning: ${repairNote(repair)}`);
    try {
      const session = await Session.open(outside, { identity, store, held: sync === 'later' });
      let caughtUp: Promise<boolean> | undefined;
      const catchUp: OpenDevice['catchUp'] = (brief) => {
        if (brief !== undefined && caughtUp === undefined) session.bound();
        return (caughtUp ??= session.catchUp());
      };
      try {
        const current = sync === 'catch up' && (await catchUp());
        return await work({ device: session.device, identity, store, current, catchUp });
      } finally {
        await session.end();
      }
    } finally {
      await store.close();
    }
  });
}

/**
 * Runs `work` with a device that works on a copy of the profile's items, and holds no lock: for what lasts long, so that
 * other commands of the profile work meanwhile. What it writes goes to the server only; the profile hears of it there.
 */
export async function withCopy<T>(
  context: Context,
  work: (open: Omit<OpenDevice, 'catchUp'>) => Promise<T>,
): Promise<T> {
  const { identity, store, current } = await context.withDevice(async (open) => ({
    current: open.current,
    identity: (await context.profile.identity()) ?? open.identity,
    store: await copyOf(open.store),
  }));
  const session = await Session.open(context, { identity, store });
  try {
    return await work({ device: session.device, identity, store, current });
  } finally {
    await session.end();
  }
}

/**
 * What the stream said so far, in memory: for a program that only looks, and must not keep others from writing. Own
 * changes that wait are left out: they are the business of whoever holds the profile.
 */
async function copyOf(store: Store): Promise<Store> {
  const copy = new MemoryStore();
  const entries: Entry[] = [];
  for await (const entry of store.entries()) entries.push(entry);
  await copy.apply({ entries, cursor: await store.cursor() });
  return copy;
}

/** The way to the server during one command: where the server turned out to be away, nothing else waits for it. */
class Way {
  private readonly shutting = new AbortController();

  constructor(private readonly beyond: Fetch) {}

  /** As the platform's, until the way is shut; rejects with why then, also what is under way. */
  readonly fetch: Fetch = async (url, init) => {
    const shut = this.shutting.signal;
    shut.throwIfAborted();
    const { signal } = init;
    return this.beyond(url, { ...init, signal: AbortSignal.any([...(signal ? [signal] : []), shut]) });
  };

  /** Ends every request, those to come too. `why` is what each of them rejects with. */
  shut(why: NetworkError): void {
    this.shutting.abort(why);
  }
}

/** What a session is opened with. */
interface Opening {
  readonly identity: Identity;
  readonly store: Store;
  /** What is written is not sent before `catchUp`. */
  readonly held?: boolean;
}

/** A device open in this process, and what has to be kept when it ends. Needs no lock where its store is a copy. */
class Session {
  /** A renewed token that cannot be saved is no failure: the next command renews it again by the device's key. */
  private readonly saver: Saver<Identity>;
  private devices: readonly DeviceEntry[] | undefined;
  private bins: readonly BinView[] | undefined;
  private ended = false;
  private late: Timer | undefined;
  private readonly interrupt = (): void => this.device.close();

  private constructor(
    private readonly outside: Outside,
    readonly device: Device,
    private readonly parts: Opening & { readonly way: Way },
  ) {
    const { platform, profile, terminal } = outside;
    this.saver = tokenSaver({
      save: (identity) => profile.renew(identity),
      clock: platform.clock,
      failed: (error) => {
        const message = failureOf(error).message.replace(/\.$/, '');
        return `Warning: the renewed token is not saved: ${message}. It is used from memory; a command that goes on running tries again.`;
      },
      note: (text) => terminal.note(text),
    });
    const { interrupted } = terminal;
    interrupted.addEventListener('abort', this.interrupt, { once: true });
    if (interrupted.aborted) device.close();
  }

  static async open(outside: Outside, opening: Opening): Promise<Session> {
    const { platform, profile, terminal } = outside;
    const way = new Way(platform.fetch);
    // What happens before the session is there concerns nobody: nothing is sent before the first call.
    let session: Session | undefined = undefined;
    const device = await Device.open({
      ...{ ...opening, platform: { ...platform, fetch: way.fetch } },
      devices: (await readKnown(profile.folder)).devices,
      onIdentity: (next) => session?.saver.offer(next),
      onProblem: (error) => session?.problem(error),
    });
    session = new Session(outside, device, { ...opening, way });
    session.listen(terminal);
    return session;
  }

  /**
   * Brings the local copy up to date and sends what waits. False: the server is out of reach. Rejects with what does not
   * pass by itself, such as a revocation.
   */
  async catchUp(): Promise<boolean> {
    const { terminal } = this.outside;
    const { way, held } = this.parts;
    terminal.progress('Asking the server ...');
    try {
      await this.probe();
      const bins = this.first({ bins: undefined, problem: undefined });
      await this.device.pull();
      await Promise.all([this.device.roster.refresh(), bins]);
      if (!held) await this.flush();
      return true;
    } catch (error) {
      if (terminal.interrupted.aborted || !isPassing(error)) throw error;
      terminal.note(`Not up to date: ${failureOf(error).message}.`);
      if (error instanceof NetworkError)
        way.shut(new NetworkError(error.code, error.message, { cause: error, final: true }));
      return false;
    } finally {
      terminal.progress('');
      if (held) this.device.release();
    }
  }

  /** What is kept already is not worth a longer wait: it goes out with the next command. */
  bound(): void {
    const late = new NetworkError('timeout', 'the server takes too long', { final: true });
    this.late = this.outside.platform.clock.setTimer(FLUSH_MS, () => this.parts.way.shut(late));
  }

  /** Waits until nothing is left to send, until something stands in the way, or for `FLUSH_MS`. */
  private async flush(): Promise<void> {
    const { platform, terminal } = this.outside;
    const limit = new AbortController();
    const stop = AbortSignal.any([limit.signal, terminal.interrupted]);
    const late = delay(platform.clock, FLUSH_MS, stop).then(
      () => true,
      () => true,
    );
    try {
      for (;;) {
        // True where something stands in the way of what waits.
        const settled = this.first({ sent: false, rejected: false, problem: true });
        const waiting = (await this.parts.store.pending()).filter(
          ({ version, base }) => version === null && base !== null,
        );
        if (waiting.length === 0) return;
        terminal.progress(`Sending ${counted(waiting.length, 'change')} that waited ...`);
        if (await Promise.race([settled, late])) return;
      }
    } finally {
      limit.abort();
      terminal.progress('');
    }
  }

  /** Closes the device and keeps what it learned. */
  async end(): Promise<void> {
    this.ended = true;
    this.late?.cancel();
    this.outside.terminal.interrupted.removeEventListener('abort', this.interrupt);
    this.device.close();
    await this.saver.end();
    await writeKnown(this.outside.profile.folder, { devices: this.devices, bins: this.bins });
  }

  /**
   * One request, not repeated: a server that is not there is found out in no time. It is asked a second time where no
   * answer comes: in Node 20 the first request of a process never settles, and keeps nothing waiting, where its
   * connection is closed before the process has loaded its parser of HTTP (CLI-38).
   */
  private async probe(): Promise<void> {
    const { platform, terminal } = this.outside;
    const { interrupted } = terminal;
    const stop = new AbortController();
    const stopped = new Promise<never>((_, reject) => {
      stop.signal.addEventListener('abort', () => reject(asError(stop.signal.reason)), { once: true });
    });
    const interrupt = (): void => stop.abort(new NetworkError('aborted', 'interrupted'));
    interrupted.addEventListener('abort', interrupt, { once: true });
    if (interrupted.aborted) interrupt();
    const late = new NetworkError('timeout', 'the server does not answer');
    const timer = platform.clock.setTimer(PROBE_MS, () => stop.abort(late));
    const init: RequestInit = { redirect: 'error', credentials: 'omit', signal: stop.signal };
    const ask = (): Promise<Response> => platform.fetch(`${this.parts.identity.serverUrl}/api/health`, init);
    let second: Timer | undefined;
    try {
      const asked = new Promise<Response>((resolve, reject) => {
        ask().then(resolve, reject);
        second = platform.clock.setTimer(ASK_AGAIN_MS, () => void ask().then(resolve, reject));
      });
      const answer = await Promise.race([asked, stopped]);
      await Promise.race([answer.body?.cancel(), stopped]);
    } catch (cause) {
      if (cause instanceof NetworkError) throw cause;
      throw new NetworkError('network', 'the server does not answer', { cause });
    } finally {
      timer.cancel();
      second?.cancel();
      // Of two requests one is still under way.
      stop.abort(late);
      interrupted.removeEventListener('abort', interrupt);
    }
  }

  /** The outcome of the first of these events that comes. */
  private first<T>(outcomes: Readonly<Partial<Record<EventName, T>>>): Promise<T> {
    return new Promise((resolve) => {
      const stops = (Object.entries(outcomes) as [EventName, T][]).map(([name, outcome]) =>
        this.device.on(name, () => {
          for (const stop of stops) stop();
          resolve(outcome);
        }),
      );
    });
  }

  private listen(terminal: Terminal): void {
    const { device } = this;
    device.on('devices', ({ devices }) => {
      this.devices = devices;
    });
    device.on('bins', ({ bins }) => {
      this.bins = bins;
    });
    device.on('uncertified', ({ devices }) => {
      for (const { id, name } of devices) {
        terminal.note(
          `Warning: the server lists ${JSON.stringify(sanitizeText(name))} (${id}), which no device of yours vouches for. ` +
            'Nothing is written until it is certified or revoked (`service-device devices`).',
        );
      }
    });
    device.on('quarantined', ({ id, reason }) => {
      terminal.note(`Warning: item ${id} does not verify (${reason}) and is not shown.`);
    });
    device.on('untagged_delete', ({ id }) => {
      terminal.note(`Warning: the server says that ${id} was deleted, but no device of yours signed that.`);
    });
    device.on('rejected', ({ id, error }) => {
      terminal.note(`Warning: a change of ${id} that waited was refused and is dropped: ${failureOf(error).message}.`);
    });
    device.on('reset', () => terminal.note("The server's history was replaced; everything is read again."));
    device.on('orphaned', ({ ids }) => {
      terminal.note(`Warning: ${ids.length} items that are here are not in the server's new history.`);
    });
  }

  /** What passes by itself is told by the command that needs it; what was cut off by the end is nobody's problem. */
  private problem(error: Error): void {
    if (this.ended || isPassing(error) || this.outside.terminal.interrupted.aborted) return;
    this.outside.terminal.note(`Warning: ${failureOf(error).message}.`);
  }
}
