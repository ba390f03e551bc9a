/** A browser among the simulated devices: its program is a session of the web app's engine, with the records of a tab. */
import { text } from '../../src/protocol/bytes.js';
import type { Device, DeviceOptions } from '../../src/sdk/device.js';
import { SavableIdentity } from '../../src/sdk/identity.js';
import type { MemoryStore } from '../../src/sdk/store/store.js';
import type { KeyValue } from '../../src/web/engine/key-value.js';
import { Session } from '../../src/web/engine/session.js';
import type { Sealed } from '../../src/web/engine/vault.js';
import { SimulatedDevice } from './simulated-device.js';
import { slowly, type Program } from './simulated-program.js';

/** A file of a page. The bytes are read at once: a stream of Node takes a time that no test determines. */
export class TestFile extends File {
  constructor(
    private readonly content: Uint8Array<ArrayBuffer>,
    name: string,
  ) {
    super([content], name, { type: 'text/plain', lastModified: 1 });
  }

  override stream(): ReadableStream<Uint8Array<ArrayBuffer>> {
    return new ReadableStream({
      start: (controller) => {
        controller.enqueue(this.content);
        controller.close();
      },
    });
  }
}

/** What the user did with a file. */
interface Chosen {
  readonly name: string;
  /** The page said that it is kept, or that it is not. */
  accepted: boolean;
  refused: boolean;
  cancelled: boolean;
}

/** Names of the errors that the script itself causes. */
const KNOWN_PROBLEMS = ['ApiError', 'StoreError'];

/** What is done with a deletion that can be undone. */
type Removal = 'planned' | 'undone';

export class SimulatedBrowser extends SimulatedDevice {
  /** What this browser keeps over its runs, beside the store. */
  readonly records = new Map<string, unknown>();
  session: Session | undefined;
  /** Its page is being closed. */
  closing = false;
  /** Texts that the user saved. */
  readonly texts = new Set<string>();
  /** Texts that the engine has acknowledged to a page. */
  readonly promised = new Set<string>();
  /** Refused texts whose notice was dismissed. */
  readonly dismissed = new Set<string>();
  readonly chosen = new Map<string, Chosen>();
  readonly removals = new Map<string, Removal>();
  /** A notice has reported the refusal of a change without content. */
  refusalNoticed = false;
  private remembered: unknown;

  /** Calls of pages that have not been answered. */
  readonly calls = new Map<Promise<unknown>, { readonly what: string; readonly program: Program | undefined }>();

  protected override async opened(
    program: Program,
    { platform, identity, store }: DeviceOptions & { readonly store: MemoryStore },
  ): Promise<Device> {
    this.closing = false;
    const records = this.recordsOf(program);
    this.session = await Session.open({
      ...{
        platform,
        identity: SavableIdentity.of(identity),
        opened: { store: Object.assign(store, { close: () => Promise.resolve() }), repair: null },
      },
      records,
      vault: {
        save: async ({ token }) => void (this.token = token),
        keep: async (name, value, isWanted?: () => boolean) => {
          const sealed = { iv: new Uint8Array(12), ct: Uint8Array.from(text(JSON.stringify(value))) };
          if (isWanted?.() !== false) await records.put(name, sealed);
        },
        unsealed: async ({ ct }: Sealed) => JSON.parse(Buffer.from(ct).toString()) as unknown,
        remember: async (value) => void (this.remembered = value),
        remembered: async () => this.remembered,
      },
      onRevoked: () => undefined,
    });
    this.session.notices.list.watch(null, (notices) => {
      if (this.closing) return;
      for (const { kind, problem, canResend } of notices) {
        if (kind === 'problem' && !KNOWN_PROBLEMS.includes(problem?.name ?? ''))
          this.world.accuse(this, 'notice', problem);
        if (kind === 'rejected' && !canResend) this.refusalNoticed = true;
      }
    });
    return this.session.device;
  }

  private recordsOf(program: Program): Pick<KeyValue, 'all' | 'put' | 'putAll' | 'remove'> {
    const written = (change: () => void): Promise<void> => {
      if (program.alive && program.batches-- <= 0) this.kill();
      return slowly(program, this.world.draw, async () => change());
    };
    return {
      all: (prefix) =>
        slowly(program, this.world.draw, async () =>
          [...this.records].filter(([key]) => key.startsWith(prefix)).sort(),
        ),
      put: (key, value) => written(() => this.records.set(key, value)),
      putAll: (entries) => written(() => entries.forEach(([key, value]) => this.records.set(key, value))),
      remove: (...keys) => written(() => keys.forEach((key) => this.records.delete(key))),
    };
  }

  override close(): void {
    this.closing = true;
    void this.session?.close();
  }

  override kill(): void {
    super.kill();
    this.session = undefined;
  }

  /** A page calls the engine. */
  call(
    what: string,
    work: (session: Session) => Promise<unknown>,
    done: () => void = () => undefined,
    failed: () => void = () => undefined,
  ): void {
    const { session, program } = this;
    if (session === undefined) return;
    const called = work(session).then(done, failed);
    this.calls.set(called, { what, program });
    void called.finally(() => this.calls.delete(called));
  }

  /** Texts of this device's own writes. */
  private get written(): ReadonlySet<string> {
    const asked = this.world.asked.filter(({ device, kind }) => device === this && kind !== 'move');
    return new Set([...this.texts, ...asked.map(({ what }) => what)]);
  }

  /** A refused text is in a notice; of a refused move a notice is shown. */
  override reported(name: string): boolean {
    const [own = ''] = name.split(' in ');
    // Of a file see `faults`.
    if ([...this.chosen.values()].some((file) => file.name === own)) return true;
    const first = [...this.kept].find((other) => other.startsWith(`${own} in `));
    const isMove = name !== first || !this.written.has(own);
    if (isMove || !this.texts.has(own)) return super.reported(name) || (isMove && this.refusalNoticed);
    return this.dismissed.has(own) || this.refused.includes(own);
  }

  /** Texts of the refused changes that are kept. */
  private get refused(): readonly string[] {
    return [...this.records].flatMap(([key, value]) => {
      if (!key.startsWith('refused:')) return [];
      const { item } = JSON.parse(Buffer.from((value as Sealed).ct).toString()) as {
        item: { payload: { text: string } };
      };
      return [item.payload.text];
    });
  }

  /** Records of which nothing is left to do. One that could not be removed is removed at the next start. */
  remnants(): readonly string[] {
    const { items } = this.world.server.database;
    const shown = new Set(this.session?.uploads.list.value.map(({ id }) => id));
    return [...this.records.keys()].filter((key) => {
      const [kind, id = ''] = key.split(':');
      return kind === 'removal' || (kind === 'upload' && !shown.has(id) && !items.has(id));
    });
  }

  /** What is wrong in the end. */
  faults(): readonly string[] {
    const { database } = this.world.server;
    const faults = [...this.calls.values()]
      .filter(({ program }) => program?.alive)
      .map(({ what }) => `${what} is not answered`);
    const shown = new Map(this.session?.uploads.list.value.map((upload) => [upload.id, upload]));
    for (const [id, { name, accepted, refused, cancelled }] of this.chosen) {
      const item = database.items.get(id)?.row.item;
      if (refused && item !== undefined) faults.push(`${name} was sent, though not accepted`);
      const refs = database.history.flatMap(({ row }) =>
        row.item.id === id && row.item.deletedAt === null ? (row.item.blob?.ref ?? []) : [],
      );
      if (new Set(refs).size > 1) faults.push(`${name} was written twice`);
      const upload = shown.get(id);
      if (upload !== undefined && upload.problem?.code !== 'bin_not_found')
        faults.push(`${name} is still ${upload.state}`);
      const isGone = cancelled || this.removals.get(id) === 'planned';
      if (upload === undefined && accepted && !isGone && item === undefined) faults.push(`lost the file ${name}`);
    }
    const live = [...database.items.values()].flatMap(({ row: { item } }) =>
      item.deletedAt === null ? this.world.nameOf(item).replace(/ in .*/, '') : [],
    );
    for (const text of this.texts)
      if (live.filter((one) => one === text).length > 1) faults.push(`${text} is there twice`);
    for (const text of this.promised) {
      const wasStored = [...this.kept].some((name) => name.startsWith(`${text} in `));
      if (!wasStored && !this.dismissed.has(text) && !this.refused.includes(text)) faults.push(`${text} was not kept`);
    }
    for (const [id, removal] of this.removals) {
      const item = database.items.get(id)?.row.item;
      const takenBack = this.rejected.has(`delete ${id}`);
      const asked = this.world.asked.filter((one) => one.id === id);
      const deletedElsewhere = asked.some(({ kind }) => kind === 'delete');
      // An item that another program has written meanwhile counts as another item.
      const isLeft =
        item?.deletedAt === null && item.senderDevice === this.id && asked.every(({ kind }) => kind === 'move');
      if (removal === 'planned' && isLeft && !this.refusalNoticed && !takenBack) faults.push(`${id} was not removed`);
      if (removal === 'undone' && item?.deletedAt !== null && this.kept.has(`delete ${id}`) && !deletedElsewhere)
        faults.push(`${id} was removed, though undone`);
    }
    return faults;
  }
}
