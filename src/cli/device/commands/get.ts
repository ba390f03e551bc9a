/** `get`: one item. */
import type { ItemView } from '../../../client/events.js';
import type { Context, OpenDevice } from '../context.js';
import { findItem } from '../find.js';
import { PROGRAM_NAME } from '../names.js';
import { facts, harmless, harmlessLines, onScreen, paletteOf, relative, show } from '../output.js';
import { fieldsOf, fieldText, isSecretField, mainField } from '../../../client/payloads/shapes.js';
import { examples, type Register } from '../run.js';
import { expectFile, saveBlob, saveText } from '../save.js';
import { CommandError, EXIT } from '../../../device/terminal.js';
import { sizeText } from '../transfer.js';
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
export const registerGet: Register = (program, run) => {
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
    .addHelpText(
      'after',
      examples(
        `${PROGRAM_NAME} get 01J9ZC4`,
        `${PROGRAM_NAME} get 01J9ZC4 --field user`,
        `${PROGRAM_NAME} get 01J9ZC4 | wl-copy`,
        `${PROGRAM_NAME} get 01J9ZC4 --output ~/Downloads`,
      ),
    )
    .action(run(get));
};

async function get(context: Context, id: string, options: Options): Promise<void> {
  const { terminal } = context;
  const sync = options.local === true ? 'local' : 'catch up';
  await context.withDevice(
    async (open) => {
      const item = await whole(open, findItem(await open.device.list(), id), options);
      if (options.local === true && givesFile(terminal, item, options)) throw notHere(`the file of this ${item.type}`);
      if (options.output !== undefined) {
        await saved(context, open, { item, output: options.output, force: options.force === true });
        return;
      }
      const masked = onScreen(terminal) && options.show !== true;
      if (options.field !== undefined) {
        printField(context, { item, field: options.field, masked });
        return;
      }
      const around = await surroundings(context, open);
      if (terminal.json) terminal.data({ ...itemFacts(item, around), payload: payloadOf(item, masked) });
      else if (onScreen(terminal)) printCard(context, { item, around, masked });
      else if (givesFile(terminal, item, options)) await saveBlob(context, open, { item, output: '-', force: false });
      else await printContent(context, item);
    },
    { sync },
  );
}

/** Whether the bytes of the item's file are asked for: by `--output`, or by a pipe that takes the content alone. */
const givesFile = (terminal: Context['terminal'], { blob }: ItemView, { output, field }: Options): boolean =>
  blob?.holds === 'file' && (output !== undefined || (field === undefined && !terminal.json && !onScreen(terminal)));

/** The item with its whole payload: a large text lies in the store. */
async function whole({ device }: OpenDevice, item: ItemView, { local }: Options): Promise<ItemView> {
  if (item.blob?.holds !== 'payload') return item;
  if (local === true) throw notHere(`the text of this ${item.type}`);
  return { ...item, payload: await device.payload(item.id) };
}

/** What `--local` cannot give: content of the store is kept on no device. */
const notHere = (what: string): CommandError =>
  new CommandError(EXIT.unavailable, `${what} is with the server, not here`, 'Leave --local out.');

async function saved(
  context: Context,
  open: OpenDevice,
  what: { readonly item: ItemView; readonly output: string; readonly force: boolean },
): Promise<void> {
  const { terminal } = context;
  const text = what.item.blob?.holds === 'file' ? undefined : textIn(what.item);
  if (text === undefined) expectFile(what.item);
  if (what.output === '-' && terminal.json)
    throw new CommandError(EXIT.usage, 'with --json standard output is JSON', 'Give --output a file name.');
  const { file, size } = await (text === undefined
    ? saveBlob(context, open, what)
    : saveText(context, { ...what, bytes: Buffer.from(text) }));
  if (file === null) return;
  show(terminal, { id: what.item.id, file, size }, () => [
    `${paletteOf(terminal).good('Saved')}: ${harmless(file)}  ${sizeText(size)}`,
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
  if (value === undefined) {
    throw new CommandError(EXIT.notFound, `this ${type} has no such field`, `Fields: ${fieldsOf(type).join(', ')}.`, {
      code: 'no_field',
    });
  }
  const hidden = masked && isSecretField(type, field);
  if (terminal.json) terminal.data({ id: item.id, field, value: hidden ? null : payload?.[field] });
  else terminal.print(hidden ? MASK : onScreen(terminal) ? harmlessLines(value) : value);
  if (hidden) terminal.note('It is masked. Add --show to see it.');
}

/** The text of an item that is one: what was put comes back byte for byte. */
const textIn = ({ type, payload }: ItemView): string | undefined =>
  type === 'text' || type === 'code' ? fieldText(payload, 'text') : undefined;

/** For a pipe: the content as it is, nothing around it; what is no text of its own ends its line. */
async function printContent({ terminal }: Context, item: ItemView): Promise<void> {
  const { type, payload } = item;
  const text = textIn(item);
  if (text !== undefined) {
    await terminal.write(Buffer.from(text));
    return;
  }
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
    return [[field, masked && isSecretField(type, field) ? MASK : harmlessLines(value)]];
  });
  const { sender } = itemFacts(item, around);
  const when = relative(item.ts, platform.clock.now());
  const about = `${type} in ${binName(around.bins, item.binId)}, written ${when} by ${sender}`;
  terminal.print(dim(harmlessLines(`${item.id}  ${about}${item.pending ? ' (queued)' : ''}`)));
  for (const line of facts(terminal, rows)) terminal.print(line);
  if (main !== undefined) terminal.print(harmlessLines(fieldText(payload, main) ?? '').replace(/\n$/, ''));
  if (item.blob?.holds === 'file') terminal.note('Add --output <path> to save the file.');
  if (masked && rows.some(([field]) => isSecretField(type, field))) terminal.note('Masked. Add --show to see it.');
}
