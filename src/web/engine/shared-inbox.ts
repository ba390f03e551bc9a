/** Puts what was shared into the app into the inbox, as soon as a device is open; until then it waits. */
import { DEFAULT_BIN } from '../../protocol/limits.js';
import { Serial } from '../../protocol/serial.js';
import { textDetected } from '../../sdk/payloads/shapes.js';
import { asError } from '../../protocol/error-code.js';
import { Cell } from './cell.js';
import type { Engine } from './engine.js';
import { Shared, type Share } from './shared.js';
import type { Session } from './session.js';

/** The shares of one browser. */
export class SharedInbox {
  /** How many wait for a device. */
  readonly waiting = new Cell<{ readonly count: number }>({ count: 0 });
  private readonly work = new Serial();

  private constructor(
    private readonly engine: Engine,
    private readonly shared: Shared,
  ) {
    shared.watch(() => this.look());
    engine.session.watch(null, () => this.look());
  }

  static async open(engine: Engine): Promise<SharedInbox> {
    return new SharedInbox(engine, await Shared.open());
  }

  /** Forgets what waits. */
  clear(): Promise<void> {
    return this.work.run(() => this.shared.clear());
  }

  private look(): void {
    this.work
      .run(() => this.putAll())
      .catch((error: unknown) => this.engine.session.value?.notices.add('problem', { error: asError(error) }));
  }

  private async putAll(): Promise<void> {
    const session = this.engine.session.value;
    if (session !== null)
      for (const share of await this.shared.list()) {
        await put(session, share);
        // Only now: what is put twice has the same ids, and is there once.
        await this.shared.take(share.id);
      }
    const count = await this.shared.count();
    if (count !== this.waiting.value.count) this.waiting.set({ count });
  }
}

/** Resolves when it is kept on this device as an item, or as uploads. */
async function put(session: Session, { id, title, text, url, files }: Share): Promise<void> {
  // Apps put the address into either field, with words around it or not.
  const address = textDetected(url === '' ? text : url);
  const words = [title, text, url].filter((part, at, all) => part !== '' && all.indexOf(part) === at).join('\n');
  const binId = DEFAULT_BIN;
  if (address.type === 'link') {
    const payload = { ...address.payload, title, desc: url === '' || text === url ? '' : text };
    await session.put({ id, binId, type: 'link', payload });
  } else if (words !== '') await session.put({ id, binId, type: 'text', payload: { text: words } });
  await session.uploads.addAll(files.map(({ id: item, file }) => ({ id: item, binId, file })));
}
