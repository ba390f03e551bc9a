/**
 * JSON Schemas of requests and replies in either shape, generated from the types of requests
 * (src/protocol/requests.ts), which also validate them, and of replies (src/protocol/replies.ts).
 */
import type typiaLibrary from 'typia';
import { isObject } from '../protocol/bytes.js';
import type * as items from '../protocol/item-replies.js';
import { BATCH_WRITES_MAX } from '../protocol/limits.js';
import type * as replies from '../protocol/replies.js';
import type * as bodies from '../protocol/requests.js';
import { toSnake, type Shape } from '../protocol/shape.js';

/** Exists only at build time, as in src/server/http/validators.ts. */
declare const typia: typeof typiaLibrary;

/** A JSON Schema, or any part of an OpenAPI document. */
export type Json = { readonly [key: string]: unknown };

/** `SpelledBody` are the bodies with one type for both shapes, and those of shape B. */
type Requests = [bodies.SpelledBody, bodies.ItemBodyA, bodies.UploadBodyA, bodies.BlobRef, bodies.BinId];

type Replies = [
  ...[items.Changed, items.ChangedB, items.BatchReply, items.PageA, items.PageB],
  ...[replies.Ok, replies.SignedUp, replies.TestTenant, replies.TestTenantList, replies.TestTenantRemoval],
  ...[replies.Received, replies.Portal, replies.ErrorReply, replies.BinReply, replies.BinList],
  ...[replies.BlobUpload, replies.OpenUploadReply, replies.BlobDownload],
  ...[replies.DeviceList, replies.KnownDeviceReply, replies.Claimed, replies.Recovered],
  ...[replies.PairStarted, replies.PairEpk, replies.Paired, replies.PairPending, replies.PairRequestList],
  ...[replies.ReauthChallengeReply, replies.TokenReply, replies.RecoveryChallengeReply, replies.TicketReply],
  ...[replies.PasswordExists, replies.PasswordTicketReply],
  ...[replies.Health, replies.Ready, replies.StatusUp, replies.StatusDown, replies.Me],
];

const GENERATED = typia.json.schemas<[...Requests, ...Replies]>();

/** Prefix of a reference to a named schema. */
export const REF = '#/components/schemas/';

/** typia names a generic type `DeviceBytes`, after its parameter, which is always text here. */
function nameOf(name: string): string {
  if (name === 'Recordstringstring') return 'KeysBody';
  return name === 'Bytes' ? name : name.replace(/Bytes$/, '');
}

/** Bytes in a shape (reference, HTTP). Requests may use either alphabet, padded or not. */
const BYTES: Readonly<Record<Shape, Json>> = {
  a: {
    type: 'string',
    description: 'Bytes as base64url without padding.',
    contentEncoding: 'base64url',
    pattern: '^[A-Za-z0-9_-]*$',
  },
  b: {
    type: 'string',
    description: 'Bytes as standard base64 with padding.',
    contentEncoding: 'base64',
    pattern: '^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$',
  },
};

/**
 * Sorts constants by their text, before everything else. The compiler orders the members of a union by their first
 * appearance in the program, so that moving a file would change the pages.
 */
function byConst(one: unknown, other: unknown): number {
  const [first, second] = [one, other].map((of) => (isObject(of) && 'const' in of ? String(of['const']) : undefined));
  if (first === undefined || second === undefined) return Number(first === undefined) - Number(second === undefined);
  return first < second ? -1 : Number(first > second);
}

/**
 * A generated schema in a shape's spelling, without the generator's own keywords. All numbers become integers: every
 * number on the wire is one, though not every type says so.
 */
function spelledSchema(shape: Shape, value: unknown): unknown {
  if (Array.isArray(value)) return value.map((entry) => spelledSchema(shape, entry));
  if (!isObject(value)) return value;
  const spell = (key: string): string => (shape === 'b' ? toSnake(key) : key);
  const out: Record<string, unknown> = {};
  for (const [key, entry] of Object.entries(value)) {
    if (key === 'properties' && isObject(entry)) {
      out[key] = Object.fromEntries(Object.entries(entry).map(([name, of]) => [spell(name), spelledSchema(shape, of)]));
    } else if (key === 'required' && Array.isArray(entry)) {
      if (entry.length > 0) out[key] = entry.map((name) => spell(String(name)));
    } else if (key === 'oneOf' && Array.isArray(entry))
      out[key] = entry.map((of) => spelledSchema(shape, of)).sort(byConst);
    else if (key === 'type' && entry === 'number') out[key] = 'integer';
    else if (key === '$ref') out[key] = REF + nameOf(String(entry).slice(REF.length));
    // From `readonly` in our types; in a schema it would mean that clients must not send the field.
    else if (key !== 'readOnly' && key !== 'x-bytes') out[key] = spelledSchema(shape, entry);
  }
  return out;
}

/** Adds what the types cannot express: `hint` exists only in B, and the entries of a batch are writes. */
function completed(shape: Shape, name: string, schema: Json): Json {
  const properties = isObject(schema['properties']) ? schema['properties'] : {};
  if (name === 'Bytes') return BYTES[shape];
  if (name === 'KeysBody') return { ...schema, description: 'Device id to the item key sealed to that device.' };
  if (name === 'ItemBodyA' || name === 'ItemBodyB') {
    // The validator accepts any string: a type outside the ten has its own error.
    return { ...schema, properties: { ...properties, type: refTo('ContentTypeName') } };
  }
  if (name === 'ErrorFields') {
    const { hint, ...rest } = properties;
    if (shape === 'a') return { ...schema, properties: rest };
    return { ...schema, properties: { ...rest, hint }, required: ['code', 'message', 'hint'] };
  }
  if (name === 'BatchBody') {
    const write = refTo(shape === 'a' ? 'ItemBodyA' : 'ItemBodyB');
    const list = { type: 'array', minItems: 1, maxItems: BATCH_WRITES_MAX, items: write };
    return { ...schema, properties: { ...properties, items: list } };
  }
  return schema;
}

/** Every named schema in a shape. */
export function schemasOf(shape: Shape, generated: object = GENERATED.components.schemas ?? {}): Record<string, Json> {
  const out: Record<string, Json> = {};
  for (const [name, schema] of Object.entries(generated)) {
    const spelled = spelledSchema(shape, schema);
    if (isObject(spelled)) out[nameOf(name)] = completed(shape, nameOf(name), spelled);
  }
  return out;
}

/** The names in the references of a value. Quotes within its texts are escaped, so that no text looks like one. */
const namesIn = (value: unknown): string[] =>
  [...JSON.stringify(value).matchAll(/"\$ref":"#\/components\/schemas\/([^"]+)"/g)].map(([, name = '']) => name);

/** The schemas that `value` references, directly or not. Throws for an unknown name. */
export function schemasNamedBy(value: unknown, schemas: Readonly<Record<string, Json>>): Record<string, Json> {
  const wanted = new Set(namesIn(value));
  // Iteration of a set includes members added meanwhile.
  for (const name of wanted) {
    const schema = schemas[name];
    if (schema === undefined) throw new Error(`no schema ${name}`);
    for (const more of namesIn(schema)) wanted.add(more);
  }
  return Object.fromEntries([...wanted].sort().map((name) => [name, schemas[name] ?? {}]));
}

/** A reference to a named schema. */
export const refTo = (name: string): Json => ({ $ref: REF + name });
