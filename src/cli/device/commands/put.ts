/** `put`: writes an item, from arguments, a file or standard input. */
import { basename } from 'node:path';
import type { PutRequest } from '../../../client/writer.js';
import type { JsonObject } from '../../../crypto/payload.js';
import type { ContentType } from '../../../protocol/item.js';
import { isUlid } from '../../../protocol/ids.js';
import { DEFAULT_BIN } from '../../../protocol/limits.js';
import type { Context, OpenDevice } from '../context.js';
import { textDetected, type Detected } from '../../../client/payloads/detect.js';
import { PAYLOAD_MAX } from '../../../client/payloads/large.js';
import { mainField } from '../../../client/payloads/shapes.js';
import { languageOf } from '../detect.js';
import { findBin, findItem } from '../find.js';
import { binsOf } from '../known.js';
import { PROGRAM_NAME } from '../names.js';
import { paletteOf, show } from '../output.js';
import { assigned, contentType, notText, shaped } from '../payloads.js';
import { described, foundIn, type Found } from '../put-content.js';
import { examples, type Register } from '../run.js';
import { CommandError, EXIT } from '../terminal.js';
import { meter, sizeText } from '../transfer.js';
import { noteQueued, written } from '../writes.js';

interface Options {
  readonly file?: string;
  readonly type?: string;
  readonly set: readonly string[];
  readonly payload?: string;
  readonly bin?: string;
  readonly id?: string;
  readonly overwrite?: boolean;
}

const gathered = (value: string, before: readonly string[]): readonly string[] => [...before, value];

/** `put [text...]`. */
export const registerPut: Register = (program, run) => {
  program
    .command('put [text...]')
    .summary('write an item: a text, a link, a file, a password, ...')
    .description(
      'Writes the arguments, a file or standard input. What it is, is seen from the content: an address is a link, a ' +
        'source file is code, the rest is text; pictures, recordings, films, and whatever is no text or over 64 KB are files, ' +
        'of any size; --type says otherwise. Fields of the other types come by --set or --payload; ' +
        'the secret of a password is asked for, or read from standard input.',
    )
    .option('--file <path>', 'the content of a file ("-": standard input)')
    .option('--type <type>', 'password, link, text, code, image, file, audio, video, contact or location')
    .option('--set <field=value>', 'a field of the payload; may be repeated', gathered, [])
    .option('--payload <json>', 'all fields as a JSON object ("-": from standard input)')
    .option('--bin <bin>', 'where to: slug, id or name (default: inbox)')
    .option('--id <id>', 'write over this item instead of a new one')
    .option('--overwrite', 'with --id: also where another device changed the item meanwhile')
    .addHelpText(
      'after',
      examples(
        `${PROGRAM_NAME} put "milk, bread"`,
        `${PROGRAM_NAME} put https://example.org --bin reading`,
        `${PROGRAM_NAME} put --file holiday.mp4`,
        `tar c notes | ${PROGRAM_NAME} put --file - --type file --set name=notes.tar`,
        `git diff | ${PROGRAM_NAME} put --type code --set lang=diff`,
        `${PROGRAM_NAME} put --type password --set service=mail --set user=me@example.org`,
      ),
    )
    .action(run(put));
};

async function put(context: Context, words: readonly string[], options: Options): Promise<void> {
  const found = await contentOf(context, words, options);
  try {
    await context.withDevice((device) => write(context, { found, device, options }));
  } finally {
    await found.content?.close();
  }
}

async function write(
  context: Context,
  { found, device, options }: { readonly found: Found; readonly device: OpenDevice; readonly options: Options },
): Promise<void> {
  const { terminal, platform } = context;
  const { type, payload, content } = found;
  const target = await targetOf(context, device, options);
  const onConflict = options.overwrite === true ? 'overwrite' : 'fail';
  const bar = meter({ terminal, clock: platform.clock }, 'Putting');
  const transfer = { content, signal: terminal.interrupted, onProgress: bar.onProgress };
  const outcome = await written(device.device.put({ ...target, type, payload, onConflict, ...transfer })).finally(
    bar.ended,
  );
  const size = content === undefined ? {} : { size: content.size };
  show(terminal, { ...outcome, type, binId: target.binId, ...size }, () => [
    `${outcome.queued ? 'Kept' : paletteOf(terminal).good('Written')}: ${outcome.id}  ${type}` +
      (content === undefined ? '' : `  ${sizeText(content.size)}`),
  ]);
  noteQueued(terminal, [outcome]);
}

/** Which item is written, and where it lies. An item that is written over stays where it is, unless told otherwise. */
async function targetOf(
  context: Context,
  open: OpenDevice,
  { id, bin }: Options,
): Promise<Pick<PutRequest, 'id' | 'binId'>> {
  const binId = bin === undefined || bin === DEFAULT_BIN ? bin : findBin(await binsOf(context, open), bin).id;
  if (id === undefined) return { binId: binId ?? DEFAULT_BIN };
  const items = await open.device.list();
  // A whole id that is not here yet is the caller's own: scripts name their items so that a repeat is no second one.
  const known = isUlid(id) ? items.find((item) => item.id === id) : findItem(items, id);
  return { id: known?.id ?? id, binId: binId ?? known?.binId ?? DEFAULT_BIN };
}

async function contentOf(context: Context, words: readonly string[], options: Options): Promise<Found> {
  const type = options.type === undefined ? undefined : contentType(options.type);
  const { set, payload: json } = options;
  const sources = [words.length > 0, options.file !== undefined, json !== undefined].filter(Boolean).length;
  if (sources > 1) throw new CommandError(EXIT.usage, 'give one of: text, --file, --payload');
  if (json !== undefined) return withFields(type ?? requiredType(), await jsonPayload(context, json), set);
  if (type !== undefined && (type === 'contact' || type === 'location') && sources === 0)
    return withFields(type, {}, set);
  if (type === 'password') return passwordOf(context, words, options);
  const found = await detected(context, words, options, type);
  if (found.content !== undefined) return fileWithFields(found, set);
  if (type === undefined || type === found.type) return withFields(found.type, found.payload, set);
  return withFields(type, under(type, found, options.file), set);
}

async function fileWithFields(found: Found, set: readonly string[]): Promise<Found> {
  try {
    const payload = shaped(found.type, described(found, assigned(found.type, set)), { file: true });
    return { ...found, payload };
  } catch (error) {
    await found.content?.close();
    throw error;
  }
}

function requiredType(): never {
  throw new CommandError(EXIT.usage, '--payload needs --type');
}

const withFields = (type: ContentType, payload: JsonObject, set: readonly string[]): Detected => ({
  type,
  payload: shaped(type, { ...payload, ...assigned(type, set) }),
});

/** Content that was taken for one type, as another: its text becomes the main field. */
function under(type: ContentType, found: Detected, file: string | undefined): JsonObject {
  const main = mainField(type);
  if (main === undefined) throw new CommandError(EXIT.usage, `a ${type} is given by --set or --payload`);
  const own = mainField(found.type) ?? '';
  const text = found.payload[own];
  if (type !== 'code' || file === undefined || file === '-') return { [main]: text };
  return { [main]: text, label: basename(file), lang: languageOf(file) ?? '' };
}

async function detected(
  context: Context,
  words: readonly string[],
  { file }: Options,
  type: ContentType | undefined,
): Promise<Found> {
  if (words.length > 0) return textDetected(words.join(' '));
  if (file !== undefined) return foundIn(context, file, type);
  if (context.terminal.interactive) {
    throw new CommandError(EXIT.usage, 'what should be written?', `For example: ${PROGRAM_NAME} put "milk, bread"`);
  }
  return foundIn(context, '-', type);
}

/** The secret is never an argument: those stand in the list of processes and in the shell's history. */
async function passwordOf(context: Context, words: readonly string[], options: Options): Promise<Detected> {
  const { terminal } = context;
  const { set, file } = options;
  if (words.length > 0 || set.some((pair) => pair.startsWith('secret='))) {
    throw new CommandError(
      EXIT.usage,
      'a secret is not given as an argument, where others can read it',
      'Leave it out and it is asked for; or pipe it in.',
    );
  }
  const hidden = { hidden: true };
  const typed =
    file === undefined && terminal.interactive
      ? await terminal.ask('Secret: ', hidden)
      : await secretText(context, file ?? '-');
  return withFields('password', { secret: typed.replace(/\r?\n$/, '') }, set);
}

async function secretText(context: Context, file: string): Promise<string> {
  const { payload, content } = await foundIn(context, file, 'text');
  await content?.close();
  const text = payload['text'];
  if (typeof text !== 'string') throw notText('a secret');
  return text;
}

async function jsonPayload({ terminal }: Context, given: string): Promise<JsonObject> {
  const text = given === '-' ? (await terminal.readInput(PAYLOAD_MAX)).toString('utf8') : given;
  const bad = new CommandError(EXIT.usage, '--payload is not a JSON object', undefined, { code: 'bad_payload' });
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    // The parser's message would quote the payload.
    throw bad;
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) throw bad;
  return value as JsonObject;
}
