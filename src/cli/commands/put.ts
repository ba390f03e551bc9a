/** `put`: writes an item, from arguments, a file or standard input. */
import { basename } from 'node:path';
import { withBriefDevice } from '../../device/brief-device.js';
import type { Device } from '../../sdk/device.js';
import { UncertifiedDeviceError } from '../../sdk/errors.js';
import type { JsonObject } from '../../crypto/payload.js';
import { isObject, parsedJson } from '../../protocol/bytes.js';
import { asError } from '../../protocol/error-code.js';
import type { ContentType } from '../../protocol/item.js';
import { isUlid } from '../../protocol/ids.js';
import { DEFAULT_BIN } from '../../protocol/limits.js';
import { type Context, type DeviceCommand, type OpenDevice, PROGRAM_NAME } from '../context.js';
import * as shapes from '../../sdk/payloads/shapes.js';
import { languageOf } from '../../import/detect.js';
import { failureOf } from '../failure.js';
import type { Failure } from '../../terminal/failure.js';
import { findBin, findItem } from '../find.js';
import { binsOf, readAccountCache } from '../account-cache.js';
import { itemsAndList } from '../listed.js';
import { counted, sanitizeText, paletteOf, show } from '../../terminal/output.js';
import { assigned, contentType, filesIn, type Found, foundIn, notText, shaped, type Source } from '../put-content.js';
import { CommandError, type Terminal, usageError } from '../../terminal/terminal.js';
import type { CommandOptions } from '../../terminal/program.js';
import { meter, percentOf, sizeText } from '../transfer.js';
import { noteQueued, written, type Written } from '../writes.js';

interface Options extends CommandOptions<'type' | 'payload' | 'bin' | 'id', 'overwrite'> {
  readonly file?: readonly string[];
  readonly folder?: readonly string[];
  readonly set: readonly string[];
}

interface ItemOptions extends Omit<Options, 'file' | 'folder'> {
  readonly words: readonly string[];
  readonly file?: string;
  /** Name of a file's item; default: the file's name. */
  readonly name?: string;
}

/** The options that select the item to write and its bin. */
type Target = Pick<ItemOptions, 'id' | 'bin' | 'overwrite'>;

const collect = (value: string, before: readonly string[]): readonly string[] => [...before, value];

export function registerPut(program: DeviceCommand): void {
  program
    .command('put [text...]')
    .summary('write an item: a text, a link, a file, a password, ...')
    .description(
      'Writes the arguments, files or standard input. The type follows from the content: an address is a link, a ' +
        'text file is code (which has a name), other text is text; pictures, recordings, films, and anything that is not ' +
        'text or over 64 KB are files, of any size; --type overrides this. A file is returned byte for byte, under its ' +
        'name. Fields of the other types are given with --set or --payload; the secret of a password is asked for, or read from ' +
        'standard input.',
    )
    .option('--file <path...>', 'the content of a file, or of several, an item each ("-": standard input)')
    .option('--folder <path...>', 'every file in a folder and those below it, an item each')
    .option('--type <type>', 'password, link, text, code, image, file, audio, video, contact or location')
    .option('--set <field=value>', 'a field of the payload; may be repeated', collect, [])
    .option('--payload <json>', 'all fields as a JSON object ("-": from standard input)')
    .option('-b, --bin <bin>', 'where to: name, slug or id (default: inbox)')
    .option('--id <id>', 'overwrite this item instead of adding one')
    .option('--overwrite', 'with --id: even if another device changed the item meanwhile')
    .examples(
      'put "milk, bread"',
      'put https://example.org --bin reading',
      'put --file holiday.mp4',
      'put -b work --file notes/*.txt',
      'put -b work --folder notes',
      'tar c notes | $0 put --file - --type file --set name=notes.tar',
      'git diff | $0 put --type code --set lang=diff',
      'put --type password --set service=mail --set user=me@example.org',
    )
    .changes(put);
}

async function put(context: Context, words: readonly string[], options: Options): Promise<void> {
  const { file: files = [], folder: folders, ...rest } = options;
  if (options.overwrite === true && options.id === undefined) throw usageError('--overwrite needs the --id of an item');
  if (files.length > 1 || folders !== undefined) return putAll(context, files, folders ?? [], { ...rest, words });
  const one: ItemOptions = { ...rest, words, file: files[0] };
  await withContent(context, one, (found) => putFound(context, found, one));
}

/** Writes and reports one item; one that needs nothing from the server is queued before contacting it (CLI-38). */
export async function putFound(context: Context, found: Found, one: Target): Promise<void> {
  await context.withDevice(
    async (open) => {
      const item = await putItem(context, open, found, one);
      show(context.terminal, item, () => [writtenLine(context.terminal, item)]);
      noteQueued(context.terminal, [item]);
      // A file is sent after what waits: an earlier command may have written it.
    },
    found.content === undefined ? 'later' : 'catch up',
  );
}

/** Runs `work` with the content and the fields of `--set`, and closes the content afterwards. */
async function withContent<T>(context: Context, one: ItemOptions, work: (found: Found) => Promise<T>): Promise<T> {
  const found = await contentOf(context, one);
  const { type, content } = found;
  try {
    // The user cannot override the size.
    const size = type === 'file' && content !== undefined ? { size: content.size } : {};
    const given = { ...found.payload, ...assigned(type, one.set), ...size };
    return await work({ ...found, payload: shaped(type, given, content !== undefined) });
  } finally {
    await found.content?.close();
  }
}

/** Checks the options of several items. Throws `CommandError` `usage` for options that fit one item only. */
function expectSeveral({ words, payload, id, type }: ItemOptions): void {
  if (words.length > 0 || payload !== undefined) throw oneSource();
  if (id !== undefined) throw usageError('--id takes one file: each is an item of its own');
  if (type !== undefined && contentType(type) === 'password') throw usageError('a password takes one file');
}

/** Several files, an item each. One that fails does not stop the others. */
async function putAll(context: Context, files: readonly string[], folders: readonly string[], rest: ItemOptions) {
  const { terminal } = context;
  expectSeveral(rest);
  const inside = await filesIn(folders);
  const sources: readonly Source[] = [...files.map((path) => ({ path })), ...inside.files];
  const items: Put[] = [];
  const failed: (Failure & { readonly file: string })[] = [];
  let cut: Error | undefined;
  const fail = (file: string, error: unknown): void => {
    const failure = failureOf(error);
    failed.push({ ...failure, file });
    // Errors of the file system name the file already.
    const named = failure.message.startsWith(`${sanitizeText(file)}: `);
    terminal.note(`Not written: ${named ? '' : `${sanitizeText(file)}: `}${failure.message}`);
  };
  await context.withDevice(async (open) => {
    for (const { path, name } of sources) {
      try {
        const one = { ...rest, file: path, name };
        const put = await withContent(context, one, (found) => putItem(context, open, found, one));
        const item = { ...put, file: path };
        if (!terminal.json) terminal.print(writtenLine(terminal, item));
        items.push(item);
      } catch (error) {
        cut = terminal.interrupted.aborted ? asError(error) : undefined;
        if (cut !== undefined) return;
        fail(path, error);
      }
    }
  });
  for (const { path, error } of inside.failed) fail(path, error);
  const errors = failed.map(({ file, code, message }) => ({ file, error: { code, message } }));
  show(terminal, { items, failed: errors }, () => []);
  if (inside.leftOut !== '') terminal.note(`Left out: ${inside.leftOut}.`);
  noteQueued(terminal, items);
  if (cut !== undefined) {
    if (items.length > 0) terminal.note(`Written before this: ${counted(items.length, 'file')}. ${NOT_AGAIN}`);
    throw cut;
  }
  const [first] = failed;
  if (first === undefined) return;
  const message = `${failed.length} of ${counted(items.length + failed.length, 'file')} could not be written`;
  throw new CommandError(first.exitCode, message, first.hint, { code: first.code });
}

const NOT_AGAIN = 'Leave them out of the next call: it would write them a second time.';

/** A written item, as it is printed. */
type Put = Written & {
  readonly type: ContentType;
  readonly binId: string;
  readonly size?: number;
  readonly file?: string;
};

const writtenLine = (terminal: Terminal, { queued, id, type, size, file }: Put): string =>
  `${queued ? 'Kept' : paletteOf(terminal).good('Written')}: ${id}  ${type}` +
  (size === undefined ? '' : `  ${sizeText(size)}`) +
  (file === undefined ? '' : `  ${sanitizeText(file)}`);

/**
 * Writes an item. A change that needs nothing from the server is stored in the outbox before the server is contacted;
 * any other one is written to the current state. Rejects as `Device.put` does.
 */
async function putItem(context: Context, open: OpenDevice, found: Found, one: Target): Promise<Put> {
  const { terminal, platform } = context;
  const { identity, store } = open;
  const { type, content } = found;
  const needsServer =
    content !== undefined || one.id !== undefined || shapes.payloadSize(found.payload) > shapes.PAYLOAD_INLINE_MAX;
  if (needsServer) await open.catchUp();
  const before = one.id === undefined ? await writtenBefore(open, found) : undefined;
  if (before !== undefined) return before;
  const { keeps, ...target } = await targetOf(context, open, found, one);
  const payload = { ...keeps, ...found.payload };
  const onConflict = one.overwrite === true ? 'overwrite' : 'fail';
  const bar = meter(context, 'Putting');
  const transfer = { content, signal: terminal.interrupted, onProgress: bar.onProgress };
  const put = (): Promise<Written> => written(open.device.put({ ...target, type, payload, onConflict, ...transfer }));
  const change = put();
  // Awaited only after the catch-up: a rejection before that must not be unhandled.
  change.catch(() => undefined);
  await open.catchUp('brief');
  const outcome = await change
    .catch((error: unknown) => {
      // The stored device list was used; the current one may not have the uncertified device.
      if (error instanceof UncertifiedDeviceError && content === undefined) return put();
      throw error;
    })
    .finally(bar.ended)
    .catch(async (error: unknown) => {
      const begunBy = (device: Device) => begunOf({ device }, found, target.id);
      // An interruption has closed the device: another one of the same copy reads it.
      const { aborted } = terminal.interrupted;
      const begun = aborted ? withBriefDevice({ platform, identity, store }, begunBy) : begunBy(open.device);
      // A failure to read the uploads, as with a revoked device, must not replace the original error.
      const kept = await begun.catch(() => undefined);
      const further = 'The same command continues from there; see also `uploads`.';
      if (kept !== undefined) terminal.note(`${percentOf(kept)} % is on the server. ${further}`);
      throw error;
    });
  return { ...outcome, type, binId: target.binId, size: content?.size };
}

/** The item that an earlier command wrote from this file, where it was ended before it could say so. */
async function writtenBefore({ device }: OpenDevice, { type, content }: Found): Promise<Put | undefined> {
  if (content?.identity === undefined) return undefined;
  const id = await device.writtenUpload(type, content.identity);
  const item = id === undefined ? undefined : await device.get(id);
  if (item === undefined) return undefined;
  const { pending: queued, binId, version } = item;
  return { id: item.id, version: queued ? null : version, queued, type, binId, size: content.size };
}

/** The upload of this file that an earlier command began: for the item `id`, or (undefined) for one not written yet. */
async function begunOf({ device }: Pick<OpenDevice, 'device'>, { type, content }: Found, id: string | undefined) {
  const { identity } = content ?? {};
  if (identity === undefined) return undefined;
  for (const one of await device.uploads()) {
    const same = one.type === type && one.source.name === identity.name && one.source.state === identity.state;
    if (same && (id === undefined ? (await device.get(one.id)) === undefined : one.id === id)) return one;
  }
  return undefined;
}

/**
 * The item to write, its bin, and the fields that its new content keeps: those of an item of the same type that the type
 * does not define. An existing item stays in its bin unless `--bin` is given. Without an id it is a new item, or the item,
 * not written yet, for which an earlier command began to upload this file.
 */
async function targetOf(context: Context, open: OpenDevice, found: Found, { id, bin }: Target) {
  const binId = bin === undefined || bin === DEFAULT_BIN ? bin : await binIdOf(context, open, bin);
  if (id === undefined) {
    const begun = await begunOf(open, found, undefined);
    return { id: begun?.id, binId: binId ?? DEFAULT_BIN };
  }
  const { items, listed } = await itemsAndList(context, open);
  // An unknown complete id is a new item: scripts choose ids so that a repeated call does not create a second item.
  const known = isUlid(id) ? items.find((item) => item.id === id) : findItem(items, id, listed);
  // Of a large text, whose fields are in a blob, none where it cannot be read: the new content must not be lost for them.
  const payload = known?.type === found.type ? await open.device.payload(known.id).catch(() => null) : null;
  const keeps = Object.entries(payload ?? {}).filter(([field]) => shapes.kindOf(found.type, field) === undefined);
  return { id: known?.id ?? id, binId: binId ?? known?.binId ?? DEFAULT_BIN, keeps: Object.fromEntries(keeps) };
}

/** Contacts the server only for a bin that is not known by its slug or id. */
async function binIdOf(context: Context, open: OpenDevice, typed: string): Promise<string> {
  const before = (await readAccountCache(context.profile.folder)).bins ?? [];
  const here = before.find(({ id, slug }) => slug === typed.trim() || id === typed.trim());
  if (here !== undefined) return here.id;
  return findBin(await binsOf(context, { ...open, current: await open.catchUp() }), typed).id;
}

const oneSource = (): CommandError => usageError('give one of: text, --file or --folder, --payload');

/** The content, without the fields of `--set`. The caller closes it. */
async function contentOf(context: Context, one: ItemOptions): Promise<Found> {
  const type = one.type === undefined ? undefined : contentType(one.type);
  const { words, set, payload: json, file } = one;
  const sources = [words.length > 0, file !== undefined, json !== undefined].filter(Boolean).length;
  if (sources > 1) throw oneSource();
  if (type === 'password' && (words.length > 0 || set.some((pair) => pair.startsWith('secret='))))
    throw secretAsArgument(json === undefined ? ASKED : PIPED);
  if (json !== undefined) {
    if (type === undefined) throw usageError('--payload needs --type');
    const payload = await jsonPayload(context, json);
    const isSecret = (field: string): boolean =>
      shapes.isSecretField(type, field) && shapes.kindOf(type, field) !== undefined;
    if (json !== '-' && Object.keys(payload).some(isSecret)) throw secretAsArgument(PIPED);
    return { type, payload };
  }
  if ((type === 'contact' || type === 'location') && sources === 0) return { type, payload: {} };
  if (type === 'password') return passwordOf(context, one);
  const found: Found = await detect(context, one, type);
  if (found.content !== undefined || type === undefined || type === found.type) return found;
  return { type, payload: asType(type, found, one) };
}

/** Content of a detected type as another type: its text becomes the main field. */
function asType(type: ContentType, found: shapes.Detected, { file, name }: ItemOptions): JsonObject {
  const main = shapes.mainField(type);
  if (main === undefined) throw usageError(`a ${type} is given with --set or --payload`);
  const own = shapes.mainField(found.type) ?? '';
  const text = found.payload[own];
  if (type !== 'code' || file === undefined || file === '-') return { [main]: text };
  return { [main]: text, label: name ?? basename(file), lang: languageOf(file) ?? '' };
}

async function detect(context: Context, { words, file, name }: ItemOptions, type: ContentType | undefined) {
  if (words.length > 0) return shapes.detectText(words.join(' '));
  if (file === undefined && context.terminal.interactive)
    throw usageError('what should be written?', `For example: ${PROGRAM_NAME} put "milk, bread"`);
  return foundIn(context, file ?? '-', type, name);
}

/** Refuses a secret on the command line: arguments are visible in the process list and in the shell's history. */
const secretAsArgument = (hint: string): CommandError =>
  usageError('a secret must not be an argument, where others can read it', hint);

const ASKED = 'Omit it to be asked for it, or pipe it in.';
const PIPED = 'Pipe the whole payload in, the secret with the rest: --payload -';

async function passwordOf(context: Context, { file }: ItemOptions): Promise<shapes.Detected> {
  const typed =
    file === undefined && context.terminal.interactive
      ? await context.terminal.ask('Secret: ', { hidden: true })
      : (await foundIn(context, file ?? '-', 'text')).payload['text'];
  if (typeof typed !== 'string') throw notText('a secret');
  return { type: 'password', payload: { secret: typed.replace(/\r?\n$/, '') } };
}

async function jsonPayload({ terminal }: Context, given: string): Promise<JsonObject> {
  const text = given === '-' ? (await terminal.readInput(shapes.PAYLOAD_MAX)).toString('utf8') : given;
  const bad = usageError('--payload is not a JSON object', undefined, 'bad_payload');
  // Without a cause: the message of the parser quotes the payload.
  const value = parsedJson(text, () => bad);
  if (!isObject(value)) throw bad;
  return value;
}
