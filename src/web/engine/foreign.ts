/**
 * Imports of other programs' exports (reference, Coming from another program): a file is read in a worker of its own,
 * shown, and written when the person has agreed.
 */
import type { ForeignSource, Made } from '../../import/entries.js';
import { incomingOf } from '../../import/records.js';
import { sanitizeText } from '../../protocol/sanitize.js';
import { fileSource } from '../../sdk/blobs/source.js';
import { CodedError, isDamaged } from '../../sdk/errors.js';
import type { Platform } from '../../sdk/platform.js';
import type { ForeignPreview, ForeignRead, Imported } from '../link/messages.js';
import type { ReadEntry, ReaderAnswer, ReaderRequest } from '../reader/messages.js';
import { scriptAddress } from '../script.js';
import { importRecords } from './archive.js';
import type { Session } from './session.js';

/** Path of the reader's script. */
declare const __READER__: string;

/** Characters of the place in a file, and of a bin's name, that are shown. */
const SHOWN_MAX = 200;

/** A file that cannot be imported; the message is for the user. */
class ImportRefusal extends CodedError<'refused' | 'reader_failed' | 'reader_missing' | 'gone'> {
  override readonly name = 'ImportRefusal';
}

const failed = (): ImportRefusal =>
  new ImportRefusal('reader_failed', 'The file could not be read: it is damaged, or takes too much memory.');

const gone = (): ImportRefusal => new ImportRefusal('gone', 'Reading was stopped. Choose the file again.');

/** The file that was read for the open device, which is forgotten with it: one at a time. */
export class ForeignImports {
  private current: { readonly id: string; readonly end: () => void; source?: ForeignSource } | undefined;

  /**
   * Reads a file for `run`, in place of any other. Throws `ImportRefusal`. `id`: chosen by the caller, with whom what
   * was read goes: every password of another program must not outlive the tab that shows it.
   */
  async read(
    platform: Platform,
    { device, identity }: Pick<Session, 'device' | 'identity'>,
    { id, ...request }: ReaderRequest & { readonly id: string },
    departed: AbortSignal,
  ): Promise<ForeignRead> {
    departed.throwIfAborted();
    this.current?.end();
    const over = new AbortController();
    departed.addEventListener('abort', () => this.drop(id), { once: true, signal: over.signal });
    const worker = new Worker(scriptAddress(__READER__), { name: 'reader' });
    const answered = answerOf(worker);
    over.signal.addEventListener('abort', () => answered.stop(gone()));
    const reading = (this.current = { id, end: () => over.abort() } as NonNullable<typeof this.current>);
    worker.postMessage(request);
    const answer = await answered.answer.finally(() => worker.terminate());
    if (answer.kind === 'locked') return { step: 'locked', program: answer.program, wrong: answer.wrong };
    if (answer.kind === 'refused') throw refusalOf(answer);
    const source = { ...answer.source, entries: answer.entries.map(withSources), time: request.file.lastModified };
    const incoming = incomingOf(source, platform, identity.masterKey);
    let here = 0;
    for (const item of incoming.ids()) {
      if (await isHere(device, item)) here++;
      if (this.current !== reading) throw gone();
    }
    reading.source = source;
    return { step: 'read', ...answer.account, ...contentsOf(answer.entries), here };
  }

  /** Writes what was read under this id, and forgets it. Throws `ImportRefusal`, and as `importRecords`. */
  async run(platform: Platform, session: Session, id: string): Promise<Imported> {
    const source = this.current?.id === id ? this.current.source : undefined;
    if (source === undefined) throw gone();
    const imported = await importRecords(platform, session, () =>
      Promise.resolve(incomingOf(source, platform, session.identity.masterKey)),
    );
    this.drop(id);
    return imported;
  }

  /** Forgets what was read under this id, or is being read; undefined: under any. An import that runs goes on. */
  drop(id?: string): void {
    if (id !== undefined && id !== this.current?.id) return;
    this.current?.end();
    this.current = undefined;
  }
}

/** A damaged item is here too: only its content is not. */
async function isHere(device: Session['device'], id: string): Promise<boolean> {
  try {
    return (await device.get(id)) !== undefined;
  } catch (error) {
    if (isDamaged(error)) return true;
    throw error;
  }
}

/** The first answer of a reader; `stop` rejects it. */
function answerOf(worker: Worker) {
  let stop: (reason: Error) => void = () => undefined;
  const answer = new Promise<ReaderAnswer>((resolve, reject) => {
    stop = reject;
    worker.onmessage = ({ data }: MessageEvent<ReaderAnswer>) => resolve(data);
    // An answer too large for this worker's memory arrives as this event.
    worker.onmessageerror = () => reject(failed());
    worker.onerror = (event) => {
      event.preventDefault();
      // Without a message the script itself could not be loaded.
      const missing = !(event instanceof ErrorEvent) || event.message === '';
      reject(
        missing
          ? new ImportRefusal('reader_missing', 'A part of the app could not be loaded. Reload the page.')
          : failed(),
      );
    };
  });
  return { answer, stop };
}

function refusalOf({ where, why, hint }: ReaderAnswer & { readonly kind: 'refused' }): ImportRefusal {
  const place = where === '' ? '' : ` (${sanitizeText(where.slice(0, SHOWN_MAX))})`;
  return new ImportRefusal('refused', `This file cannot be imported${place}: ${why}. ${hint}`);
}

const withSources = ({ made, ...entry }: ReadEntry) => ({
  ...entry,
  made: made.map(({ content, ...item }): Made => (content === null ? item : { ...item, content: fileSource(content) })),
});

/** Numbers of items by type and by bin. */
function contentsOf(entries: readonly ReadEntry[]): Pick<ForeignPreview, 'types' | 'into'> {
  const types = new Map<ForeignPreview['types'][number]['type'], number>();
  const bins = new Map<string, number>();
  for (const { folder, made } of entries)
    for (const { type } of made) {
      types.set(type, (types.get(type) ?? 0) + 1);
      bins.set(folder, (bins.get(folder) ?? 0) + 1);
    }
  return {
    types: [...types].map(([type, items]) => ({ type, items })),
    into: [...bins].map(([name, items]) => ({ name: name.slice(0, SHOWN_MAX), items })),
  };
}
