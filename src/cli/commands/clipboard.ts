/** `copy` puts an item's content into the clipboard; `paste` writes the clipboard's text as a new item. */
import { PAYLOAD_MAX, detectText, titleOf } from '../../sdk/payloads/shapes.js';
import { isVisible } from '../../protocol/ids.js';
import { sanitizeText, show } from '../../terminal/output.js';
import { CommandError, EXIT, usageError } from '../../terminal/terminal.js';
import * as clipboard from '../clipboard.js';
import type { Context, DeviceCommand } from '../context.js';
import { textOf } from '../../import/detect.js';
import { failureOf } from '../failure.js';
import { chosenItem } from '../find.js';
import { contentText, whole } from '../item-content.js';
import { itemsAndList } from '../listed.js';
import { blankText, notText, shaped } from '../put-content.js';
import { putFound } from './put.js';

const SECONDS = clipboard.CLEAR_AFTER_MS / 1_000;

export function registerClipboard(program: DeviceCommand): void {
  program
    .command('copy [id]')
    .summary('copy an item to the clipboard')
    .description(
      'Copies the content of an item, or of the newest: the text, the address of a link, the secret of a password. A secret ' +
        `is cleared after ${SECONDS} s. Nothing of it is printed.`,
    )
    .option('--last', 'the newest item, as without an id')
    .examples('copy', 'copy 3')
    .does(copy);
  program
    .command('paste')
    .summary('put the content of the clipboard')
    .description('Writes the text in the clipboard as a new item: an address is a link, other text is text.')
    .option('-b, --bin <bin>', 'where to: name, slug or id (default: inbox)')
    .examples('paste', 'paste -b shopping')
    .changes(paste);
}

async function copy(context: Context, id: string | undefined, { last }: { readonly last?: boolean }): Promise<void> {
  const { terminal, platform } = context;
  await context.withDevice(async (open) => {
    const item = await whole(open.device, chosenItem(await itemsAndList(context, open), id, last));
    if (item.blob?.holds === 'file') {
      const hint = 'Save it: `get` with --output <path>.';
      throw usageError(`this ${item.type} is a file, which is not copied`, hint, 'no_text');
    }
    const text = contentText(item);
    if (text === '') throw usageError(`this ${item.type} is empty`, undefined, 'no_text');
    const by = await clipboard.copyText(terminal, platform.clock, text);
    const secret = item.type === 'password' ? text : undefined;
    const cleared = await clearing(context, secret, by);
    const title = titleOf(item.type, item.payload);
    const clearedAfterMs = cleared ? clipboard.CLEAR_AFTER_MS : null;
    show(terminal, { id: item.id, title, by: by === 'terminal' ? by : 'tool', clearedAfterMs }, () => [
      `Copied: ${sanitizeText(title)}${cleared ? ` (cleared after ${SECONDS} s)` : ''}`,
    ]);
    if (by === 'terminal') terminal.note('The terminal was asked to copy it; not every one does.');
    if (by === 'terminal' && cleared) terminal.note('Its clipboard is then cleared without being read.');
  });
}

/** Schedules the clearing of a secret, and cancels that of an earlier one. True: the secret will be cleared. */
async function clearing(context: Context, secret: string | undefined, by: clipboard.CopiedBy): Promise<boolean> {
  if (secret === undefined) {
    await clipboard.replaceCopied(context);
    return false;
  }
  try {
    await clipboard.clearLater(context, secret, by);
    return true;
  } catch (error) {
    // The secret is in the clipboard already, so the user has to know.
    context.terminal.note(`Warning: it stays in the clipboard until you clear it: ${failureOf(error).message}`);
    return false;
  }
}

async function paste(context: Context, options: { readonly bin?: string }): Promise<void> {
  const { terminal, platform } = context;
  const tools = clipboard.clipboardTools(terminal.env);
  if (tools.length === 0) throw clipboard.noClipboard(terminal.env, 'no clipboard can be read here');
  let bytes: Buffer | undefined;
  for (const one of tools) bytes ??= await clipboard.pasteBy({ env: terminal.env, clock: platform.clock }, one);
  const none = `the clipboard holds no text, or more than ${PAYLOAD_MAX} bytes`;
  if (bytes === undefined) throw new CommandError(EXIT.notFound, none, undefined, { code: 'no_text' });
  const text = textOf(bytes);
  if (text === undefined) throw notText('the clipboard content is not text');
  if (!isVisible(text)) throw blankText('the clipboard');
  const { type, payload } = detectText(text);
  await putFound(context, { type, payload: shaped(type, payload) }, options);
}
