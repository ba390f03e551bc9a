/** The pages on the endpoints, one per subject, made from the operations of the OpenAPI documents and the examples. */
import { isObject } from '../protocol/bytes.js';
import type { Shape } from '../protocol/shape.js';
import { EXAMPLES, SDK_BEGIN, SDK_END, VARIABLES } from './examples.js';
import { slugOf } from './markdown.js';
import { allSchemas, documented, operationOf, templateOf, type Response, type RouteFacts } from './openapi.js';
import { REF, schemasNamedBy, type Json } from './schemas.js';
import type { Source } from './site.js';

const objectOf = (value: unknown): Json => (isObject(value) ? value : {});
const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? (value as unknown[]) : []);
const textOf = (value: unknown): string =>
  typeof value === 'string' || typeof value === 'number' ? String(value) : '';

/** Escapes text for the cell of a table, where `|` ends the cell. */
const cell = (text: string): string => text.replaceAll('|', '\\|').replaceAll('\n', ' ');

const link = (name: string): string => `[${name}](#${name.toLowerCase()})`;

/** The bounds of a schema's value, length or entries: `, 1 to 64 characters`. */
function bounds({ minimum, maximum, minLength, maxLength, minItems, maxItems }: Json): string {
  const range = (low: unknown, high: unknown, unit: string): string => {
    if (low === undefined && high === undefined) return '';
    if (low === undefined) return `, at most ${textOf(high)}${unit}`;
    if (high === undefined) return `, at least ${textOf(low)}${unit}`;
    return `, ${textOf(low)} to ${textOf(high)}${unit}`;
  };
  const ofText = range(minLength, maxLength, ' characters');
  return range(minimum, maximum, '') + ofText + range(minItems, maxItems, ' entries');
}

/** A schema in words, with links to the named ones. */
function typeInWords(value: unknown): string {
  const schema = objectOf(value);
  if (typeof schema['$ref'] === 'string') return link(schema['$ref'].slice(REF.length));
  const either = listOf(schema['oneOf'] ?? schema['anyOf']);
  if (either.length > 0) {
    const words = either.map(typeInWords);
    // Null last.
    return [...words.filter((word) => word !== 'null'), ...words.filter((word) => word === 'null')].join(' or ');
  }
  if ('const' in schema) return `\`${JSON.stringify(schema['const'])}\``;
  const choices = listOf(schema['enum']);
  if (choices.length > 0) return choices.map((choice) => `\`${JSON.stringify(choice)}\``).join(', ');
  if (schema['type'] === 'array') return `list of ${typeInWords(schema['items'])}${bounds(schema)}`;
  if (schema['type'] === 'object') return objectInWords(schema);
  return `${textOf(schema['type']) || 'anything'}${bounds(schema)}`;
}

function objectInWords(schema: Json): string {
  const values = schema['additionalProperties'];
  if (values !== undefined && Object.keys(objectOf(schema['properties'])).length === 0)
    return `map to ${typeInWords(values)}`;
  const fields = Object.entries(objectOf(schema['properties'])).map(([name, of]) => `\`${name}\` ${typeInWords(of)}`);
  return `{ ${fields.join(', ')} }`;
}

function fieldTable(schema: Json): string {
  const required = new Set(listOf(schema['required']));
  const rows = Object.entries(objectOf(schema['properties'])).map(([name, of]) => {
    const optional = required.has(name) ? '' : ' (optional)';
    return `| \`${name}\`${optional} | ${cell(typeInWords(of))} | ${cell(textOf(objectOf(of)['description']))} |`;
  });
  return rows.length === 0 ? '' : `| Field | Type | Meaning |\n| --- | --- | --- |\n${rows.join('\n')}\n`;
}

function schemaSection([name, schema]: readonly [string, Json]): string {
  const description = textOf(schema['description']);
  const table = fieldTable(schema);
  const pattern = textOf(schema['pattern']);
  const kind = table === '' ? `${typeInWords(schema)}${pattern === '' ? '' : `, \`${pattern}\``}\n` : table;
  return `### ${name}\n\n${[description, kind].filter((part) => part !== '').join('\n\n')}`;
}

function parameterTable({ parameters }: ShapeOperation): string {
  const rows = parameters
    .filter((parameter) => parameter.in !== 'header')
    .map(({ name, in: place, required, description, schema }) => {
      const fallback = schema['default'] === undefined ? '' : ` Default ${textOf(schema['default'])}.`;
      const optional = required ? '' : ' (optional)';
      const shown = place === 'path' ? `{${name}}` : `?${name}=`;
      return `| \`${shown}\`${optional} | ${cell(typeInWords(schema))} | ${cell(description)}${fallback} |`;
    });
  return rows.length === 0 ? '' : `\n\n| Parameter | Type | Meaning |\n| --- | --- | --- |\n${rows.join('\n')}`;
}

const STATES: Readonly<Record<RouteFacts['state'], string>> = {
  any: 'any',
  read: 'active, past due or suspended',
  write: 'active or past due',
};

/** The schema of a body or reply in JSON; undefined for any other. */
const schemaOf = (message: Pick<Response, 'content'> | undefined): Json | undefined =>
  message?.content['application/json']?.schema;

type ShapeOperation = ReturnType<typeof operationOf>;

/** One operation in both shapes. */
interface Operation {
  /** As in the route table: `GET /api/bins/:id`. */
  readonly key: string;
  /** `GET /api/bins/{id}`. */
  readonly title: string;
  readonly a: ShapeOperation;
  readonly b: ShapeOperation;
}

/** The texts for both shapes, or one if they are the same. */
const forShapes = (a: string, b: string): string => (a === b ? a : `${a}, in shape B ${b}`);

/** Token, limit, tenant state and body in one line. */
function summaryLine({ a, b }: Operation): string {
  const [security = {}] = a.security;
  const [inA = '', inB = ''] = [a, b].map(({ requestBody }) => {
    const schema = schemaOf(requestBody);
    return schema === undefined ? 'none' : typeInWords(schema);
  });
  const max = inA === 'none' ? '' : `, at most ${a['x-body-max'] / 1024} KiB`;
  return [
    `**Token** ${Object.keys(security)[0] ?? 'none'}`,
    `**Limit** ${a['x-limit']}`,
    `**Tenant state** ${STATES[a['x-tenant-state']]}`,
    `**Body** ${forShapes(inA, inB)}${max}`,
  ].join(' · ');
}

/** The error codes of a response, with links to their pages. */
const codesOf = (response: Response): string => response.description.replace(/`([a-z_]+)`/g, '[`$1`](error-$1.md)');

/** The endpoint's own reply where it has the status of a refusal: `refusals` (openapi.ts) puts it before the refusal. */
const ownReply = (response: Response): unknown => listOf(schemaOf(response)?.['anyOf'])[0];

function replies({ a, b }: Operation): string {
  const statuses = [...new Set([a, b].flatMap(({ responses }) => Object.keys(responses)))].sort();
  const lines = statuses.map((status) => {
    const [one, other] = [a.responses[status], b.responses[status]];
    if (one === undefined) return other && `- **${status}** in shape B only: ${codesOf(other)}`;
    if (other === undefined) return `- **${status}** in shape A only: ${codesOf(one)}`;
    if (Number(status) < 400) {
      const [first = '', second = ''] = [one, other].map(
        (response) => schemaOf(response) && typeInWords(schemaOf(response)),
      );
      return `- **${status}** ${first === '' ? '' : `${forShapes(first, second)}. `}${one.description}`;
    }
    const own = ownReply(one);
    const orOwn = own === undefined ? '' : `${typeInWords(own)}, or `;
    return `- **${status}** ${orOwn}${forShapes(codesOf(one), codesOf(other))}`;
  });
  return lines.join('\n');
}

const fenced = (language: string, text: string): string => `\`\`\`${language}\n${text}\n\`\`\``;

function example({ key }: Operation): string {
  const found = EXAMPLES[key];
  if (found === undefined) return '';
  const { shell, sdk, without = '' } = found;
  const library = sdk === undefined ? without : fenced('ts', `${sdk}\n${SDK_END}`);
  return `${fenced('sh', shell)}\n\n${library}`;
}

function section(one: Operation): string {
  const { summary, description } = one.a;
  return [
    `## \`${one.title}\``,
    `${summary}.${description === undefined ? '' : ` ${description}`}`,
    summaryLine(one) + parameterTable(one.a),
    example(one),
    replies(one),
  ].join('\n\n');
}

const SHELL = `The examples need \`bash\` or \`zsh\`, \`curl\` 7.76 or newer, and the [variables](endpoints.md#variables) that they name. \`-H @<(…)\` keeps a token out of the list of processes.`;

/** The introduction to the examples of a page. */
function examplesIntro(operations: readonly Operation[]): string {
  const sdk = operations.some(({ key }) => EXAMPLES[key]?.sdk !== undefined);
  const library = `Those of the [client library](sdk.md) follow these lines in one file; \`identity.json\` is a saved identity:\n\n${fenced('ts', SDK_BEGIN.trimEnd())}`;
  return sdk ? `${SHELL} ${library}` : SHELL;
}

/** The schemas that the bodies and replies of operations refer to; those of shape B if it has other ones. */
function schemas(operations: readonly Operation[]): string {
  const named = (shape: Shape): Record<string, Json> => {
    const parts = operations.map(({ [shape]: { requestBody, parameters, responses } }) => {
      const replies = Object.entries(responses).map(([status, response]) =>
        // Of an error response, only the endpoint's own reply with that status.
        Number(status) < 400 ? response : ownReply(response),
      );
      return [requestBody, parameters, replies];
    });
    return schemasNamedBy(parts, allSchemas(shape));
  };
  const found = Object.entries({ ...named('b'), ...named('a') }).sort(([one], [other]) => (one < other ? -1 : 1));
  return found.length === 0
    ? ''
    : `## Schemas\n\nFields that are not marked as optional are always there. Replies may get more fields over time: ignore what you do not know.\n\n${found.map(schemaSection).join('\n')}`;
}

const pageName = (group: string): string => `endpoints-${group.toLowerCase()}`;

function subjectPage(group: string, operations: readonly Operation[]): string {
  const parts = operations.map(section);
  return `# ${group}\n\nThe rules that all requests follow are on [HTTP](http.md). Names are those of shape A; shape B spells them in snake_case.\n\n${examplesIntro(operations)}\n\n${parts.join('\n\n')}\n\n${schemas(operations)}\n`;
}

function overview(groups: ReadonlyMap<string, readonly Operation[]>): string {
  const rows = [...groups].map(([group, operations]) => {
    const lines = operations.map(({ title, a }) => {
      return `| [\`${title}\`](${pageName(group)}.md#${slugOf(title)}) | ${cell(a.summary)} |`;
    });
    return `## ${group}\n\n[All of ${group.toLowerCase()}](${pageName(group)}.md)\n\n| Endpoint | Does |\n| --- | --- |\n${lines.join('\n')}`;
  });
  const variables = Object.entries(VARIABLES).map(([name, what]) => `| \`${name}\` | ${what} |`);
  return `# Endpoints

Every endpoint, one page for each subject: parameters, body, replies, refusals, and an example for \`curl\` and for the [client library](sdk.md). Tests run every example as it stands here, and compare the replies of a running server with these pages.

The same for programs, as OpenAPI 3.1: [openapi-a.json](openapi-a.json), [openapi-b.json](openapi-b.json).

There are two spellings of the same wire format. Shape A has keys in camelCase and bytes as base64url without padding. Shape B has keys in snake_case (a request may use either) and bytes as standard base64 with padding. A request names its shape by the header \`X-Wire-Shape: a\` or by \`?shape=a\`. The pages show shape A, and B where more than the spelling differs.

${rows.join('\n\n')}

## Variables

Variables of the shell that the examples use.

| Variable | Holds |
| --- | --- |
${variables.join('\n')}
`;
}

/** Former names of the overview page, under which it is still served. */
export const ENDPOINT_ALIASES: readonly string[] = ['endpoints-a', 'endpoints-b'];

/** The page of all endpoints, and one per subject. */
export function endpointPages(routes: readonly RouteFacts[]): Source[] {
  const groups = new Map<string, Operation[]>();
  for (const route of documented(routes)) {
    const [a, b] = [operationOf('a', route), operationOf('b', route)];
    const { method, path } = route;
    const operation = { key: `${method} ${path}`, title: `${method} ${templateOf(path)}`, a, b };
    for (const group of a.tags) groups.set(group, [...(groups.get(group) ?? []), operation]);
  }
  const pages = [...groups].map(([group, operations]): Source => ({
    name: pageName(group),
    title: group,
    parent: 'endpoints',
    markdown: subjectPage(group, operations),
  }));
  return [{ name: 'endpoints', title: 'Endpoints', markdown: overview(groups) }, ...pages];
}
