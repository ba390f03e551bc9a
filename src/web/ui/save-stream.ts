/** Saves a stream of bytes as a file: directly to disk if the browser supports it, else as a download. */
import { saveBlob } from './content.js';

/** Received bytes are moved into blobs of about this size, which are outside of the page's memory. */
const PIECE_BYTES = 4 * 1024 * 1024;

interface Target {
  readonly write: (bytes: Uint8Array<ArrayBuffer>) => Promise<void>;
  readonly close: () => Promise<void>;
  readonly abort: () => Promise<void>;
}

interface Picker {
  showSaveFilePicker?: (options: { suggestedName: string }) => Promise<FileSystemFileHandle>;
}

/** Must be called in a click handler: browsers open the file picker only then. Null: the user cancelled. */
export async function chooseTarget(suggestedName: string): Promise<Target | null> {
  const pick = (globalThis as Picker).showSaveFilePicker;
  if (pick === undefined) return asDownload(suggestedName);
  try {
    const file = await pick({ suggestedName });
    return await file.createWritable();
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') return null;
    throw error;
  }
}

function asDownload(name: string): Target {
  const pieces: Blob[] = [];
  let waiting: Uint8Array<ArrayBuffer>[] = [];
  let size = 0;
  const gather = (): void => {
    pieces.push(new Blob(waiting));
    [waiting, size] = [[], 0];
  };
  return {
    write: (bytes) => {
      waiting.push(bytes);
      size += bytes.length;
      if (size >= PIECE_BYTES) gather();
      return Promise.resolve();
    },
    close: () => {
      gather();
      saveBlob(new Blob(pieces, { type: 'application/octet-stream' }), name);
      return Promise.resolve();
    },
    abort: () => {
      pieces.length = 0;
      waiting = [];
      return Promise.resolve();
    },
  };
}

/** Writes all of `source`. `onBytes` gets the number of bytes so far; a stop leaves no file. Returns the total. */
export async function saveStream(
  source: AsyncIterable<Uint8Array>,
  target: Target,
  { onBytes, stop }: { readonly onBytes: (written: number) => void; readonly stop: AbortSignal },
): Promise<number> {
  let written = 0;
  try {
    for await (const bytes of source) {
      stop.throwIfAborted();
      await target.write(new Uint8Array(bytes));
      onBytes((written += bytes.length));
    }
    stop.throwIfAborted();
  } catch (error) {
    await target.abort();
    throw error;
  }
  await target.close();
  return written;
}
