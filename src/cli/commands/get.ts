/** `get`: prints an item, writes its content to a pipe, or saves its file atomically. */
import type { Device } from '../../sdk/device.js';
import type { ItemView } from '../../sdk/events.js';
import { fieldsOf, fieldText, isSecretField } from '../../sdk/payloads/shapes.js';
import type { Context, DeviceCommand } from '../context.js';
import { chosenItem } from '../find.js';
import { contentText, notHere, saveItem, type Saving, textIn, whole } from '../item-content.js';
import { itemsAndList } from '../listed.js';
import { facts, sanitizeText, sanitizeLines, paletteOf, relative, show } from '../../terminal/output.js';
import { CommandError, EXIT, type Terminal, usageError } from '../../terminal/terminal.js';
import type { CommandOptions } from '../../terminal/program.js';
import { sizeText } from '../transfer.js';
import { binName, itemFacts, surroundings, type Surroundings } from '../views.js';

type Options = CommandOptions<'field' | 'output', 'last' | 'show' | 'local' | 'force'>;

const MASK = '********';

export function registerGet(program: DeviceCommand): void {
  program
    .command('get [id]')
    .summary('read an item')
    .description(
      'Shows an item, named by its number in the last list or by its id. A pipe gets only the content: the text, the ' +
        'address of a link, the secret of a password, the bytes of a file. On a screen secrets are masked.',
    )
    .option('--last', 'the newest item')
    .option('--field <name>', 'only this field')
    .option('--show', 'secrets too, on a screen')
    .option('-o, --output <path>', 'where to write the file or the text: a name, a folder, or - for standard output')
    .option('--force', 'with --output: replace a file of that name')
    .option('--local', 'do not contact the server')
    .examples('get 3', 'get --last', 'get 8F3KQ --field user', 'get 8F3KQ --output ~/Downloads')
    .does(get);
}

async function get(context: Context, id: string | undefined, options: Options): Promise<void> {
  const { terminal } = context;
  if (id === undefined && options.last !== true)
    throw usageError('which item?', 'Give its number in the last list, its id, or --last.');
  const sync = options.local === true ? 'local' : 'catch up';
  await context.withDevice(async (open) => {
    const { device } = open;
    const item = await whole(device, chosenItem(await itemsAndList(context, open), id, options.last), options.local);
    if (options.local === true && wantsFile(terminal, item, options)) throw notHere(`the file of this ${item.type}`);
    if (options.output !== undefined)
      return save(context, device, { item, output: options.output, force: options.force === true });
    const masked = terminal.onScreen && options.show !== true;
    if (options.field !== undefined) return printField(terminal, item, options.field, masked);
    const around = await surroundings(context, open);
    if (terminal.json) terminal.data({ ...itemFacts(item, around), payload: payloadOf(item, masked) });
    else if (terminal.onScreen) printCard(context, item, around, masked);
    else if (wantsFile(terminal, item, options)) await saveItem(context, device, { item, output: '-', force: false });
    else await printContent(terminal, item);
  }, sync);
}

/** True where the bytes of the item's file are requested: with `--output`, or by a pipe. */
const wantsFile = (terminal: Terminal, { blob }: ItemView, { output, field }: Options): boolean =>
  blob?.holds === 'file' && (output !== undefined || (field === undefined && !terminal.json && !terminal.onScreen));

/** `get --output`: saves a file, or the text of an item. */
async function save(context: Context, device: Device, saving: Saving): Promise<void> {
  const { terminal } = context;
  const { item, output } = saving;
  const text = textIn(item);
  if (text === undefined && item.blob?.holds !== 'file')
    throw usageError(`this ${item.type} has no file`, 'Omit --output.', 'no_blob');
  if (output === '-' && terminal.json)
    throw usageError('with --json standard output is JSON', 'Give --output a file name.');
  const { file, size } = await saveItem(context, device, { ...saving, text });
  if (file === null) return;
  show(terminal, { id: item.id, file, size }, () => [
    `${paletteOf(terminal).good('Saved')}: ${sanitizeText(file)}  ${sizeText(size)}`,
  ]);
}

/** The payload for JSON output; `masked`: secrets are null. */
function payloadOf({ type, payload }: ItemView, masked: boolean): unknown {
  if (payload === null || !masked) return payload;
  const entries = Object.entries(payload).map(([field, value]) => [field, isSecretField(type, field) ? null : value]);
  return Object.fromEntries(entries);
}

function printField(terminal: Terminal, item: ItemView, field: string, masked: boolean): void {
  const { type, payload } = item;
  const value = fieldText(payload, field);
  const fields = `Fields: ${fieldsOf(type).join(', ')}.`;
  if (value === undefined)
    throw new CommandError(EXIT.notFound, `this ${type} has no such field`, fields, { code: 'no_field' });
  const hidden = masked && isSecretField(type, field);
  if (terminal.json) terminal.data({ id: item.id, field, value: hidden ? null : payload?.[field] });
  else terminal.print(hidden ? MASK : terminal.onScreen ? sanitizeLines(value) : value);
  if (hidden) terminal.note('It is masked. Add --show to see it.');
}

/** The content alone, for a pipe: a text item byte for byte, anything else with a line break at its end. */
async function printContent(terminal: Terminal, item: ItemView): Promise<void> {
  const text = textIn(item);
  if (text !== undefined) return terminal.write(Buffer.from(text));
  terminal.print(contentText(item).replace(/\n$/, ''));
}

function printCard({ terminal, platform }: Context, item: ItemView, around: Surroundings, masked: boolean): void {
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
