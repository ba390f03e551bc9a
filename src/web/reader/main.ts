/**
 * The reader: a worker for one file of another program. Such a file is hostile input to large parsers: here it can stop
 * neither a page nor the engine, which ends this worker at will, and this worker is never given a key.
 */
import { accountOf } from '../../import/account.js';
import { type Entry, ForeignError, type ForeignProgram, type Secrets, WrongPassword } from '../../import/entries.js';
import { type ForeignFile, readForeignFile } from '../../import/formats.js';
import { KEY_FILE_MAX } from '../../import/keepass.js';
import type { ReadEntry, ReaderAnswer, ReaderRequest } from './messages.js';

/** The file is locked, and no password was given. */
class Locked extends Error {}

self.onmessage = ({ data }: MessageEvent<ReaderRequest>) => {
  answerTo(data).then(
    (answer) => self.postMessage(answer),
    // An error that no reader expects: the engine gets it as that of the worker.
    (error: unknown) =>
      setTimeout(() => {
        throw error;
      }),
  );
};

async function answerTo({ file, password, keyFile }: ReaderRequest): Promise<ReaderAnswer> {
  let program: ForeignProgram = 'bitwarden';
  const secrets: Secrets = {
    unlock: (locked, open) => {
      program = locked;
      if (password === null) throw new Locked();
      return open(password);
    },
    keyFile: async () => {
      if (keyFile === null) return undefined;
      if (keyFile.size > KEY_FILE_MAX)
        throw new ForeignError('the key file', `it has ${keyFile.size} bytes, and is none`);
      return new Uint8Array(await keyFile.arrayBuffer());
    },
  };
  try {
    const found = await readForeignFile(sourceOf(file), secrets);
    if (found === undefined) throw new ForeignError('', 'it is not an export of a program that is known here');
    const { entries, ...source } = found;
    const read: ReadEntry[] = [];
    for (const entry of entries) read.push(await withBlobs(entry));
    return { kind: 'read', source, entries: read, account: accountOf(found) };
  } catch (error) {
    if (error instanceof Locked || error instanceof WrongPassword)
      return { kind: 'locked', program, wrong: error instanceof WrongPassword };
    if (!(error instanceof ForeignError)) throw error;
    const { where, why, hint } = error;
    return { kind: 'refused', where, why, hint };
  }
}

const sourceOf = (file: File): ForeignFile => ({
  size: file.size,
  read: async (length) => new Uint8Array(await file.slice(0, length).arrayBuffer()),
});

/** By its bytes: the entries of a database may share an attachment, which is then in memory once. */
const blobs = new WeakMap<Uint8Array, Blob>();

function blobOf(bytes: Uint8Array): Blob {
  const blob = blobs.get(bytes) ?? new Blob([new Uint8Array(bytes)]);
  blobs.set(bytes, blob);
  return blob;
}

async function withBlobs({ made, ...entry }: Entry): Promise<ReadEntry> {
  const items: ReadEntry['made'][number][] = [];
  for (const { content, ...item } of made) {
    const parts: BlobPart[] = [];
    for await (const bytes of content?.open() ?? []) parts.push(blobOf(bytes));
    items.push({ ...item, content: content === undefined ? null : new Blob(parts) });
  }
  return { ...entry, made: items };
}
