/** `get`: prints an item, gives its content to a pipe, or saves its file atomically. */
import { stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { ItemView } from '../../sdk/events.js';
import { fieldsOf, fieldText, isSecretField, mainField } from '../../sdk/payloads/shapes.js';
import type { Context, DeviceCommand, OpenDevice } from '../context.js';
import { safeFileName } from '../file-name.js';
import { findItem } from '../find.js';
import { NewFile } from '../../terminal/new-file.js';
import { facts, sanitizeText, sanitizeLines, onScreen, paletteOf, relative, show } from '../../terminal/output.js';
import { CommandError, EXIT } from '../../terminal/terminal.js';
import { meter, sizeText } from '../transfer.js';
import { binName, itemFacts, surroundings, type Surroundings } from '../views.js';

interface Options {
  readonly field?: string;
  readonly show?: boolean;
  readonly local?: boolean;
  readonly output?: string;
  readonly force?: boolean;
}

const MASK = '********';

/** `get <id>`. */
export function registerGet(program: DeviceCommand): void {
  program
    .command('get <id>')
    .summary('read an item')
    .description(
      'Shows an item; the beginning of its id is enough where no other begins like it. A pipe gets the content alone: the ' +
        'text, the address of a link, the secret of a password, the bytes of a file. On a screen secrets are masked.',
    )
    .option('--field <name>', 'this field alone')
    .option('--show', 'secrets too, on a screen')
    .option('-o, --output <path>', 'write the file, or the text, there: a name, a folder, or - for standard output')
    .option('--force', 'with --output: replace a file of that name')
    .option('--local', 'ask the server nothing')
    .examples('get 01J9ZC4', 'get 01J9ZC4 --field user', 'get 01J9ZC4 | wl-copy', 'get 01J9ZC4 --output ~/Downloads')
    .does(get);
}

async function get(context: Context, id: string, options: Options): Promise<void> {
  const { terminal } = context;
  const sync = options.local === true ? 'local' : 'catch up';
  await context.withDevice(
    async (open) => {
      const item = await whole(open, findItem(await open.device.list(), id), options);
      if (options.local === true && givesFile(terminal, item, options)) throw notHere(`the file of this ${item.type}`);
      if (options.output !== undefined)
        return saved(context, open, { item, output: options.output, force: options.force === true });
      const masked = onScreen(terminal) && options.show !== true;
      if (options.field !== undefined) return printField(context, { item, field: options.field, masked });
      const around = await surroundings(context, open);
      if (terminal.json) terminal.data({ ...itemFacts(item, around), payload: payloadOf(item, masked) });
      else if (onScreen(terminal)) printCard(context, { item, around, masked });
      else if (givesFile(terminal, item, options)) await saveItem(context, open, { item, output: '-', force: false });
      else await printContent(context, item);
    },
    { sync },
  );
}

/** True where the bytes of the item's file are requested: by `--output`, or by a pipe. */
const givesFile = (terminal: Context['terminal'], { blob }: ItemView, { output, field }: Options): boolean =>
  blob?.holds === 'file' && (output !== undefined || (field === undefined && !terminal.json && !onScreen(terminal)));

/** The item with its whole payload: a large one is a blob of the server. */
async function whole({ device }: OpenDevice, item: ItemView, { local }: Options): Promise<ItemView> {
  if (item.blob?.holds !== 'payload') return item;
  if (local === true) throw notHere(`the text of this ${item.type}`);
  return { ...item, payload: await device.payload(item.id) };
}

/** The error of `--local` for content that only the server has. */
const notHere = (what: string): CommandError =>
  new CommandError(EXIT.unavailable, `${what} is with the server, not here`, 'Leave --local out.');

async function saved(context: Context, open: OpenDevice, what: Saving): Promise<void> {
  const { terminal } = context;
  const { item, output } = what;
  const text = item.blob?.holds === 'file' ? undefined : textIn(item);
  if (text === undefined && item.blob?.holds !== 'file')
    throw new CommandError(EXIT.usage, `this ${item.type} has no file`, 'Leave --output out.', { code: 'no_blob' });
  if (output === '-' && terminal.json)
    throw new CommandError(EXIT.usage, 'with --json standard output is JSON', 'Give --output a file name.');
  const { file, size } = await saveItem(context, open, { ...what, text });
  if (file === null) return;
  show(terminal, { id: item.id, file, size }, () => [
    `${paletteOf(terminal).good('Saved')}: ${sanitizeText(file)}  ${sizeText(size)}`,
  ]);
}

function payloadOf({ type, payload }: ItemView, masked: boolean): unknown {
  if (payload === null || !masked) return payload;
  const entries = Object.entries(payload).map(([field, value]) => [field, isSecretField(type, field) ? null : value]);
  return Object.fromEntries(entries);
}

function printField(
  { terminal }: Context,
  { item, field, masked }: { readonly item: ItemView; readonly field: string; readonly masked: boolean },
): void {
  const { type, payload } = item;
  const value = fieldText(payload, field);
  const fields = `Fields: ${fieldsOf(type).join(', ')}.`;
  if (value === undefined)
    throw new CommandError(EXIT.notFound, `this ${type} has no such field`, fields, { code: 'no_field' });
  const hidden = masked && isSecretField(type, field);
  if (terminal.json) terminal.data({ id: item.id, field, value: hidden ? null : payload?.[field] });
  else terminal.print(hidden ? MASK : onScreen(terminal) ? sanitizeLines(value) : value);
  if (hidden) terminal.note('It is masked. Add --show to see it.');
}

/** The text of a text item, byte for byte as it was put. */
const textIn = ({ type, payload }: ItemView): string | undefined =>
  type === 'text' || type === 'code' ? fieldText(payload, 'text') : undefined;

/** The content alone, for a pipe. What is not a text of its own ends with a line break. */
async function printContent({ terminal }: Context, item: ItemView): Promise<void> {
  const { type, payload } = item;
  const text = textIn(item);
  if (text !== undefined) return terminal.write(Buffer.from(text));
  const main = mainField(type);
  const value = main === undefined ? undefined : fieldText(payload, main);
  if (value !== undefined && type !== 'contact') {
    terminal.print(value.replace(/\n$/, ''));
    return;
  }
  for (const field of fieldsOf(type)) {
    const text = fieldText(payload, field);
    if (text !== undefined && text !== '') terminal.print(`${field}: ${text.replace(/\s+/g, ' ')}`);
  }
}

function printCard(
  { terminal, platform }: Context,
  { item, around, masked }: { readonly item: ItemView; readonly around: Surroundings; readonly masked: boolean },
): void {
  const { type, payload } = item;
  const main = type === 'text' || type === 'code' ? 'text' : undefined;
  const { dim } = paletteOf(terminal);
  const rows = fieldsOf(type).flatMap((field): [string, string][] => {
    const value = fieldText(payload, field);
    if (value === undefined || value === '' || field === main) return [];
    return [[field, masked && isSecretField(type, field) ? MASK : sanitizeLines(value)]];
  });
  const { sender } = itemFacts(item, around);
  const when = relative(item.ts, platform.clock.now());
  const about = `${type} in ${binName(around.bins, item.binId)}, written ${when} by ${sender}`;
  terminal.print(dim(sanitizeLines(`${item.id}  ${about}${item.pending ? ' (queued)' : ''}`)));
  for (const line of facts(terminal, rows)) terminal.print(line);
  if (main !== undefined) terminal.print(sanitizeLines(fieldText(payload, main) ?? '').replace(/\n$/, ''));
  if (item.blob?.holds === 'file') terminal.note('Add --output <path> to save the file.');
  if (masked && rows.some(([field]) => isSecretField(type, field))) terminal.note('Masked. Add --show to see it.');
}

/** What to save, and where. */
interface Saving {
  readonly item: ItemView;
  readonly output: string;
  readonly force: boolean;
}

/** The name of an item's file by its payload, sanitized: another device may have chosen it. */
export function fileNameOf({ id, type, payload }: ItemView): string {
  const field = type === 'file' ? 'name' : type === 'video' ? 'title' : 'label';
  const name = safeFileName(fieldText(payload, field) ?? '');
  return name === '' && type === 'text' ? `${id}.txt` : name || id;
}

async function targetOf(output: string, item: ItemView): Promise<string> {
  const found = await stat(output).catch(() => undefined);
  return found?.isDirectory() === true ? join(output, fileNameOf(item)) : output;
}

/**
 * Writes an item's blob, or its `text`, to `output`: a file, a folder, or `-` for standard output. A file appears under its
 * name when its last byte has been authenticated; standard output is authenticated chunk by chunk and complete only where
 * this resolves. Returns the path, null for standard output. Throws `CommandError`, and what `Device.blob` throws.
 */
async function saveItem(
  { terminal, platform }: Context,
  { device }: OpenDevice,
  { item, output, force, text }: Saving & { readonly text?: string | undefined },
): Promise<{ readonly file: string | null; readonly size: number }> {
  const file = output === '-' ? undefined : await targetOf(output, item);
  const target = file === undefined ? undefined : await NewFile.create(file, force);
  const bar = meter({ terminal, clock: platform.clock }, 'Getting');
  const onProgress = target === undefined ? undefined : bar.onProgress;
  const blob = () => device.blob(item.id, { signal: terminal.interrupted, onProgress });
  let size = 0;
  try {
    for await (const bytes of text === undefined ? blob() : [Buffer.from(text)]) {
      size += bytes.length;
      await (target === undefined ? terminal.write(bytes) : target.write(bytes));
    }
  } catch (error) {
    await target?.abandon();
    throw error;
  } finally {
    bar.ended();
  }
  await target?.finish();
  return { file: file ?? null, size };
}
