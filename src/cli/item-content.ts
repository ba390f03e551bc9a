/** The content of an item: as a text, for pipes and the clipboard, or as a file. */
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { ContentType } from '../protocol/item.js';
import type { Device } from '../sdk/device.js';
import type { ItemView } from '../sdk/events.js';
import { fieldsOf, fieldText, mainField } from '../sdk/payloads/shapes.js';
import { saveBlob } from '../sdk/node-download.js';
import { NewFile, writingTo } from '../terminal/new-file.js';
import { CommandError, EXIT } from '../terminal/terminal.js';
import type { Context } from './context.js';
import { meter } from './transfer.js';

/** The item with its whole payload: a large payload is a blob on the server. */
export async function whole(device: Device, item: ItemView, local?: boolean): Promise<ItemView> {
  if (item.blob?.holds !== 'payload') return item;
  if (local === true) throw notHere(`the text of this ${item.type}`);
  return { ...item, payload: await device.payload(item.id) };
}

/** The error of `--local` for content that only the server has. */
export const notHere = (what: string): CommandError =>
  new CommandError(EXIT.unavailable, `${what} is on the server, not here`, 'Omit --local.');

/** The text of a text item, byte for byte as it was put. */
export const textIn = ({ type, payload }: ItemView): string | undefined =>
  type === 'text' || type === 'code' ? fieldText(payload, 'text') : undefined;

/** The content alone: a text, the address of a link, the secret of a password; else the fields, one per line. */
export function contentText(item: ItemView): string {
  const { type, payload } = item;
  const main = mainField(type);
  const value = main === undefined || type === 'contact' ? undefined : fieldText(payload, main);
  if (value !== undefined) return value;
  const lines = fieldsOf(type).flatMap((field) => {
    const text = fieldText(payload, field);
    return text === undefined || text === '' ? [] : [`${field}: ${text.replace(/\s+/g, ' ')}`];
  });
  return lines.join('\n');
}

export interface Saving {
  readonly item: ItemView;
  readonly output: string;
  readonly force: boolean;
  /** Undefined: the item's blob is saved. */
  readonly text?: string | undefined;
}

/** The field that holds the file name of an item of this type. */
export const nameField = (type: ContentType): string =>
  type === 'file' ? 'name' : type === 'video' ? 'title' : 'label';

/** The name of an item's file by its payload, sanitized: another device may have chosen it. */
export function fileNameOf({ id, type, payload }: ItemView): string {
  const name = safeFileName(fieldText(payload, nameField(type)) ?? '');
  return name === '' && type === 'text' ? `${id}.txt` : name || id;
}

async function targetOf(output: string, item: ItemView): Promise<string> {
  const found = await stat(output).catch(() => undefined);
  return found?.isDirectory() === true ? join(output, fileNameOf(item)) : output;
}

/**
 * Writes an item's blob, or its `text`, to `output`: a file, a folder, or `-` for standard output. A file appears under its
 * name when its last byte has been authenticated; standard output is authenticated chunk by chunk and complete only
 * once this resolves. Returns the path, null for standard output. Throws `CommandError`, and what `Device.blob` throws.
 */
export async function saveItem(context: Context, device: Device, { item, output, force, text }: Saving) {
  const { terminal } = context;
  if (output === '-') {
    let size = 0;
    const blob = () => device.blob(item.id, { signal: terminal.interrupted });
    for await (const bytes of text === undefined ? blob() : [Buffer.from(text)]) {
      size += bytes.length;
      await terminal.write(bytes);
    }
    return { file: null, size };
  }
  const file = await targetOf(output, item);
  await NewFile.expectFree(file, force);
  if (text !== undefined) {
    const bytes = Buffer.from(text);
    await NewFile.save(file, bytes, force);
    return { file, size: bytes.length };
  }
  const { onProgress, ended } = meter(context, 'Getting');
  try {
    const options = { signal: terminal.interrupted, onProgress, replace: force };
    return { file, size: await writingTo(file, saveBlob(device, { id: item.id, path: file }, options)) };
  } finally {
    ended();
  }
}

/** File systems limit names to 255 bytes, and the temporary file's name is longer than the final one. */
const NAME_BYTES = 180;
/** Largest name made from a title, bytes. */
export const TITLE_BYTES = 80;
/** Device names of Windows, with any extension. */
const RESERVED = /^(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9\u00b9\u00b2\u00b3])\s*(?:\.|$)/i;

/** The name, truncated for the file system. A short extension is kept. */
function shortened(name: string, most: number): string {
  if (Buffer.byteLength(name) <= most) return name;
  const [ending = ''] = /\.[^.]{1,10}$/u.exec(name) ?? [];
  let room = most - Buffer.byteLength(ending);
  let kept = '';
  for (const character of name.slice(0, name.length - ending.length)) {
    room -= Buffer.byteLength(character);
    if (room < 0) break;
    kept += character;
  }
  return kept + ending;
}

/**
 * Spaces and periods at the end of a name. The lookbehind lets only the first character of a run begin a match: without
 * it a long run takes quadratic time.
 */
const AT_END = /(?<![.\s])[.\s]+$/;

/** A name without path, control characters and device names, at most `most` bytes long; empty if nothing is left. */
export function safeFileName(name: string, most = NAME_BYTES): string {
  const safe = name
    .replace(/^.*[/\\]/s, '')
    // Control and format characters, and characters that other systems forbid.
    .replace(/[\p{Cc}\p{Cf}\p{Cs}<>:"|?*]/gu, '_')
    .replace(/^[.\s-]+/, '')
    .replace(AT_END, '');
  // A name that is cut may end with a space, which Windows drops.
  return shortened(RESERVED.test(safe) ? `_${safe}` : safe, most).replace(AT_END, '');
}
