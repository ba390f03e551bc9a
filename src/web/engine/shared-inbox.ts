/** Content shared into the app: waits for an open device and the user's confirmation, then is put into the inbox. */
import { DEFAULT_BIN } from '../../protocol/limits.js';
import { Serial } from '../../protocol/serial.js';
import { detectText } from '../../sdk/payloads/shapes.js';
import type { SharedWaiting } from '../link/messages.js';
import { Cell } from './cell.js';
import type { Engine } from './engine.js';
import type { Share, Shared } from './shared.js';
import type { Session } from './session.js';

/** Bounds: shares shown at the same time, file names of one, characters of a line. */
const NEXT_MAX = 5;
const NAMES_MAX = 10;
const LINE_MAX = 200;

const lineOf = (text: string): string => text.slice(0, LINE_MAX).replace(/\s+/g, ' ').trim();

/** The shares of one browser. */
export class SharedInbox {
  readonly waiting = new Cell<SharedWaiting>({ count: 0, next: [] });
  private readonly work = new Serial();

  constructor(
    private readonly engine: Engine,
    private readonly shared: Shared,
  ) {
    shared.onChange = () => this.update();
    engine.session.watch(null, () => this.update());
  }

  /** Drops all waiting shares. */
  clear(): Promise<void> {
    return this.work.run(() => this.shared.clear());
  }

  private update(): void {
    this.work
      .run(() => this.publish())
      .catch((error: unknown) => this.engine.session.value?.notices.add('problem', error));
  }

  /** Puts or drops the shares with these ids. Throws `ClientError` `closed` while no device is open. */
  take(ids: readonly string[], how: 'put' | 'drop'): Promise<void> {
    return this.work.run(async () => {
      const session = this.engine.current;
      for (const share of await this.shared.list()) {
        if (!ids.includes(share.id)) continue;
        if (how === 'put') await put(session, share);
        // Removed only after the put, which can be repeated.
        await this.shared.remove(share.id);
      }
    });
  }

  private async publish(): Promise<void> {
    const all = await this.shared.list();
    // While locked, no page shows their content.
    const shown = this.engine.session.value === null ? [] : all.slice(0, NEXT_MAX);
    const next = shown.map(({ id, title, text, url, files }) => {
      const names = files.slice(0, NAMES_MAX).map(({ file }) => lineOf(file.name));
      if (files.length > NAMES_MAX) names.push(`+ ${files.length - NAMES_MAX}`);
      return { id, title: [title, url, text].map(lineOf).find((line) => line !== '') ?? '', files: names };
    });
    this.waiting.set({ count: all.length, next });
  }
}

/**
 * Resolves when the share is stored on this device, as an item, uploads or both. What is stored already, by a tab that
 * ended before the share was removed, is left as it is: it may have been changed since.
 */
async function put(session: Session, { id, title, text, url, files }: Share): Promise<void> {
  const isNew = async (item: string): Promise<boolean> => (await session.device.get(item)) === undefined;
  // Apps put the address into `url` or `text`, with or without other text around it.
  const address = detectText(url === '' ? text : url);
  const words = [title, text, url].filter((part, at, all) => part !== '' && all.indexOf(part) === at).join('\n');
  const binId = DEFAULT_BIN;
  const link = { ...address.payload, title, desc: url === '' || text === url ? '' : text };
  const content =
    address.type === 'link'
      ? { type: address.type, payload: link }
      : { type: 'text' as const, payload: { text: words } };
  if (words !== '' && (await isNew(id))) await session.put({ id, binId, ...content });
  const waiting = [];
  for (const { id: item, file } of files) if (await isNew(item)) waiting.push({ id: item, binId, file });
  await session.uploads.add(waiting);
}
