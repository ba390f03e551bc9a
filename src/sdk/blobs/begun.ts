/**
 * The unfinished uploads in the device's store, with all that a later run needs to send the same bytes again. An upload
 * is stored before its first byte is sent, and removed when the caller of `put` learns what became of the item that names
 * its blob. One whose program ends in between is written, and no longer unfinished: a later run that is asked for the same
 * is told so (`written`).
 */
import { openBegun, sealBegun } from '../../crypto/begun-upload.js';
import type { BlobDraft } from '../../crypto/item.js';
import type { ContentType } from '../../protocol/item.js';
import { UPLOAD_LIFE_MS } from '../../protocol/limits.js';
import { erasing } from '../../crypto/sodium.js';
import type { Core } from '../core.js';
import { contentType, RecordReader, RecordWriter } from '../store/records.js';
import { StoreError } from '../store/error.js';
import type { SourceIdentity } from './source.js';

/** Format of a record; an upload stored in another format is discarded. */
const FORM = 1;

/** An unfinished upload. Its owner erases `draft.key`. */
export interface Begun {
  /** Id of the item that will name the blob. */
  readonly id: string;
  readonly ref: string;
  readonly draft: BlobDraft;
  /** Bytes of plaintext. */
  readonly size: number;
  readonly source: SourceIdentity;
  /** Hashes of the blocks encrypted so far, from the first on (`blockHash`). */
  readonly hashes: readonly Uint8Array[];
  /** Lower bound of the bytes of plaintext that the server has. */
  readonly sent: number;
  /** ms by this device's clock. */
  readonly begunAt: number;
}

/** An upload that can be continued, as the application sees it. */
export interface BegunUpload extends Pick<Begun, 'id' | 'size' | 'source' | 'sent' | 'begunAt'> {
  readonly type: BlobDraft['type'];
  /** ms. The server removes the upload then, or earlier: from a day after it was last continued. */
  readonly expiresAt: number;
}

/** The unfinished uploads of a device. */
export class BegunUploads {
  /** One running upload per item, because two would share key and hashes. Settles when the upload has ended. */
  private readonly running = new Map<string, Promise<unknown>>();

  constructor(private readonly options: Pick<Core, 'sodium' | 'store' | 'reader' | 'clock'>) {}

  /** Runs an upload of an item. `work` gets false if another one of the item runs, and then must not store anything. */
  async run<T>(id: string, work: (alone: boolean) => Promise<T>): Promise<T> {
    if (this.isRunning(id)) return work(false);
    const running = work(true);
    this.running.set(
      id,
      running.catch(() => undefined),
    );
    try {
      return await running;
    } finally {
      this.running.delete(id);
    }
  }

  /** True while an upload of the item runs. */
  isRunning(id: string): boolean {
    return this.running.has(id);
  }

  /** Resolves when no upload of the item runs. */
  async ended(id: string): Promise<void> {
    await this.running.get(id);
  }

  /** The upload of an item; undefined: there is none that can be continued. */
  async find(id: string): Promise<Begun | undefined> {
    const begun = await this.kept(id);
    if (begun === undefined || !(await this.isWritten(begun))) return begun;
    this.options.sodium.memzero(begun.draft.key);
    return undefined;
  }

  private async kept(id: string): Promise<Begun | undefined> {
    const kept = (await this.options.store.uploads()).find((one) => one.id === id);
    return kept === undefined ? undefined : this.opened(kept.id, kept.sealed);
  }

  /** The item as it is here, with changes that wait, names the blob of this upload. */
  private async isWritten({ id, ref }: Pick<Begun, 'id' | 'ref'>): Promise<boolean> {
    const { store } = this.options;
    const own = (await store.pending()).findLast((change) => change.id === id);
    if (own?.kind === 'delete') return false;
    const entry = own === undefined ? await store.get(id) : undefined;
    const row = own?.row ?? (entry?.state === 'live' ? entry.row : undefined);
    return row?.blob?.ref === ref;
  }

  /** The item that an earlier run wrote from this source, whose caller did not learn of it. It is told once. */
  async written(type: ContentType, { name, state }: SourceIdentity): Promise<string | undefined> {
    for (const { id, sealed } of await this.options.store.uploads()) {
      const begun = this.opened(id, sealed);
      if (begun === undefined) continue;
      const { draft, source } = begun;
      this.options.sodium.memzero(draft.key);
      const same = draft.type === type && source.name === name && source.state === state;
      if (!same || !(await this.isWritten(begun))) continue;
      await this.forget(id);
      return id;
    }
    return undefined;
  }

  /** The caller of `put` has learned what became of an item that names this blob. */
  async learned({ id, ref }: Pick<Begun, 'id' | 'ref'>): Promise<void> {
    const begun = await this.kept(id);
    if (begun === undefined) return;
    this.options.sodium.memzero(begun.draft.key);
    // It may be a later one of the item.
    if (begun.ref === ref) await this.forget(id);
  }

  /** All uploads that can be continued; removes those that are too old, unreadable, or of a deleted item. */
  async list(): Promise<readonly BegunUpload[]> {
    const found: BegunUpload[] = [];
    const gone: string[] = [];
    for (const kept of await this.options.store.uploads()) {
      const begun = this.opened(kept.id, kept.sealed);
      if (begun !== undefined) this.options.sodium.memzero(begun.draft.key);
      if (begun === undefined || (await this.isDeleted(kept.id))) gone.push(kept.id);
      else if (!(await this.isWritten(begun))) {
        const { id, draft, size, source, sent, begunAt } = begun;
        found.push({ id, type: draft.type, size, source, sent, begunAt, expiresAt: begunAt + UPLOAD_LIFE_MS });
      }
    }
    const idle = gone.filter((id) => !this.isRunning(id));
    if (idle.length > 0) await this.options.store.apply({ uploaded: idle });
    return found.sort((one, other) => one.begunAt - other.begunAt);
  }

  /** A deleted item is never written again, so no item could name the blob. */
  private async isDeleted(id: string): Promise<boolean> {
    const entry = await this.options.store.get(id);
    return entry?.state === 'deleted' && entry.version > 0;
  }

  /** Stores an upload, durably when it resolves: no byte of a block may be sent before its hash is stored. */
  async keep(begun: Begun): Promise<void> {
    const { sodium, store, reader } = this.options;
    const { id, draft, source } = begun;
    const out = new RecordWriter().byte(FORM).text(begun.ref).text(draft.type).int(draft.ts);
    out.blob(draft.key).blob(draft.nonce).int(begun.size).int(begun.sent).int(begun.begunAt);
    out.text(source.name).text(source.state).int(begun.hashes.length);
    for (const hash of begun.hashes) out.blob(hash);
    const seal = (record: Uint8Array): Uint8Array => sealBegun(sodium, record, { masterKey: reader.masterKey, id });
    const sealed = erasing(sodium, out.sealed(0), seal);
    out.erase();
    await store.apply({ uploads: [{ id, sealed }] });
  }

  async forget(id: string): Promise<void> {
    if ((await this.options.store.uploads()).some((one) => one.id === id))
      await this.options.store.apply({ uploaded: [id] });
  }

  private opened(id: string, sealed: Uint8Array): Begun | undefined {
    const { sodium, reader, clock } = this.options;
    const record = openBegun(sodium, sealed, { masterKey: reader.masterKey, id });
    if (record === undefined) return undefined;
    try {
      const begun = decoded(id, record);
      if (begun === undefined || Math.abs(clock.now() - begun.begunAt) <= UPLOAD_LIFE_MS) return begun;
      sodium.memzero(begun.draft.key);
      return undefined;
    } catch (error) {
      if (error instanceof StoreError) return undefined;
      throw error;
    } finally {
      sodium.memzero(record);
    }
  }
}

function decoded(id: string, record: Uint8Array): Begun | undefined {
  const read = new RecordReader(record, 0);
  if (read.byte() !== FORM) return undefined;
  const ref = read.text();
  const type = contentType(read.text());
  const ts = read.int();
  const [key, nonce] = [read.blob(), read.blob()];
  const [size, sent, begunAt] = [read.int(), read.int(), read.int()];
  const source = { name: read.text(), state: read.text() };
  const hashes: Uint8Array[] = [];
  for (let left = read.int(); left > 0; left--) hashes.push(new Uint8Array(read.blob()));
  read.done();
  if (type === undefined) return undefined;
  // Copied only now, when nothing can fail any more, because the caller erases the record.
  const draft = { type, ts, key: new Uint8Array(key), nonce: new Uint8Array(nonce) };
  return { id, ref, draft, size, source, hashes, sent, begunAt };
}
