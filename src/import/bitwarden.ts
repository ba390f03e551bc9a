/** The JSON export of Bitwarden, of one person or of an organisation, plain or under a password. */
import { type JsonObject, nestedDeeper } from '../crypto/payload.js';
import { isObject, parsedJson } from '../protocol/bytes.js';
import { ProtocolError } from '../sdk/errors.js';
import { array, boolean, count, nullable, object, type Read, type Reader, record, string } from '../sdk/reader.js';
import { ownItem } from './bitwarden-entry.js';
import { openLocked } from './bitwarden-locked.js';
import * as foreign from './entries.js';

/** Most levels of the document; an export needs at most ten. */
const DEPTH_MAX = 32;

/** The entries of an export. Throws `ForeignError`, and `WrongPassword`. */
export async function readBitwarden(json: string, secrets: foreign.Secrets): Promise<readonly foreign.Entry[]> {
  const outer = parsed(json);
  if (outer['encrypted'] !== true) return reading(() => entriesOf(outer));
  const why = 'it is encrypted under the keys of a Bitwarden account, and cannot be opened elsewhere';
  const form = 'as .json, or as .json (encrypted) with "password protected"';
  if (outer['passwordProtected'] !== true)
    throw new foreign.ForeignError('', why, `Export it again from Bitwarden ${form}. Nothing was written.`);
  const inner = await secrets.unlock('bitwarden', (password) =>
    openLocked(outer, password).catch((error: unknown) => {
      throw error instanceof ProtocolError ? new foreign.ForeignError('', error.message) : error;
    }),
  );
  return reading(() => entriesOf(parsed(inner)));
}

function parsed(json: string): JsonObject {
  if (nestedDeeper(DEPTH_MAX, json.length, (at) => json.charCodeAt(at)))
    throw new foreign.ForeignError('', `it has more than ${DEPTH_MAX} levels`);
  // Without a cause: the parser's own message would quote the content.
  const value = parsedJson(json, () => new foreign.ForeignError('', 'it is not JSON, or is cut short'));
  if (!isObject(value)) throw new foreign.ForeignError('', 'it is not an export of Bitwarden');
  return value;
}

/** Turns a `ProtocolError` into a `ForeignError` that names the path: `items[3].login.password: must be a string`. */
function reading<T>(read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (!(error instanceof ProtocolError)) throw error;
    const [where = '', ...why] = error.message.split(': ');
    throw new foreign.ForeignError(where, why.join(': '));
  }
}

/** A text; empty for null and where it is absent. */
const text: Reader<string> = (value, path) => nullable(string)(value, path) ?? '';
const list =
  <T>(inner: Reader<T>): Reader<readonly T[]> =>
  (value, path) =>
    nullable(array(inner, foreign.ENTRIES_MAX))(value, path) ?? [];
const named = object({ id: text, name: text });

const LOGIN = {
  uris: list(object({ uri: text })),
  username: text,
  password: text,
  totp: text,
  fido2Credentials: list(record),
};
const loginFields = object(LOGIN);
const ITEM = {
  id: text,
  folderId: text,
  collectionIds: list(text),
  type: count,
  name: text,
  notes: text,
  favorite: nullable(boolean),
  reprompt: nullable(count),
  fields: list(object({ name: text })),
  passwordHistory: list(record),
  creationDate: text,
  revisionDate: text,
  deletedDate: text,
  login: nullable(loginFields),
  card: nullable(record),
  identity: nullable(record),
  sshKey: nullable(object({ privateKey: text, publicKey: text, keyFingerprint: text })),
};
const itemFields = object(ITEM);
type Item = Read<typeof itemFields>;

/** Fields that are read above, and those without content of the user. */
const SILENT = ['organizationId', 'archivedDate', 'secureNote', 'key', 'object', 'attachments'];
const KNOWN: ReadonlySet<string> = new Set([...Object.keys(ITEM), ...SILENT]);
const KNOWN_OF_LOGIN = new Set([...Object.keys(LOGIN), 'passwordRevisionDate', 'autofillOnPageLoad']);

function entriesOf(document: JsonObject): readonly foreign.Entry[] {
  const { items, folders, collections } = object({
    items: array(record, foreign.ENTRIES_MAX),
    folders: list(named),
    collections: list(named),
  })(document, '');
  const names = new Map([...collections, ...folders].map(({ id, name }) => [id, name] as const));
  const numbered = foreign.keyCounter();
  const drafts = items.map((raw, at) => {
    const where = `items[${at}]`;
    const item = itemFields(raw, where);
    const [first, ...others] = [item.folderId, ...item.collectionIds].filter((id) => names.has(id));
    const folder = (first === undefined ? undefined : names.get(first)) ?? '';
    const key = numbered(item.id === '' ? JSON.stringify([item.type, item.name]) : item.id);
    const created = foreign.timeOf(item.creationDate);
    const changed = foreign.timeOf(item.revisionDate) ?? created;
    return draftOf(item, raw, { where, name: item.name, folder, key, created, changed }, others.length);
  });
  return foreign.entriesOf(drafts);
}

type Place = Pick<foreign.Draft, 'where' | 'name' | 'folder' | 'key' | 'created' | 'changed'>;

/** By the number of their type. */
const KINDS = ['', 'login', 'secure note', 'card', 'identity', 'SSH key'];

function draftOf(item: Item, raw: JsonObject, place: Place, others: number): foreign.Draft | foreign.Entry {
  const kind = KINDS[item.type] || `type ${item.type}`;
  if (item.deletedDate !== '') return foreign.leftBehind({ ...place, kind, left: 'in the trash' });
  const own = ownItem(raw);
  if (own !== undefined) return { ...place, kind: own.type, made: [{ part: 'main', ...own }], unplaced: [], marks: [] };
  const { main, notes, unplaced } = contentOf(item, raw);
  return {
    ...{ ...place, program: 'bitwarden', kind, main, notes },
    unplaced: [
      ...partsBeside(item, raw),
      ...unplaced,
      ...foreign.some(item.fields.length, 'custom field'),
      ...foreign.some(item.passwordHistory.length, 'earlier password'),
      ...foreign.some(others, 'further collection'),
      ...unknownIn(raw, KNOWN),
    ],
    marks: [...(item.favorite === true ? ['favourite'] : []), ...((item.reprompt ?? 0) > 0 ? ['ask again'] : [])],
    original: () => foreign.jsonOriginal('bitwarden', raw),
  };
}

type Content = Pick<foreign.Draft, 'main' | 'notes'> & { readonly unplaced: readonly string[] };

function contentOf(item: Item, raw: JsonObject): Content {
  const { name, notes, login, identity, sshKey } = item;
  if (item.type === 1 && login !== null) return ofLogin(item, login, (raw['login'] ?? {}) as JsonObject);
  if (item.type === 4 && identity !== null) return ofIdentity(name, notes, identity);
  if (item.type === 5 && sshKey !== null && sshKey.privateKey !== '') {
    const main = { type: 'password', payload: { service: name, user: '', secret: sshKey.privateKey } } as const;
    return { main, notes: foreign.joined('\n', sshKey.publicKey, sshKey.keyFingerprint, notes), unplaced: [] };
  }
  return { main: undefined, notes, unplaced: item.type > 5 ? [`an entry of type ${item.type}`] : [] };
}

/** The parts that an entry may have. */
const PARTS = { login: 'the login', card: 'the card', identity: 'the identity', sshKey: 'the SSH key' } as const;
type Part = keyof typeof PARTS;

/** The part that `contentOf` reads. */
function partOf({ type, sshKey }: Item): Part | undefined {
  if (type === 5) return sshKey === null || sshKey.privateKey === '' ? undefined : 'sshKey';
  return type === 1 ? 'login' : type === 4 ? 'identity' : undefined;
}

/** The others with content: a part that the entry's type has not, a card, and an SSH key without the private one. */
function partsBeside(item: Item, raw: JsonObject): string[] {
  const read = partOf(item);
  return (Object.keys(PARTS) as Part[])
    .filter((name) => name !== read && !isBlank(raw[name]))
    .map((name) => PARTS[name]);
}

const isBlank = (value: unknown): boolean => !isObject(value) || Object.values(value).every(isEmpty);

function ofLogin({ name, notes }: Item, login: Read<typeof loginFields>, raw: JsonObject): Content {
  const [url = '', ...further] = login.uris.map(({ uri }) => uri).filter((uri) => uri !== '');
  const main = foreign.loginItem({ name, url, user: login.username, secret: login.password });
  const unplaced = [
    ...foreign.some(further.length, 'further address', 'further addresses'),
    ...(login.totp === '' ? [] : ['the one-time password']),
    ...foreign.some(login.fido2Credentials.length, 'passkey'),
    ...unknownIn(raw, KNOWN_OF_LOGIN),
  ];
  return { main, notes: foreign.notesWith(main, url, notes), unplaced };
}

const IDENTITY_NAME = ['title', 'firstName', 'middleName', 'lastName'] as const;
const IN_CONTACT: ReadonlySet<string> = new Set([...IDENTITY_NAME, 'company', 'email', 'phone']);

function ofIdentity(name: string, notes: string, identity: JsonObject): Content {
  const value = (field: string): string => {
    const found = identity[field];
    return typeof found === 'string' ? found : '';
  };
  const full = foreign.joined(' ', ...IDENTITY_NAME.map(value));
  const rest = unknownIn(identity, IN_CONTACT);
  const payload = { name: full || name, role: value('company'), email: value('email'), phone: value('phone') };
  const main = payload.name === '' ? undefined : ({ type: 'contact', payload } as const);
  const other = full !== '' && name !== '' && full !== name ? [`its name, “${name}”`] : [];
  return { main, notes, unplaced: main === undefined ? ['the identity'] : [...other, ...rest] };
}

/** Fields with a value that are not in `known`: what a newer version of the other program may have added. */
const unknownIn = (raw: JsonObject, known: ReadonlySet<string>): string[] =>
  Object.entries(raw)
    .filter(([name, value]) => !known.has(name) && !isEmpty(value))
    .map(([name]) => name.slice(0, 40));

const isEmpty = (value: unknown): boolean =>
  value === null || value === undefined || value === '' || value === false || (Array.isArray(value) && !value.length);
