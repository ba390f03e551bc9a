/** OpenAPI 3.1 documents, one per shape, from the route table, the descriptions in endpoints.ts and the schemas. */
import { codeOf, statusOf, type ErrorName } from '../protocol/errors.js';
import type { Shape } from '../protocol/shape.js';
import { PAGE_DEFAULT_A, PAGE_DEFAULT_B, PAGE_MAX } from '../protocol/limits.js';
import { ENDPOINTS, type Endpoint, type Reply, type SchemaName } from './endpoints.js';
import { refTo, schemasNamedBy, schemasOf, type Json } from './schemas.js';

/** A route of the route table (src/server/http/route.ts). */
export interface RouteFacts {
  readonly method: string;
  /** With parameters as `:id` and `:tenant/:ref`. */
  readonly path: string;
  readonly auth: 'device' | 'admin' | 'url' | 'none';
  readonly limit: string;
  /** Tenant states in which it is served. */
  readonly state: 'any' | 'read' | 'write';
  /** Largest body in bytes; 0: a body is ignored. */
  readonly body: number;
  /** It concerns the process, not the tenant of the host. */
  readonly tenantless?: true;
}

const LIMITS: Readonly<Record<string, string>> = {
  read: 'the read rate of the device',
  write: 'the write rate of the device',
  pair: 'attempts to pair, by address',
  password: 'attempts at the password, by address',
  challenge: 'challenges, by address',
  signup: 'five an hour, by address',
  payment: 'five a minute, by address or device',
  return: 'thirty a minute, by address',
  none: 'none',
};

/** Every named schema of a shape, with those without a type in the protocol. */
export const allSchemas = (shape: Shape): Record<string, Json> => ({
  ...schemasOf(shape),
  PageName: { type: 'string' },
});

/** Errors that follow from the columns of a route (reference, HTTP, order of checks). */
function errorsOfRow({ auth, state, body, tenantless }: RouteFacts): ErrorName[] {
  const errors: ErrorName[] = ['validation', 'internal'];
  if (tenantless && auth !== 'admin') return errors;
  if (!tenantless) errors.push('tenant_not_found');
  // Of each budget a caller has a share (reference, Limits).
  errors.push('unavailable', 'rate_limited');
  if (auth === 'device') errors.push('no_token', 'bad_token', 'expired_token', 'device_revoked');
  if (auth === 'url') errors.push('url_invalid');
  if (auth === 'admin') errors.push('no_token', 'forbidden');
  if (state !== 'any') errors.push('payment_required');
  if (state === 'write') errors.push('tenant_suspended');
  if (body > 0) errors.push('payload_too_large');
  return errors;
}

const nameIn = (shape: Shape, name: SchemaName): string => (typeof name === 'string' ? name : name[shape]);

/** By media type. */
type Content = Readonly<Record<string, { readonly schema?: Json }>>;

const json = (schema: Json): Content => ({ 'application/json': { schema } });

/** A response, by its status in `responses`. */
export interface Response {
  readonly description: string;
  readonly content: Content;
}
type Responses = Readonly<Record<string, Response>>;

/** One response per error status, with its possible codes. */
function refusals(shape: Shape, names: readonly ErrorName[], replies: readonly Reply[]): Responses {
  const byStatus = new Map<number, Set<string>>();
  for (const name of names) {
    const status = statusOf(name, shape);
    byStatus.set(status, (byStatus.get(status) ?? new Set()).add(codeOf(name, shape)));
  }
  const out: Record<string, Response> = {};
  for (const [status, codes] of [...byStatus].sort(([one], [other]) => one - other)) {
    const list = [...codes];
    const error = { properties: { code: { enum: list } } };
    const refusal: Json = { allOf: [refTo('ErrorReply'), { type: 'object', properties: { error } }] };
    // The endpoint has its own reply with this status: either is possible.
    const own = replies.find((reply) => reply.status === status)?.schema;
    const schema = own === undefined ? refusal : { anyOf: [refTo(nameIn(shape, own)), refusal] };
    out[String(status)] = { description: list.map((code) => `\`${code}\``).join(', '), content: json(schema) };
  }
  return out;
}

const BYTES: Content = { 'application/octet-stream': {} };

function repliesOf(shape: Shape, endpoint: Endpoint): Responses {
  const out: Record<string, Response> = {};
  for (const { status, when, schema, bytes } of endpoint.replies) {
    const text = status === 304 ? {} : bytes ? BYTES : { 'text/html': { schema: { type: 'string' } } };
    const content = schema === undefined ? text : json(refTo(nameIn(shape, schema)));
    out[String(status)] = { description: when, content };
  }
  return out;
}

/** The query parameters of a page of items (reference, HTTP). */
function pageParameters(shape: Shape): Parameter[] {
  const inB = shape === 'b';
  const limit = { type: 'integer', minimum: 1, default: inB ? PAGE_DEFAULT_B : PAGE_DEFAULT_A };
  const since = inB ? refTo('Count') : { ...refTo('Count'), default: 0 };
  const history = 'The history that `since` belongs to. Another one starts at 0, with `reset`.';
  const most = `Rows at most; above ${PAGE_MAX} counts as ${PAGE_MAX}.`;
  return [
    inQuery('since', 'Rows above this version.', since, inB),
    inQuery('limit', most, limit),
    inQuery('epoch', history, TEXT),
    inQuery('bin_id', 'Only this bin, over the same cursor. Spelled like this in both shapes.', refTo('BinId')),
  ];
}

interface Parameter {
  readonly name: string;
  readonly in: string;
  readonly required?: boolean;
  readonly description: string;
  readonly schema: Json;
}

function parametersOf(shape: Shape, { method, path, auth }: RouteFacts, endpoint: Endpoint): Parameter[] {
  const names = [...path.matchAll(PARAMETER)].map(([, name = '']) => name);
  const inPath = names.flatMap((name) => {
    const parameter = name === 'tenant' ? TENANT : endpoint.id;
    if (parameter === undefined) return [];
    const { schema, what } = parameter;
    return [{ name, in: 'path', required: true, description: what, schema: refTo(schema) }];
  });
  const signed = [...(method === 'PUT' ? [FROM] : []), ...SIGNED];
  return [
    ...inPath,
    ...(auth === 'url' ? signed : []),
    ...(endpoint.paged ? pageParameters(shape) : []),
    ...(endpoint.based ? [BASE] : []),
  ];
}

const PARAMETER = /:([a-z]+)/g;
const TENANT = { schema: 'Ulid', what: "The tenant's id." };

/** A parameter in the query of a URL. */
const inQuery = (name: string, description: string, schema: Json, required?: boolean): Parameter => ({
  ...{ name, in: 'query', required, description, schema },
});

const TEXT: Json = { type: 'string' };
const FROM = inQuery('from', 'Of a part of an upload: its position.', refTo('Count'));
const BASED_ON = 'The history that the change is based on. Where it is not the current one, nothing changes.';
const BASE = inQuery('epoch', BASED_ON, TEXT);

/** The parameters of a signed URL, which clients use unchanged. */
const SIGNED: readonly Parameter[] = [
  inQuery('exp', 'So long is the URL good.', refTo('Millis'), true),
  inQuery('sig', "The server's signature.", TEXT, true),
];

/** The header that selects the shape. */
const shapeParameter = (shape: Shape): Parameter => ({
  name: 'X-Wire-Shape',
  in: 'header',
  description: `Names the shape of request and reply. \`?shape=${shape}\` does the same.`,
  schema: { const: shape },
});

/** Stands in for a route missing in endpoints.ts, which a test reports. */
const UNKNOWN: Endpoint = { group: 'Others', summary: 'Not described', replies: [{ status: 200, when: 'Done.' }] };

/** What the document of a shape says of a route. */
export function operationOf(shape: Shape, row: RouteFacts) {
  const endpoint = ENDPOINTS[`${row.method} ${row.path}`] ?? UNKNOWN;
  const errors = [...errorsOfRow(row), ...(endpoint.errors ?? [])];
  const { body } = endpoint;
  const isApi = row.path.startsWith('/api/');
  const [successes, failures] = [repliesOf(shape, endpoint), refusals(shape, errors, endpoint.replies)];
  const required = body !== undefined && !['DeleteBody', 'BinDeleteBody', 'BinPatchBody'].includes(nameIn(shape, body));
  return {
    operationId: `${row.method.toLowerCase()}${row.path.replaceAll(/[^A-Za-z]+/g, '_').replace(/_+$/, '')}`,
    tags: [endpoint.group],
    summary: endpoint.summary,
    ...(endpoint.text === undefined ? {} : { description: endpoint.text }),
    security: row.auth === 'none' ? [] : [{ [row.auth]: [] }],
    parameters: [...parametersOf(shape, row, endpoint), ...(isApi ? [shapeParameter(shape)] : [])],
    ...(body === undefined ? {} : { requestBody: { required, content: json(refTo(nameIn(shape, body))) } }),
    ...(endpoint.bytes ? { requestBody: { required: true, content: BYTES } } : {}),
    responses: { ...successes, ...failures } as Responses,
    'x-limit': LIMITS[row.limit] ?? row.limit,
    'x-body-max': row.body,
    'x-tenant-state': row.state,
  };
}

/** The path in OpenAPI's syntax. */
export const templateOf = (path: string): string => path.replaceAll(PARAMETER, '{$1}');

const SECURITY: Json = {
  device: { type: 'http', scheme: 'bearer', description: 'The token of a device.' },
  admin: { type: 'http', scheme: 'bearer', description: "The operator's ADMIN_TOKEN." },
  url: { type: 'apiKey', in: 'query', name: 'sig', description: 'A signed URL that the server gave.' },
};

function info(shape: Shape, version: string): Json {
  const spelling =
    shape === 'a'
      ? 'Shape A: keys in camelCase, bytes as base64url without padding.'
      : 'Shape B: keys in snake_case (a request may use either spelling), bytes as standard base64 with padding.';
  return {
    title: `service, shape ${shape.toUpperCase()}`,
    version,
    license: { name: 'MIT', identifier: 'MIT' },
    description: `Encrypted multi-device sync. ${spelling} Of bytes in requests either alphabet is read, padded or not. The socket /ws is described in /docs/frames-${shape}.json.`,
  };
}

/**
 * The routes that the documents list. Excludes paths that end with a slash: these are aliases, which would give
 * generated code two operations with the same name.
 */
export const documented = <R extends Pick<RouteFacts, 'path'>>(routes: readonly R[]): readonly R[] =>
  routes.filter(({ path }) => path === '/' || !path.endsWith('/'));

/** The document of a shape. */
export function openApi(shape: Shape, routes: readonly RouteFacts[], version: string): Json {
  const paths: Record<string, Record<string, object>> = {};
  for (const row of documented(routes))
    (paths[templateOf(row.path)] ??= {})[row.method.toLowerCase()] = operationOf(shape, row);
  return {
    openapi: '3.1.0',
    info: info(shape, version),
    servers: [{ url: '/' }],
    paths,
    components: { schemas: schemasNamedBy(paths, allSchemas(shape)), securitySchemes: SECURITY },
  };
}
