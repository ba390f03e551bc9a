/** An item's file, written where the user wants it: whole, or not at all. */
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { ItemView } from '../../client/events.js';
import type { Context, OpenDevice } from './context.js';
import { NewFile } from './new-file.js';
import { fieldText } from '../../client/payloads/shapes.js';
import { CommandError, EXIT } from '../../device/terminal.js';
import { meter } from './transfer.js';

/** Which item goes where. */
interface Saving {
  readonly item: ItemView;
  readonly output: string;
  readonly force: boolean;
}

/** What was written: the path, or null for standard output. */
export interface Saved {
  readonly file: string | null;
  readonly size: number;
}

/** File systems take names of 255 bytes; a temporary one beside it has some more than its own. */
const NAME_MAX_BYTES = 180;
/** Windows takes these for devices, with any ending. */
const RESERVED = /^(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9\u00b9\u00b2\u00b3])\s*(?:\.|$)/i;

/** The name, cut to what file systems take. A short ending stays: it says what the file is. */
function shortened(name: string): string {
  if (Buffer.byteLength(name) <= NAME_MAX_BYTES) return name;
  const [ending = ''] = /\.[^.]{1,10}$/u.exec(name) ?? [];
  let room = NAME_MAX_BYTES - Buffer.byteLength(ending);
  let kept = '';
  for (const character of name.slice(0, name.length - ending.length)) {
    room -= Buffer.byteLength(character);
    if (room < 0) break;
    kept += character;
  }
  return kept + ending;
}

/** The name that an item's file has by its own payload, made harmless as a file's name: another device wrote it. */
export function fileNameOf({ id, type, payload }: ItemView): string {
  const field = type === 'file' ? 'name' : type === 'video' ? 'title' : 'label';
  const name = (fieldText(payload, field) ?? '')
    .replace(/^.*[/\\]/s, '')
    // Controls, what other systems forbid, and what would hide it or turn its reading direction.
    .replace(/[\p{Cc}\p{Cf}\p{Cs}<>:"|?*]/gu, '_')
    .replace(/^[.\s-]+|[.\s]+$/g, '');
  if (name === '') return type === 'text' ? `${id}.txt` : id;
  return shortened(RESERVED.test(name) ? `_${name}` : name);
}

async function targetOf(output: string, item: ItemView): Promise<string> {
  const found = await stat(output).catch(() => undefined);
  return found?.isDirectory() === true ? join(output, fileNameOf(item)) : output;
}

/**
 * Downloads an item's blob into `output`: a file, a folder in which it gets its own name, or `-` for standard output. A
 * file appears under its name when its last byte has authenticated; what goes to standard output is authenticated piece
 * by piece, and is whole only where this resolves. Throws `CommandError`, and what `Device.blob` throws.
 */
export async function saveBlob(
  { terminal, platform }: Context,
  { device }: OpenDevice,
  { item, output, force }: Saving,
): Promise<Saved> {
  const file = output === '-' ? undefined : await targetOf(output, item);
  const target = file === undefined ? undefined : await NewFile.create(file, force);
  const bar = meter({ terminal, clock: platform.clock }, 'Getting');
  let size = 0;
  try {
    const options = { signal: terminal.interrupted, onProgress: target === undefined ? undefined : bar.onProgress };
    for await (const bytes of device.blob(item.id, options)) {
      size += bytes.length;
      await (target === undefined ? terminal.write(bytes) : target.write(bytes));
    }
    bar.ended();
  } catch (error) {
    bar.ended();
    await target?.abandon();
    throw error;
  }
  await target?.finish();
  return { file: file ?? null, size };
}

/** Writes the text of an item as `saveBlob` writes a file. */
export async function saveText(
  { terminal }: Context,
  { item, output, force, bytes }: Saving & { readonly bytes: Uint8Array },
): Promise<Saved> {
  const size = bytes.length;
  if (output === '-') {
    await terminal.write(bytes);
    return { file: null, size };
  }
  const file = await targetOf(output, item);
  const target = await NewFile.create(file, force);
  try {
    await target.write(bytes);
  } catch (error) {
    await target.abandon();
    throw error;
  }
  await target.finish();
  return { file, size };
}

/** Throws for an item that has no file. */
export function expectFile(item: ItemView): void {
  if (item.blob?.holds !== 'file')
    throw new CommandError(EXIT.usage, `this ${item.type} has no file`, 'Leave --output out.', { code: 'no_blob' });
}
