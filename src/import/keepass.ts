/** The entries of a KeePass database: groups, fields, attachments, history and references. */
import type { KdbxEntry, KdbxEntryField, KdbxGroup } from 'kdbxweb';
import * as foreign from './entries.js';
import { expectCheap, kdbxLibrary, MISSING, openKdbx } from './kdbx.js';

/** Maximum size of a key file, bytes. */
export const KEY_FILE_MAX = 1024 * 1024;

const SIGNATURE = [0x03, 0xd9, 0xa2, 0x9a] as const;
/** The second half of the signature of KeePass 1. */
const KDB = 0x65;

/** True for the first bytes of a database, also of one of KeePass 1. */
export const isKeepass = (start: Uint8Array): boolean => SIGNATURE.every((byte, at) => start[at] === byte);

/** The entries of a database. Asks for its password. Throws `ForeignError`, and `WrongPassword`. */
export async function readKeepass(bytes: Uint8Array, secrets: foreign.Secrets): Promise<readonly foreign.Entry[]> {
  const instead = 'Save it as KDBX with KeePass 2 or KeePassXC first.';
  if (bytes[4] === KDB) throw new foreign.ForeignError('', 'it is a database of KeePass 1', instead);
  const library = await kdbxLibrary();
  expectCheap(library, bytes);
  const keyFile = await secrets.keyFile();
  const database = await secrets.unlock('keepass', (password) => openKdbx(library, bytes, password, keyFile));
  const found = database.groups.flatMap((root) => placed(root, database.meta.recycleBinUuid?.id));
  if (found.length > foreign.ENTRIES_MAX)
    throw new foreign.ForeignError('', `it has more than ${foreign.ENTRIES_MAX} entries`);
  const byUuid = new Map(found.flatMap(({ entry }) => (entry === undefined ? [] : [[uuidHex(entry), entry] as const])));
  return foreign.entriesOf(draftsOf(found, byUuid));
}

/** One after the other: each may copy its attachments. */
function* draftsOf(found: readonly Place[], byUuid: EntryMap): Generator<foreign.Draft | foreign.Entry> {
  // Plugins and other programs have written databases in which two entries have one UUID.
  const numbered = foreign.keyCounter();
  for (const one of found) {
    const made = one.entry === undefined ? ofGroup(one) : ofEntry(one, one.entry, byUuid);
    yield { ...made, key: numbered(made.key) };
  }
}

/** Most levels of groups. */
const DEPTH_MAX = 64;
/** Longest path of a group: its entries and the groups below repeat it. */
const FOLDER_MAX = 4_096;

interface Place {
  /** The names of the groups above, without the root, with slashes between them. */
  readonly folder: string;
  readonly group: KdbxGroup;
  readonly binned: boolean;
  /** Undefined: the notes of the group itself. */
  readonly entry: KdbxEntry | undefined;
}

function placed(root: KdbxGroup, binId: string | undefined): Place[] {
  const places: Place[] = [];
  const open: (Omit<Place, 'entry'> & { readonly depth: number })[] = [
    { folder: '', group: root, binned: false, depth: 0 },
  ];
  for (let at = open.pop(); at !== undefined; at = open.pop()) {
    const { group, folder, depth } = at;
    const binned = at.binned || (binId !== undefined && group.uuid.id === binId);
    if ((group.notes ?? '').trim() !== '') places.push({ ...at, binned, entry: undefined });
    for (const entry of group.entries) places.push({ ...at, binned, entry });
    if (depth > DEPTH_MAX) throw new foreign.ForeignError('', `its groups are nested more than ${DEPTH_MAX} deep`);
    if (folder.length > FOLDER_MAX) throw new foreign.ForeignError('', 'the names of its groups are too long');
    const inside = (name: string): string => (depth === 0 ? name : `${folder}/${name}`);
    // The last of them is taken first.
    for (const child of [...group.groups].reverse())
      open.push({ folder: inside(child.name ?? ''), group: child, binned, depth: depth + 1 });
  }
  return places;
}

const textOf = (field: KdbxEntryField | undefined): string =>
  field === undefined ? '' : typeof field === 'string' ? field : field.getText();

function ofGroup({ folder, group, binned }: Place): foreign.Draft | foreign.Entry {
  const place = { where: folder, kind: 'group', name: group.name ?? '', folder };
  const entry = { ...place, key: group.uuid.id, ...timesOf(group) };
  if (binned) return foreign.leftBehind({ ...entry, left: 'in the recycle bin' });
  return { ...entry, program: 'keepass', notes: group.notes ?? '' };
}

const timesOf = ({ times }: KdbxEntry | KdbxGroup) => ({
  created: times.creationTime?.getTime(),
  changed: times.lastModTime?.getTime() ?? times.creationTime?.getTime(),
});

type EntryMap = ReadonlyMap<string, KdbxEntry>;

const STANDARD: ReadonlySet<string> = new Set(['Title', 'UserName', 'Password', 'URL', 'Notes']);
/** Fields in which KeePass, its plugins and KeePassXC store the parameters of one-time passwords. */
const ONE_TIME = /^(?:otp$|TOTP |TimeOtp-|HmacOtp-)/;

function ofEntry({ folder, binned }: Place, entry: KdbxEntry, byUuid: EntryMap): foreign.Draft | foreign.Entry {
  const value = (field: string): string => resolved(textOf(entry.fields.get(field)), byUuid);
  const [name, url] = [value('Title'), value('URL')];
  const where = folder === '' ? name : `${folder}/${name}`;
  const place = { where, kind: 'entry', name, folder, key: entry.uuid.id, ...timesOf(entry) };
  if (binned) return foreign.leftBehind({ ...place, left: 'in the recycle bin' });
  const main = foreign.loginItem({ name, url, user: value('UserName'), secret: value('Password') });
  const own = [...entry.fields].filter(([field, content]) => !STANDARD.has(field) && textOf(content) !== '');
  const oneTime = own.filter(([field]) => ONE_TIME.test(field));
  const attached = [...entry.binaries].filter(([, binary]) => binary !== MISSING);
  const missing = entry.binaries.size - attached.length;
  const open = ['UserName', 'Password', 'URL'].filter((field) => /\{REF:/i.test(value(field)));
  return {
    ...{ ...place, program: 'keepass', main, notes: foreign.notesWith(main, url, value('Notes')) },
    files: attached.map(([file, binary]) => ({ name: file, bytes: bytesOf(binary) })),
    unplaced: [
      ...(oneTime.length === 0 ? [] : ['the one-time password']),
      ...foreign.some(own.length - oneTime.length, 'custom field'),
      ...foreign.some(missing, 'attachment that is missing', 'attachments that are missing'),
      ...foreign.some(open.length, 'reference to another entry', 'references to other entries'),
      ...foreign.some(entry.history.length, 'earlier version'),
      ...(entry.times.expires === true ? ['when it expires'] : []),
      ...foreign.some(entry.tags.length, 'tag'),
      ...((entry.overrideUrl ?? '') === '' ? [] : ['the address it is opened with']),
      ...(entry.autoType.items.length > 0 || (entry.autoType.defaultSequence ?? '') !== '' ? ['auto-type'] : []),
      ...foreign.some(entry.customData?.size ?? 0, 'value of a plugin', 'values of plugins'),
    ],
    marks: [
      ...(entry.customIcon === undefined && (entry.icon ?? 0) === 0 ? [] : ['icon']),
      ...((entry.fgColor ?? '') + (entry.bgColor ?? '') === '' ? [] : ['colours']),
    ],
    original: () => foreign.jsonOriginal('keepass', originalOf(entry, folder)),
  };
}

type Binary = KdbxEntry['binaries'] extends Map<string, infer B> ? B : never;

/** By the library's value: thousands of entries may refer to one attachment, and the library copies a protected one. */
const attachments = new WeakMap<object, Uint8Array>();

function bytesOf(binary: Binary): Uint8Array {
  const value = 'value' in binary && 'hash' in binary ? binary.value : binary;
  const known = attachments.get(value);
  if (known !== undefined) return known;
  const bytes =
    value instanceof ArrayBuffer ? new Uint8Array(value) : (value as { getBinary(): Uint8Array }).getBinary();
  attachments.set(value, bytes);
  return bytes;
}

const fieldsOf = (entry: KdbxEntry): Record<string, string> =>
  Object.fromEntries([...entry.fields].map(([field, value]) => [field, textOf(value)]));

/** The whole entry as JSON; the bytes of attachments are files of their own. */
function originalOf(entry: KdbxEntry, group: string) {
  const { tags, times, overrideUrl, autoType, customData } = entry;
  return {
    ...{ uuid: entry.uuid.id, group, fields: fieldsOf(entry), tags, times, overrideUrl, autoType },
    customData: Object.fromEntries([...(customData ?? [])].map(([name, item]) => [name, item.value])),
    attachments: [...entry.binaries.keys()],
    history: entry.history.map((earlier) => ({
      ...{ times: earlier.times, fields: fieldsOf(earlier), attachments: [...earlier.binaries.keys()] },
    })),
  };
}

const FIELD_OF: Readonly<Record<string, string>> = { T: 'Title', U: 'UserName', P: 'Password', A: 'URL', N: 'Notes' };

/** Longest value that replaces a reference: some 400,000 references may name one value, and each entry copies it. */
const REFERENCED_MAX = 512;

/** Resolves a text that is a reference to a field of another entry, by its UUID; any other text is unchanged. */
function resolved(text: string, byUuid: EntryMap): string {
  const [, wanted = '', uuid = ''] = /^\{REF:([TUPAN])@I:([0-9A-F]{32})\}$/i.exec(text) ?? [];
  const field = byUuid.get(uuid.toUpperCase())?.fields.get(FIELD_OF[wanted.toUpperCase()] ?? '');
  const value = textOf(field);
  return field === undefined || value.length > REFERENCED_MAX ? text : value;
}

const uuidHex = ({ uuid }: KdbxEntry): string =>
  Array.from(new Uint8Array(uuid.bytes), (byte) => byte.toString(16).padStart(2, '0'))
    .join('')
    .toUpperCase();
