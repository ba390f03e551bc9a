/**
 * An item as an entry of Bitwarden's JSON, and back. An item that fits one of Bitwarden's types takes that; any other
 * becomes a readable secure note, with a custom field that holds what an import needs to restore the item.
 */
import { type JsonObject, nestedDeeper, PAYLOAD_DEPTH_MAX } from '../crypto/payload.js';
import { isObject } from '../protocol/bytes.js';
import { isContentType } from '../protocol/item.js';
import { SERVICE_NAME } from '../protocol/limits.js';
import { type Detected, fieldText, holdsFile, titleOf } from '../sdk/payloads/shapes.js';
import { firstLine, serviceOf, serviceParts } from './entries.js';

/** The custom field that marks a secure note as one of our items. */
const MARK = `${SERVICE_NAME} item`;
/** In the mark: the text is in the notes. */
const IN_NOTES = { in: 'notes' } as const;

const isPlain = (payload: JsonObject, fields: readonly string[]): boolean =>
  Object.keys(payload).length === fields.length && fields.every((field) => typeof payload[field] === 'string');

/** The item as a login; undefined where a login cannot hold all of it. */
function asLogin({ type, payload }: Detected): JsonObject | undefined {
  if (type !== 'password' || !isPlain(payload, ['service', 'user', 'secret'])) return undefined;
  const [service = '', username = '', password = ''] = ['service', 'user', 'secret'].map((f) => fieldText(payload, f));
  const { name, url } = serviceParts(service);
  if (username + password === '' || serviceOf(name, url) !== service) return undefined;
  const login = { uris: url === '' ? [] : [{ match: null, uri: url }], username, password, totp: null };
  return { type: 1, name, notes: null, fields: [], login };
}

/** The item as a secure note; undefined unless its name is the text's first line, so that the text restores it. */
function asNote({ type, payload }: Detected): JsonObject | undefined {
  const notes = fieldText(payload, 'text') ?? '';
  const name = titleOf('text', payload);
  if (type !== 'text' || !isPlain(payload, ['text']) || firstLine(notes).trim() !== name) return undefined;
  return { type: 2, name, notes, fields: [], secureNote: { type: 0 } };
}

/** Readable notes for the other types. */
const readable = (payload: JsonObject): string =>
  Object.entries(payload)
    .filter(([, value]) => (typeof value === 'string' && value !== '') || typeof value === 'number')
    .map(([name, value]) => `${name}: ${String(value)}`)
    .join('\n');

/** Any item as a secure note: the mark holds all of it except its text, which is in the notes. */
function marked({ type, payload }: Detected): JsonObject {
  const { text, ...rest } = payload;
  const whole = typeof text === 'string' && text !== '';
  const value = JSON.stringify({ type, payload: whole ? rest : payload, ...(whole ? { text: IN_NOTES } : {}) });
  const notes = whole ? text : type === 'password' ? '' : readable(payload);
  // A secret is hidden in Bitwarden too (type 1).
  const fields = [{ name: MARK, value, type: type === 'password' ? 1 : 0, linkedId: null }];
  return { type: 2, name: titleOf(type, payload), notes, fields, secureNote: { type: 0 } };
}

/** An item as an entry, without ids, folder and times. */
export const bitwardenEntry = (item: Detected): JsonObject => asLogin(item) ?? asNote(item) ?? marked(item);

/** The item in an entry that `marked` made; undefined: it is no such entry, or was changed in Bitwarden since. */
export function ownItem(entry: JsonObject): Detected | undefined {
  const [field, ...others] = Array.isArray(entry['fields']) ? (entry['fields'] as readonly unknown[]) : [];
  const { name, value } = (field ?? {}) as { readonly name?: unknown; readonly value?: unknown };
  if (name !== MARK || typeof value !== 'string' || others.length > 0) return undefined;
  const notes = typeof entry['notes'] === 'string' ? entry['notes'] : '';
  const item = itemIn(value, notes);
  if (item === undefined) return undefined;
  const again = marked(item);
  const same = again['notes'] === notes && again['name'] === entry['name'];
  return same && JSON.stringify(again['fields']).includes(JSON.stringify(value)) ? item : undefined;
}

function itemIn(mark: string, notes: string): Detected | undefined {
  if (nestedDeeper(PAYLOAD_DEPTH_MAX, mark.length, (at) => mark.charCodeAt(at))) return undefined;
  try {
    const { type, payload, text } = JSON.parse(mark) as Readonly<Record<string, unknown>>;
    if (!isContentType(type) || holdsFile(type)) return undefined;
    if (!isObject(payload)) return undefined;
    return { type, payload: { ...payload, ...(text === undefined ? {} : { text: notes }) } };
  } catch {
    // Not ours.
    return undefined;
  }
}
