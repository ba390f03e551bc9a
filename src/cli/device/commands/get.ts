/** `get`: one item. */
import type { ItemView } from '../../../client/events.js';
import type { Context } from '../context.js';
import { findItem } from '../find.js';
import { PROGRAM_NAME } from '../names.js';
import { facts, harmlessLines, onScreen, paletteOf, relative } from '../output.js';
import { fieldsOf, fieldText, isSecretField, mainField } from '../../../client/payload-shapes.js';
import { examples, type Register } from '../run.js';
import { CommandError, EXIT } from '../terminal.js';
import { binName, itemFacts, surroundings, type Surroundings } from '../views.js';

interface Options {
  readonly field?: string;
  readonly show?: boolean;
  readonly local?: boolean;
}

const MASK = '********';

/** `get <id>`. */
export const registerGet: Register = (program, run) => {
  program
    .command('get <id>')
    .summary('read an item')
    .description(
      'Shows an item; the beginning of its id is enough where no other begins like it. A pipe gets the content alone: the ' +
        'text, the address of a link, the secret of a password. On a screen secrets are masked.',
    )
    .option('--field <name>', 'this field alone')
    .option('--show', 'secrets too, on a screen')
    .option('--local', 'ask the server nothing')
    .addHelpText(
      'after',
      examples(
        `${PROGRAM_NAME} get 01J9ZC4`,
        `${PROGRAM_NAME} get 01J9ZC4 --field user`,
        `${PROGRAM_NAME} get 01J9ZC4 | wl-copy`,
      ),
    )
    .action(run(get));
};

async function get(context: Context, id: string, options: Options): Promise<void> {
  const { terminal } = context;
  const sync = options.local === true ? 'local' : 'catch up';
  await context.withDevice(
    async (open) => {
      const item = findItem(await open.device.list(), id);
      const masked = onScreen(terminal) && options.show !== true;
      if (options.field !== undefined) {
        printField(context, { item, field: options.field, masked });
        return;
      }
      const around = await surroundings(context, open);
      if (terminal.json) terminal.data({ ...itemFacts(item, around), payload: payloadOf(item, masked) });
      else if (onScreen(terminal)) printCard(context, { item, around, masked });
      else printContent(context, item);
    },
    { sync },
  );
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

/** For a pipe: the content as it is, nothing around it. */
function printContent({ terminal }: Context, { type, payload }: ItemView): void {
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
  if (masked && rows.some(([field]) => isSecretField(type, field))) terminal.note('Masked. Add --show to see it.');
}
