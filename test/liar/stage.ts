/**
 * Where lies are played: a real server, an honest device that is connected to it, and a second device, the victim, that
 * reaches it only through the liar. Each lie gets a new victim with an empty store, whose items and reports are
 * recorded.
 */
import { Device } from '../../src/sdk/device.js';
import type { Identity } from '../../src/sdk/identity.js';
import type { Platform } from '../../src/sdk/platform.js';
import type { WithTeardown } from '../support/postgres.js';
import { next, note, world, type World } from '../support/client-world.js';
import { SOON_MS } from '../support/events.js';
import { nameOf } from './lie.js';
import { Liar } from './proxy.js';
import { platform } from './victim.js';

/** Without rates, which are not under test here. */
const ENV = { RATE_READ_PER_S: '0', RATE_WRITE_PER_S: '0', RATE_PAIR_PER_MIN: '0' };

export class Stage {
  /** What the victim reported, by the names of the catalogue, in order. */
  readonly told: string[] = [];
  /** Every text that the victim showed, by item. */
  readonly shown: { readonly id: string; readonly text: unknown }[] = [];
  /** Every text that the user wrote, by item. */
  readonly wrote = new Map<string, Set<string>>();
  /** Items that the user deleted. */
  readonly deleted = new Set<string>();
  /** Further devices of the user. */
  readonly others = new Set<string>();
  victim: Device;
  private readonly woken = new Set<() => void>();

  private constructor(
    readonly world: World,
    readonly liar: Liar,
    readonly identity: Identity,
    private readonly t: WithTeardown,
  ) {
    this.victim = undefined as unknown as Device;
  }

  static async set(t: WithTeardown): Promise<Stage> {
    const all = await world(t, { env: ENV });
    await all.first.device.connect();
    const second = await all.pair();
    second.device.close();
    const stage = new Stage(all, await Liar.before(t, all.server.port), second.identity(), t);
    await stage.put('a first item');
    await stage.put('a second item');
    return stage;
  }

  get owner(): Device {
    return this.world.first.device;
  }

  /** A new victim, connected and up to date; earlier reports are forgotten. */
  async enter(connected = true): Promise<Device> {
    this.leave();
    this.liar.honest();
    this.victim = await this.device(this.identity);
    if (connected) {
      await this.victim.connect();
      // After connecting, devices and bins are read again: a lie must not begin before that.
      await next({ device: this.victim }, 'bins');
    }
    this.told.length = 0;
    this.shown.length = 0;
    return this.victim;
  }

  leave(): void {
    // Undefined before the first `enter`.
    (this.victim as Device | undefined)?.close();
    this.liar.honest();
    this.liar.cut();
  }

  /** A device that connects to the liar, and whose reports are recorded. */
  async device(identity: Identity, on: Platform = platform): Promise<Device> {
    const device = await Device.open({
      platform: on,
      identity: { ...identity, serverUrl: this.liar.url },
      onProblem: (error) => this.tell(`problem ${nameOf(error)}`),
    });
    this.t.teardown(() => device.close());
    device.on('quarantined', ({ reason }) => this.tell(`quarantined ${reason}`));
    device.on('untagged_delete', ({ reason }) => this.tell(`untagged_delete ${reason}`));
    device.on('missing', ({ unlisted }) => this.tell(unlisted.length > 0 ? 'missing unlisted' : 'missing'));
    device.on('reset', () => this.tell('reset'));
    device.on('orphaned', () => this.tell('orphaned'));
    device.on('rejected', () => this.tell('rejected'));
    device.on('revoked', () => this.tell('revoked'));
    device.on('uncertified', () => this.tell('uncertified'));
    device.on('bins', ({ bins, unlisted }) => {
      if (unlisted.length > 0) this.tell('bins unlisted');
      if (bins.some(({ readable }) => !readable)) this.tell('bins unreadable');
    });
    device.on('item', ({ id, payload }) => this.shown.push({ id, text: payload?.['text'] }));
    return device;
  }

  /** The user writes, on the honest device. */
  async put(text: string, id?: string): Promise<{ readonly id: string; readonly version: number }> {
    const stored = await this.owner.put({ ...note(text), ...(id === undefined ? {} : { id }) });
    this.note(stored.id, text);
    return stored;
  }

  /** The user deletes, on the honest device. */
  async remove(id: string): Promise<void> {
    await this.owner.delete(id);
    this.deleted.add(id);
  }

  note(id: string, text: string): void {
    this.wrote.set(id, (this.wrote.get(id) ?? new Set()).add(text));
  }

  /** A call of the victim that must fail: its error is recorded as a report. */
  async fails(call: Promise<unknown>): Promise<void> {
    await call.then(
      () => this.tell('throws nothing'),
      (error: unknown) => this.tell(`throws ${nameOf(error)}`),
    );
  }

  /** Runs after the test. */
  atEnd(work: () => Promise<unknown>): void {
    this.t.teardown(work);
  }

  /** Resolves once each of these names was reported; rejects after `SOON_MS`, with what was reported instead. */
  async hears(names: readonly string[]): Promise<void> {
    const missing = (): readonly string[] => names.filter((name) => !this.told.includes(name));
    if (missing().length === 0) return;
    await new Promise<void>((resolve, reject) => {
      const timer = setTimeout(() => {
        this.woken.delete(look);
        reject(new Error(`not told: ${missing().join(', ')}; but: ${[...new Set(this.told)].join(', ')}`));
      }, SOON_MS);
      const look = (): void => {
        if (missing().length > 0) return;
        clearTimeout(timer);
        this.woken.delete(look);
        resolve();
      };
      this.woken.add(look);
    });
  }

  /** What the victim shows although its user did not write it, or deleted it. */
  async forged(): Promise<readonly unknown[]> {
    const listed = (await this.victim.list()).map(({ id, payload }) => ({ id, text: payload?.['text'] }));
    const back = listed.filter(({ id }) => this.deleted.has(id));
    return [...this.shown, ...listed].filter(({ id, text }) => !this.wrote.get(id)?.has(String(text))).concat(back);
  }

  /** Of these items, those that the victim neither shows nor keeps, and that the user did not delete. */
  async lost(ids: readonly string[]): Promise<readonly string[]> {
    const lost: string[] = [];
    for (const id of ids) {
      if (this.deleted.has(id)) continue;
      if ((await this.victim.get(id)) === undefined && (await this.victim.kept(id)) === undefined) lost.push(id);
    }
    return lost;
  }

  /** Names of the secrets that a device sent to the liar since the last call. */
  leaks(): readonly string[] {
    const { masterKey, keys } = this.identity;
    const secrets: readonly [string, Uint8Array | string][] = [
      ['master key', masterKey],
      ["victim's secret key", keys.secretKey],
      ["owner's secret key", this.world.first.identity().keys.secretKey],
      ['phrase', this.world.phrase],
      ...[...this.wrote.values()].flatMap((texts) => [...texts].map((text) => ['text', text] as [string, string])),
    ];
    const found = secrets.filter(([, secret]) => this.liar.leaked(secret)).map(([name]) => name);
    // Searched for every secret that there is, and none is sent before it is made.
    this.liar.heard.length = 0;
    return found;
  }

  /** Ids of devices that are not the user's and for which a key was sealed. */
  strangers(): readonly string[] {
    const own = new Set([this.identity.deviceId, this.owner.id, ...this.others]);
    return this.liar.sealedFor().filter((id) => !own.has(id));
  }

  private tell(name: string): void {
    this.told.push(name);
    for (const look of [...this.woken]) look();
  }
}
