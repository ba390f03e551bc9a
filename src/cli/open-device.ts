/** Opens a profile's device for one command: lock, identity, local copy, and what is new on the server. */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { Saver } from '../device/saver.js';
import { delay, within, type Timer } from '../protocol/clock.js';
import { WaitGroup } from '../protocol/wait-group.js';
import { Device } from '../sdk/device.js';
import { ApiError, isConflict, isTransient, NetworkError } from '../sdk/errors.js';
import type { DeviceEvents, EventName } from '../sdk/events.js';
import type { Identity } from '../sdk/identity.js';
import { type Fetch, yieldToEventLoop } from '../sdk/platform.js';
import { openNodeStore } from '../sdk/store/node-store.js';
import type { StoreRepair } from '../sdk/store/open.js';
import { MemoryStore, type Entry, type Store } from '../sdk/store/store.js';
import { ulid } from '../sdk/ulid.js';
import { counted, sanitizeText } from '../terminal/output.js';
import { CommandError, EXIT } from '../terminal/terminal.js';
import type { Context, OpenDevice, Profile, Sync } from './context.js';
import { failureOf } from './failure.js';
import { type AccountCache, readAccountCache, writeAccountCache } from './account-cache.js';
import { STORE_FOLDER, withLock } from './profile.js';

/** Time-out of the first request, which finds out whether the server can be reached. */
const PROBE_MS = 5_000;
/** When that request is sent a second time. */
const PROBE_AGAIN_MS = 1_000;
/** How long a command waits for the outbox of earlier commands to be sent. The rest stays queued. */
const FLUSH_MS = 20_000;

export function contextOf(parts: Omit<Context, 'withDevice'>): Context {
  const context: Context = { ...parts, withDevice: (work, sync) => withDevice(context, work, sync) };
  return context;
}

export function noDevice({ name }: Profile): CommandError {
  const hint =
    'Claim a new server (`service-device claim URL`) or join one from another device (`service-device join URL`).';
  return new CommandError(EXIT.notFound, `there is no device in profile ${name} yet`, hint, { code: 'no_device' });
}

/** Describes the repair of a damaged copy: what the server has is read again, so only queued changes can be lost. */
export function repairNote({ carried, lost }: Pick<StoreRepair, 'carried' | 'lost'>): string {
  const sentences = ['the local copy was damaged; it is read again from the server.'];
  const waited = (changes: number): string => `${counted(changes, 'change')} that waited to be sent`;
  if (carried > 0) sentences.push(`${waited(carried)} ${carried === 1 ? 'was' : 'were'} kept.`);
  if (lost === null) sentences.push('Changes that waited to be sent may be lost.');
  else if (lost > 0)
    sentences.push(`${waited(lost)} ${lost === 1 ? 'is lost: make it' : 'are lost: make them'} again.`);
  if (carried === 0 && lost === 0) sentences.push('Nothing was lost.');
  return sentences.join(' ');
}

async function withDevice<T>(context: Context, work: (open: OpenDevice) => Promise<T>, sync: Sync = 'catch up') {
  const { profile } = context;
  // Before the lock, which creates the folder: a mistyped name must not leave one behind.
  if (!existsSync(profile.folder)) throw noDevice(profile);
  return withLock(context, async () => {
    const identity = await profile.identity();
    if (identity === undefined) throw noDevice(profile);
    const { store, repair } = await openNodeStore(join(profile.folder, STORE_FOLDER), identity);
    if (repair !== null) context.terminal.note(`Warning: ${repairNote(repair)}`);
    try {
      const opened = await CommandDevice.open(context, { identity, store, held: sync === 'later' });
      let caughtUp: Promise<boolean> | undefined;
      const catchUp: OpenDevice['catchUp'] = (brief) => {
        if (brief !== undefined && caughtUp === undefined) opened.limitTime();
        return (caughtUp ??= opened.catchUp());
      };
      try {
        const current = sync === 'catch up' && (await catchUp());
        return await work({ device: opened.device, identity, store, current, catchUp });
      } finally {
        await opened.end();
      }
    } finally {
      await store.close();
    }
  });
}

/**
 * Runs `work` with a device on an in-memory copy of the profile's items, without the lock: for long-running commands that
 * must not block others. Its writes reach the profile through the server.
 */
export async function withCopy<T>(context: Context, work: (open: Omit<OpenDevice, 'catchUp'>) => Promise<T>) {
  const { identity, store, current } = await context.withDevice(async (open) => ({
    current: open.current,
    // Read again: catching up may have renewed the token, and the copy would have to renew it once more.
    identity: (await context.profile.identity()) ?? open.identity,
    store: await copyOf(open.store),
  }));
  const opened = await CommandDevice.open(context, { identity, store, isCopy: true });
  try {
    return await work({ device: opened.device, identity, store, current });
  } finally {
    await opened.end();
  }
}

/** The entries of the stream, in memory. The outbox is left out: the holder of the lock sends it. */
async function copyOf(store: Store): Promise<Store> {
  const copy = new MemoryStore();
  const entries: Entry[] = [];
  for await (const entry of store.entries()) entries.push(entry);
  await copy.apply({ entries, cursor: await store.cursor() });
  return copy;
}

/** A device open in this process, and what is saved when it closes. Needs no lock where its store is a copy. */
class CommandDevice {
  /** Failing to save a renewed token is not an error: the next command renews it again with the device's key. */
  private readonly saver: Saver<Identity>;
  private read: AccountCache = {};
  private ended = false;
  /** The copies of refused writes under way, and per item the last change that was refused. */
  private readonly copies = new WaitGroup();
  private readonly refused = new Map<string, { event: DeviceEvents['rejected']; isWrite: boolean }>();
  private late: Timer | undefined;
  private readonly interrupt = (): void => this.device.close();

  private constructor(
    private readonly context: Context,
    readonly device: Device,
    private readonly parts: {
      readonly identity: Identity;
      readonly store: Store;
      /** Writes are not sent before `catchUp`. */
      readonly held?: boolean;
      /** Without the lock: other commands may have stored newer lists meanwhile, so none are stored. */
      readonly isCopy?: boolean;
      /** Aborted once the server is found unreachable: every request of the device then fails at once. */
      readonly cutOff: AbortController;
    },
  ) {
    const { platform, profile, terminal } = context;
    this.saver = new Saver({
      save: (identity) => profile.renew(identity),
      clock: platform.clock,
      failed: (error) => {
        const message = failureOf(error).message.replace(/\.$/, '');
        return `Warning: the renewed token is not saved: ${message}. It is used from memory; a command that keeps running tries again.`;
      },
      saved: 'The renewed token is saved now.',
      note: (text) => terminal.note(text),
    });
    const { interrupted } = terminal;
    interrupted.addEventListener('abort', this.interrupt, { once: true });
    if (interrupted.aborted) device.close();
    this.listen();
  }

  static async open(context: Context, opening: Omit<CommandDevice['parts'], 'cutOff'>): Promise<CommandDevice> {
    const { platform, profile } = context;
    const cutOff = new AbortController();
    const fetch: Fetch = async (url, init) => {
      cutOff.signal.throwIfAborted();
      const signals = [cutOff.signal, ...(init.signal ? [init.signal] : [])];
      return platform.fetch(url, { ...init, signal: AbortSignal.any(signals) });
    };
    // Undefined while the device opens: it sends nothing before its first call, so neither callback is lost.
    let opened: CommandDevice | undefined = undefined;
    const device = await Device.open({
      ...{ ...opening, platform: { ...platform, fetch } },
      devices: (await readAccountCache(profile.folder)).devices,
      onIdentity: (next) => opened?.saver.offer(next),
      onProblem: (error) => opened?.problem(error),
    });
    opened = new CommandDevice(context, device, { ...opening, cutOff });
    return opened;
  }

  /**
   * Brings the local copy up to date and sends the outbox. False: the server cannot be reached. Rejects with errors that
   * are not transient, such as a revocation.
   */
  async catchUp(): Promise<boolean> {
    const { terminal } = this.context;
    const { cutOff, held } = this.parts;
    terminal.progress('Asking the server ...');
    try {
      await this.probe();
      const bins = this.first({ bins: undefined, problem: undefined });
      await this.device.pull();
      await Promise.all([this.device.devices.refresh(), bins]);
      if (!held) await this.flush();
      return true;
    } catch (error) {
      if (terminal.interrupted.aborted || !isTransient(error)) throw error;
      terminal.note(`Not up to date: ${failureOf(error).message}.`);
      if (error instanceof NetworkError)
        cutOff.abort(new NetworkError(error.code, error.message, { cause: error, final: true }));
      return false;
    } finally {
      terminal.progress('');
      if (held) this.device.release();
    }
  }

  /** Bounds the rest of the command to `FLUSH_MS`: changes not sent by then are sent by the next command. */
  limitTime(): void {
    const late = new NetworkError('timeout', 'the server takes too long', { final: true });
    this.late = this.context.platform.clock.setTimer(FLUSH_MS, () => this.parts.cutOff.abort(late));
  }

  /** Waits until the outbox is empty or blocked, for `FLUSH_MS` at most. */
  private async flush(): Promise<void> {
    const { platform, terminal } = this.context;
    const limit = new AbortController();
    const stop = AbortSignal.any([limit.signal, terminal.interrupted]);
    const late = delay(platform.clock, FLUSH_MS, stop).catch(() => undefined);
    try {
      for (;;) {
        // False: a change was sent or dropped. True: something blocks the outbox. Undefined: it takes too long.
        const settled = this.first({ sent: false, rejected: false, problem: true });
        // What was refused leaves the store in the turn after its copy is written.
        await Promise.race([this.copies.idle().then(yieldToEventLoop), late]);
        const pending = await this.parts.store.pending();
        const waiting = pending.filter(({ version, base }) => version === null && base !== null).length;
        if (waiting === 0) return;
        terminal.progress(`Sending ${counted(waiting, 'change')} that waited ...`);
        if ((await Promise.race([settled, late])) !== false) return;
      }
    } finally {
      limit.abort();
    }
  }

  /** Closes the device and saves the lists that it has read. */
  async end(): Promise<void> {
    this.ended = true;
    this.late?.cancel();
    this.context.terminal.interrupted.removeEventListener('abort', this.interrupt);
    this.device.close();
    await this.saver.end();
    if (this.parts.isCopy === true) return;
    const { platform, profile, terminal } = this.context;
    const keys = { ...platform, masterKey: this.parts.identity.masterKey };
    // A failure is only reported: the command has succeeded, and the next one that reaches the server stores the lists.
    await writeAccountCache(profile.folder, this.read, keys).catch((error: unknown) =>
      terminal.note(`Warning: devices and bins are not kept for use without the server: ${failureOf(error).message}`),
    );
  }

  /**
   * One request without retries, so that an unreachable server is detected quickly. After a second without a response it
   * is sent once more: in Node 20 the first request of a process never settles if its connection is closed before the
   * HTTP parser is loaded (CLI-38).
   */
  private async probe(): Promise<void> {
    const { platform, terminal } = this.context;
    const stop = new AbortController();
    const signal = AbortSignal.any([stop.signal, terminal.interrupted]);
    const url = `${this.parts.identity.serverUrl}/api/health`;
    const request = () => platform.fetch(url, { redirect: 'error', credentials: 'omit', signal });
    try {
      const again = delay(platform.clock, PROBE_AGAIN_MS, signal).then(request);
      const answered = Promise.race([request(), again])
        .then(({ body }) => body?.cancel())
        .then(() => true);
      if (await within(platform.clock, PROBE_MS, answered, false)) return;
    } catch (cause) {
      throw new NetworkError('network', 'the server does not answer', { cause });
    } finally {
      stop.abort();
    }
    throw new NetworkError('timeout', 'the server does not answer');
  }

  /** The value of the first of these events. */
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

  private listen(): void {
    const { device } = this;
    const note = (text: string): void => this.context.terminal.note(text);
    device.on('devices', ({ devices }) => (this.read = { ...this.read, devices }));
    device.on('bins', ({ bins }) => (this.read = { ...this.read, bins }));
    device.on('uncertified', ({ devices }) => {
      for (const { id, name } of devices)
        note(
          `Warning: the server lists ${JSON.stringify(sanitizeText(name))} (${id}), which no device of yours vouches for. ` +
            'Nothing is written until it is certified or revoked (`service-device devices`).',
        );
    });
    device.on('quarantined', ({ id, reason }) =>
      note(`Warning: item ${id} does not verify (${reason}) and is not shown.`),
    );
    device.on('untagged_delete', ({ id }) =>
      note(`Warning: the server says that ${id} was deleted, but no device of yours signed that.`),
    );
    device.on('rejected', async (event) => this.copies.add(this.rejected(event)));
    device.on('reset', () => note("The server's history was replaced; everything is read again."));
    device.on('orphaned', ({ ids }) =>
      note(`Warning: the server's new history lacks ${counted(ids.length, 'item')} of this device.`),
    );
  }

  /**
   * Writes the content of a change that another device forestalled as a new item: it is nowhere else. The store keeps the
   * change until this resolves.
   */
  private async rejected(event: DeviceEvents['rejected']): Promise<void> {
    const { id, kind, error, row } = event;
    const { context, device } = this;
    const what = `Warning: a change of ${id} that waited was refused`;
    const isWrite = kind === 'write' || this.refused.get(id)?.isWrite === true;
    this.refused.set(id, { event, isWrite });
    // Of several changes of an item, which are refused together, the last one has the content.
    await Promise.resolve();
    const isLast = this.refused.get(id)?.event === event;
    if (!isConflict(error) || !isWrite || !isLast || row === null || row.blob !== null)
      return context.terminal.note(`${what} and is dropped: ${failureOf(error).message}.`);
    this.refused.delete(id);
    const { binId, type, payload } = device.opened(row);
    let isKept = false;
    const onKept = (): void => void (isKept = true);
    // Derived from the content, so that it is not written twice where the program ends before the store forgets it.
    const bytes = createHash('sha256')
      .update(row.sig ?? id)
      .digest();
    const copy = { id: ulid(row.ts, (length) => bytes.subarray(0, length)), binId, type };
    try {
      await device.put({ ...copy, payload: payload ?? {}, asIs: true, onKept });
    } catch (cause) {
      if (!isKept || cause instanceof ApiError) throw cause;
    }
    context.terminal.note(`${what}: ${failureOf(error).message}. Its content is kept as a new item, ${copy.id}.`);
  }

  /** Reports a background error, unless it is transient or caused by the end of the command. */
  private problem(error: Error): void {
    if (this.ended || isTransient(error) || this.context.terminal.interrupted.aborted) return;
    this.context.terminal.note(`Warning: ${failureOf(error).message}.`);
  }
}
