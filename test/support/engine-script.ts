/**
 * Property tests of what the web app's engine opens, locks, forgets and becomes: what pages ask of it in any order and at
 * once, with storage that fails and pages that end at any operation of it. In the end a device that was not forgotten
 * opens with what locked it last, and with nothing else.
 */
import { setImmediate } from 'node:timers/promises';
import { nodeSodium } from '../../src/crypto/sodium-node.js';
import { drawPhrase } from '../../src/crypto/master-key.js';
import { toBase64Url } from '../../src/protocol/base64.js';
import { Engine } from '../../src/web/engine/engine.js';
import { KeyValue } from '../../src/web/engine/key-value.js';
import type { NewLock, Opener } from '../../src/web/link/messages.js';
import { BrowserDatabases, type TestPage } from './browser-databases.js';
import type { Happening, Numbers } from './client-script.js';
import { TestClock } from './clock.js';
import { SOON_MS, until } from './events.js';

const SERVER = 'https://sync.example.org';
const TENANT = '01M82XKTMM8ZRB262RR1ZKK7GF';
const RECORDS = 'service-web';
const MINUTE_MS = 60_000;
/** How long a call, or what a cancelled attempt leaves behind, may take on a busy machine. */
const SETTLED_MS = 10_000;
/** Turns that an enrolment takes at most where its server answers. */
const ENROL_TURNS = 300;
/** Turns of the event loop without anything under way after which nothing more comes by itself. */
const QUIET_TURNS = 8;
const PHRASE = drawPhrase(nodeSodium);

/** Fast, and as far from its password as the real one. */
const sodium: typeof nodeSodium = {
  ...nodeSodium,
  argon2id13: async ({ length, password, salt }) => nodeSodium.blake2b(length, Uint8Array.from([...salt, ...password])),
};

const passkey = { credentialId: new Uint8Array(16), salt: new Uint8Array(32) };
/** By name: a lock, and what opens it. */
const LOCKS: Readonly<Record<string, { readonly lock: NewLock; readonly opener: Opener | null }>> = {
  none: { lock: { kind: 'none' }, opener: null },
  one: { lock: { kind: 'passphrase', passphrase: 'correct horse' }, opener: { passphrase: 'correct horse' } },
  two: { lock: { kind: 'passphrase', passphrase: 'battery staple' }, opener: { passphrase: 'battery staple' } },
  key: {
    lock: { kind: 'passkey', passkey, secret: new Uint8Array(32).fill(1) },
    opener: { secret: new Uint8Array(32).fill(1) },
  },
};
const LOCK_NAMES = Object.keys(LOCKS);
const WRONG: readonly Opener[] = [{ passphrase: 'wrong' }, { passphrase: '' }, { secret: new Uint8Array(32) }];

interface Reach {
  readonly vault: { readonly raw?: Uint8Array; readonly key?: CryptoKey };
  readonly lockAfterMinutes: number | null;
}

/** A browser, and the pages that it has one after the other. */
export class EngineWorld {
  readonly databases = new BrowserDatabases();
  readonly findings: string[] = [];
  engine: Engine | undefined;
  page: TestPage = { alive: false };
  clock = new TestClock(1_700_000_000_000);
  offline = false;
  /** The device that this browser has become; `mayBeGone`: forgetting it has failed, or its page has ended. */
  device: string | null = null;
  mayBeGone = false;
  /** What may have locked it last, and locks under way. */
  locks = new Set<string>(['none']);
  private readonly setting: string[] = [];
  private forgetting = 0;
  /** Times that a device was opened. */
  opened = 0;
  private calls = 0;
  private claimed = false;

  constructor() {
    this.databases.onEnd = () => this.ended();
  }

  private ended(): void {
    this.page.alive = false;
    for (const name of this.setting.splice(0)) this.locks.add(name);
    if (this.forgetting > 0) this.mayBeGone = true;
    [this.calls, this.forgetting] = [0, 0];
  }

  /** Another page leads. */
  async begin(): Promise<void> {
    this.ended();
    const page = { alive: true };
    this.page = page;
    this.databases.turnTo(page);
    this.clock = new TestClock(this.clock.now());
    this.engine = undefined;
    const random = (): number => 0;
    const sockets = { open: () => ({ send: () => undefined, close: () => undefined }) };
    const platform = { clock: this.clock, sodium, random, sockets, fetch: this.fetchOf(page) };
    const opening = KeyValue.open(RECORDS).catch(() => undefined);
    const records = await Promise.race([opening, this.idle().then(() => undefined)]);
    // As where a tab gets no storage: it is opened again.
    if (records === undefined) return;
    const engine = new Engine(platform as never, records, SERVER);
    this.engine = engine;
    engine.session.watch(null, (session) => {
      if (session === null || !page.alive) return;
      const id = session.identity.deviceId;
      this.opened++;
      if (this.device !== null && this.device !== id && !this.mayBeGone)
        this.findings.push(`${id} replaced the device`);
      if (this.device !== id) this.locks = new Set(['none']);
      [this.device, this.mayBeGone] = [id, false];
    });
    this.call((own) => own.start());
  }

  private fetchOf(page: TestPage) {
    return async (url: string, { body }: { readonly body?: string }): Promise<Response> => {
      await setImmediate();
      if (!page.alive) return new Promise(() => undefined);
      if (this.offline) throw new TypeError('no server');
      const asked = JSON.parse(body ?? '{}') as Record<string, string>;
      const joined = () => {
        this.claimed = true;
        const { deviceId: id, name, glyph, pubkey } = asked;
        return { device: { id, name, glyph, pubkey, pairedAt: 1 }, token: 'a-token' };
      };
      const status = { version: '1', mode: 'single', claimed: this.claimed, tenantId: TENANT, epoch: null };
      const replies: Readonly<Record<string, () => unknown>> = {
        '/api/service/status': () => ({ ...status, database: 'ok' }),
        '/api/password/exists': () => ({ exists: false }),
        '/api/devices/bootstrap': joined,
        '/api/devices/recover': joined,
        '/api/devices/recover/challenge': () => ({
          ...{ challengeId: 'c', tenantId: TENANT, challenge: toBase64Url(new Uint8Array(32)) },
        }),
      };
      const reply = replies[new URL(url).pathname];
      if (reply === undefined) throw new TypeError('no server');
      return Response.json(reply());
    };
  }

  /** A page calls the engine; other calls may be under way. */
  call(
    work: (engine: Engine) => unknown,
    done: () => void = () => undefined,
    failed: (error: unknown) => void = () => undefined,
  ): void {
    const { page, engine } = this;
    if (engine === undefined || !page.alive) return;
    this.calls++;
    const over = (then: () => void): void => {
      if (!page.alive) return;
      this.calls--;
      then();
    };
    // A call of the link is made even where the function throws.
    const called = (async () => work(engine))();
    called.then(
      () => over(done),
      (error: unknown) => over(() => failed(error)),
    );
  }

  setLock(name: string): void {
    const { page } = this;
    if (this.engine === undefined || !page.alive) return;
    this.setting.push(name);
    const end = (): void => void this.setting.splice(this.setting.indexOf(name), 1);
    this.call(
      (engine) => engine.setLock(LOCKS[name]?.lock ?? { kind: 'none' }),
      () => {
        end();
        this.locks = new Set([name]);
      },
      end,
    );
  }

  forget(): void {
    this.forgetting++;
    this.call(
      (engine) => engine.forget(),
      () => {
        this.forgetting--;
        // One that is being stored meanwhile comes after it.
        if (this.engine?.session.value === null) this.device = null;
        this.mayBeGone = false;
      },
      () => {
        this.forgetting--;
        this.mayBeGone = true;
      },
    );
  }

  /** Waits until nothing is under way, or the page has ended. */
  async idle(): Promise<void> {
    let quiet = 0;
    const end = performance.now() + SOON_MS;
    for (let turns = 0; performance.now() < end && this.page.alive; turns++) {
      await setImmediate();
      // One that waits for a server to come back waits for the clock.
      const isEnrolling = turns < ENROL_TURNS && this.engine?.enrolment.step.value.step === 'working';
      const isBusy =
        this.calls > 0 || this.databases.running > 0 || isEnrolling || this.engine?.phase.value.phase === 'starting';
      quiet = isBusy ? 0 : quiet + 1;
      if (quiet < QUIET_TURNS) continue;
      // An attempt that was cancelled may be storing its device.
      await until('a state without faults', () => this.faults().length === 0, SETTLED_MS).catch(() => undefined);
      this.findings.push(...this.faults());
      return;
    }
    if (this.page.alive) this.findings.push(`${this.calls} calls are not answered`);
  }

  /** What holds whenever nothing is under way. */
  private faults(): readonly string[] {
    const faults: string[] = [];
    const { engine } = this;
    if (engine === undefined || !this.page.alive) return faults;
    const { vault } = engine as unknown as Reach;
    const { phase } = engine.phase.value;
    const isOpen = engine.session.value !== null;
    if (isOpen !== (phase === 'open' || phase === 'revoked')) faults.push(`${phase}, open: ${isOpen}`);
    const isEnrolling = engine.enrolment.step.value.step === 'working';
    if (!isOpen && !isEnrolling && (vault.raw ?? vault.key) !== undefined) faults.push(`${phase} with a key`);
    if (phase === 'starting') faults.push('it starts for ever');
    return faults;
  }

  /** Time passes; what is open too long is locked, whatever the storage does. */
  async pass(ms: number): Promise<void> {
    await this.idle();
    const { engine, page } = this;
    if (engine === undefined || !page.alive) return;
    const { lockAfterMinutes } = engine as unknown as Reach;
    const kind = engine.session.value?.info.value?.lock.kind ?? 'none';
    for (let passed = 0; passed <= ms; passed += MINUTE_MS) {
      this.clock.advance(MINUTE_MS);
      await this.idle();
    }
    const isLate = lockAfterMinutes !== null && kind !== 'none' && ms >= lockAfterMinutes * MINUTE_MS;
    if (isLate && page.alive && engine.session.value !== null) this.findings.push('it is open for too long');
  }

  async tried(opener: Opener): Promise<string> {
    let outcome = 'stuck';
    this.call(
      (engine) => engine.unlock(opener),
      () => (outcome = 'resolved'),
      (error) => (outcome = (error as { code?: string }).code ?? String(error)),
    );
    await this.idle();
    return outcome;
  }

  /** Storage works again, and another page finds what is left. */
  async end(): Promise<void> {
    await this.idle();
    Object.assign(this.databases, { failsIn: Infinity, endsIn: Infinity });
    this.offline = false;
    // A page that goes on.
    if (this.page.alive && this.engine?.phase.value.phase === 'failed') {
      this.call((engine) => engine.start());
      await this.idle();
      if (this.engine.phase.value.phase === 'failed') this.findings.push('it fails though nothing does');
    }
    await this.begin();
    await this.idle();
    const engine = this.engine;
    if (engine === undefined) throw new Error('no page');
    const phase = engine.phase.value;
    if (phase.phase === 'failed') this.findings.push(`failed: ${phase.problem.code}`);
    if (phase.phase === 'empty' && this.device !== null && !this.mayBeGone) this.findings.push('lost the device');
    if (phase.phase === 'locked') await this.unlocked();
    else if (phase.phase === 'open' && !this.locks.has('none')) this.findings.push('opens without a lock');
    await this.gone();
  }

  private async unlocked(): Promise<void> {
    for (const opener of WRONG)
      if ((await this.tried(opener)) !== 'bad_identity') this.findings.push(`${JSON.stringify(opener)} is not refused`);
    const opened: string[] = [];
    for (const name of LOCK_NAMES) {
      const { opener = null } = LOCKS[name] ?? {};
      if (opener === null || this.engine?.phase.value.phase !== 'locked') continue;
      if ((await this.tried(opener)) === 'resolved') opened.push(name);
    }
    if (opened.length === 0) this.findings.push(`${[...this.locks].join()} does not open`);
    for (const name of opened) if (!this.locks.has(name)) this.findings.push(`${name} opens what it did not lock`);
  }

  private async gone(): Promise<void> {
    this.forget();
    await this.idle();
    const phase = this.engine?.phase.value.phase;
    const left = [...(this.databases.kept.get(RECORDS)?.keys() ?? [])];
    const stores = [...this.databases.kept.keys()].filter((name) => name !== RECORDS);
    if (phase !== 'empty' || left.length + stores.length > 0)
      this.findings.push(`forgotten, it is ${phase} and keeps ${[...left, ...stores].join()}`);
  }
}

const HAPPENINGS = {
  claim: ({ call }: Bound) => call((engine) => engine.enrolment.claim('Browser', null)),
  recover: ({ call }: Bound) => call((engine) => engine.enrolment.recover('Browser', PHRASE)),
  go: ({ call }: Bound) => call((engine) => engine.enrolment.retry()),
  cancel: ({ call }: Bound) => call((engine) => engine.enrolment.cancel()),
  start: ({ call }: Bound) => call((engine) => engine.start()),
  lock: ({ call }: Bound) => call((engine) => engine.lock()),
  touch: ({ call }: Bound) => call((engine) => engine.touched()),
  setLock: ({ world }: Bound, { b }: Numbers) => world.setLock(LOCK_NAMES[b % LOCK_NAMES.length] ?? ''),
  setAfter: ({ call }: Bound, { b }: Numbers) => call((engine) => engine.setLockAfter([null, 1, 5][b % 3] ?? null)),
  unlock: ({ call }: Bound, { b }: Numbers) => {
    const opener = LOCKS[LOCK_NAMES[b % LOCK_NAMES.length] ?? '']?.opener ?? WRONG[0];
    if (opener !== undefined) call((engine) => engine.unlock(opener));
  },
  forget: ({ world }: Bound) => world.forget(),
  offline: ({ world }: Bound, { b }: Numbers) => void (world.offline = b % 2 === 0),
  fail: ({ world }: Bound, { b }: Numbers) => void (world.databases.failsIn = b % 12),
  die: ({ world }: Bound, { b }: Numbers) => void (world.databases.endsIn = b % 12),
  pass: ({ world }: Bound, { b }: Numbers) => world.pass([30_000, 2 * MINUTE_MS, 6 * MINUTE_MS][b % 3] ?? 0),
  idle: ({ world }: Bound) => world.idle(),
  page: ({ world }: Bound) => world.begin(),
};

interface Bound {
  readonly world: EngineWorld;
  readonly call: (work: (engine: Engine) => unknown) => void;
}

export const NAMES = Object.keys(HAPPENINGS) as (keyof typeof HAPPENINGS)[];

/** Plays a script. Throws if something is wrong in the end. */
export async function play(script: readonly Happening<keyof typeof HAPPENINGS>[]): Promise<EngineWorld> {
  const world = new EngineWorld();
  Object.assign(globalThis, world.databases.globals);
  await world.begin();
  for (const { what, ...numbers } of script) {
    if (!world.page.alive || world.engine === undefined) await world.begin();
    await HAPPENINGS[what]({ world, call: (work) => world.call(work) }, numbers);
  }
  await world.end();
  if (world.findings.length > 0) throw new Error(world.findings.join('\n'));
  return world;
}
