/**
 * Items as entries of Bitwarden, both ways. What Bitwarden has a form for takes it; any other item is a secure note that
 * a person can read, with a custom field that holds what an import needs to make the same item of it.
 */
import { type JsonObject, nestedDeeper, PAYLOAD_DEPTH_MAX } from '../../crypto/payload.js';
import { isContentType } from '../../protocol/item.js';
import { SERVICE_NAME } from '../../protocol/limits.js';
import { type Detected, fieldText, holdsFile, titleOf } from '../../sdk/payloads/shapes.js';
import { serviceOf, serviceParts } from './entries.js';

/** The custom field that marks a secure note as one of our items. */
const MARK = `${SERVICE_NAME} item`;
/** In the mark: the text is in the notes. */
const IN_NOTES = { in: 'notes' } as const;

const isPlain = (payload: JsonObject, fields: readonly string[]): boolean =>
  Object.keys(payload).length === fields.length && fields.every((field) => typeof payload[field] === 'string');

/** A login, where one says all of it. */
function asLogin({ type, payload }: Detected): JsonObject | undefined {
  if (type !== 'password' || !isPlain(payload, ['service', 'user', 'secret'])) return undefined;
  const [service = '', username = '', password = ''] = ['service', 'user', 'secret'].map((f) => fieldText(payload, f));
  const { name, url } = serviceParts(service);
  if (username + password === '' || serviceOf(name, url) !== service) return undefined;
  const login = { uris: url === '' ? [] : [{ match: null, uri: url }], username, password, totp: null };
  return { type: 1, name, notes: null, fields: [], login };
}

/** A secure note, where one says all of it: its name is a line of the text, so it is told from the text alone. */
function asNote({ type, payload }: Detected): JsonObject | undefined {
  const notes = fieldText(payload, 'text') ?? '';
  const name = titleOf('text', payload);
  const first = notes.split('\n').find((line) => line.trim() !== '') ?? '';
  if (type !== 'text' || !isPlain(payload, ['text']) || first.trim() !== name) return undefined;
  return { type: 2, name, notes, fields: [], secureNote: { type: 0 } };
}

/** What a person reads of the other types. */
const readable = (payload: JsonObject): string =>
  Object.entries(payload)
    .filter(([, value]) => (typeof value === 'string' && value !== '') || typeof value === 'number')
    .map(([name, value]) => `${name}: ${String(value)}`)
    .join('\n');

/** Any item: the mark holds all of it but a text that is the notes. */
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

/** The item that an entry of ours holds; undefined: it is none, or its notes were changed in Bitwarden since. */
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
    if (typeof type !== 'string' || !isContentType(type) || holdsFile(type)) return undefined;
    if (typeof payload !== 'object' || payload === null || Array.isArray(payload)) return undefined;
    return { type, payload: { ...payload, ...(text === undefined ? {} : { text: notes }) } };
  } catch {
    // Not ours.
    return undefined;
  }
}
