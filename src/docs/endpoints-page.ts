/** The page that lists every endpoint of a shape, from its OpenAPI document. */
import type { Shape } from '../protocol/shape.js';
import type { Json } from './schemas.js';

const REF = '#/components/schemas/';

const objectOf = (value: unknown): Json =>
  typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : {};
const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? (value as unknown[]) : []);
const textOf = (value: unknown): string =>
  typeof value === 'string' || typeof value === 'number' ? String(value) : '';

/** Escapes text for the cell of a table, where `|` ends the cell. */
const cell = (text: string): string => text.replaceAll('|', '\\|').replaceAll('\n', ' ');

const link = (name: string): string => `[${name}](#${name.toLowerCase()})`;

function bounds(schema: Json): string {
  const { minimum, maximum, minLength, maxLength, minItems, maxItems } = schema;
  const range = (low: unknown, high: unknown, unit: string): string => {
    if (low === undefined && high === undefined) return '';
    const text =
      low === undefined
        ? `at most ${textOf(high)}`
        : high === undefined
          ? `at least ${textOf(low)}`
          : `${textOf(low)} to ${textOf(high)}`;
    return `, ${text}${unit}`;
  };
  return (
    range(minimum, maximum, '') + range(minLength, maxLength, ' characters') + range(minItems, maxItems, ' entries')
  );
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
  switch (schema['type']) {
    case 'array':
      return `list of ${typeInWords(schema['items'])}${bounds(schema)}`;
    case 'object':
      return objectInWords(schema);
    default:
      return `${textOf(schema['type']) || 'anything'}${bounds(schema)}`;
  }
}

function objectInWords(schema: Json): string {
  const values = schema['additionalProperties'];
  if (values !== undefined && Object.keys(objectOf(schema['properties'])).length === 0) {
    return `map to ${typeInWords(values)}`;
  }
  const fields = Object.entries(objectOf(schema['properties'])).map(([name, of]) => `\`${name}\` ${typeInWords(of)}`);
  return `{ ${fields.join(', ')} }`;
}

function fields(schema: Json): string {
  const required = new Set(listOf(schema['required']));
  const rows = Object.entries(objectOf(schema['properties'])).map(([name, of]) => {
    const optional = required.has(name) ? '' : ' (optional)';
    return `| \`${name}\`${optional} | ${cell(typeInWords(of))} | ${cell(textOf(objectOf(of)['description']))} |`;
  });
  return rows.length === 0 ? '' : `| Field | Type | Meaning |\n| --- | --- | --- |\n${rows.join('\n')}\n`;
}

function schemaSection([name, value]: readonly [string, unknown]): string {
  const schema = objectOf(value);
  const description = textOf(schema['description']);
  const table = fields(schema);
  const pattern = textOf(schema['pattern']);
  const kind = table === '' ? `${typeInWords(schema)}${pattern === '' ? '' : `, \`${pattern}\``}\n` : table;
  return `### ${name}\n\n${[description, kind].filter((part) => part !== '').join('\n\n')}`;
}

function parameters(operation: Json): string {
  const rows = listOf(operation['parameters'])
    .map(objectOf)
    .filter((parameter) => parameter['in'] !== 'header')
    .map((parameter) => {
      const schema = objectOf(parameter['schema']);
      const fallback = schema['default'] === undefined ? '' : ` Default ${textOf(schema['default'])}.`;
      const optional = parameter['required'] === true ? '' : ' (optional)';
      const name = parameter['in'] === 'path' ? `{${textOf(parameter['name'])}}` : `?${textOf(parameter['name'])}=`;
      return `| \`${name}\`${optional} | ${cell(typeInWords(schema))} | ${cell(textOf(parameter['description']))}${fallback} |`;
    });
  return rows.length === 0 ? '' : `\n\n| Parameter | Type | Meaning |\n| --- | --- | --- |\n${rows.join('\n')}`;
}

const STATES: Readonly<Record<string, string>> = {
  any: 'any',
  read: 'active, past due or suspended',
  write: 'active or past due',
};

function facts(operation: Json): string {
  const [security] = listOf(operation['security']).map((entry) => Object.keys(objectOf(entry)));
  const content = objectOf(objectOf(objectOf(operation['requestBody'])['content'])['application/json']);
  const max = Number(operation['x-body-max']);
  const body =
    content['schema'] === undefined ? 'none' : `${typeInWords(content['schema'])}, at most ${max / 1024} KiB`;
  return [
    `**Token** ${security?.[0] ?? 'none'}`,
    `**Limit** ${textOf(operation['x-limit'])}`,
    `**Tenant state** ${STATES[textOf(operation['x-tenant-state'])] ?? ''}`,
    `**Body** ${body}`,
  ].join(' · ');
}

function replies(operation: Json): string {
  const lines = Object.entries(objectOf(operation['responses'])).map(([status, value]) => {
    const response = objectOf(value);
    const schema = objectOf(objectOf(objectOf(response['content'])['application/json'])['schema']);
    if (Number(status) < 400) {
      const type = schema['$ref'] === undefined ? '' : `${typeInWords(schema)}. `;
      return `- **${status}** ${type}${textOf(response['description'])}`;
    }
    const own = listOf(schema['anyOf'])
      .map(objectOf)
      .find((one) => one['$ref'] !== undefined);
    const codes = textOf(response['description']).replace(/`([a-z_]+)`/g, '[`$1`](errors.md#$1)');
    return `- **${status}** ${own === undefined ? '' : `${typeInWords(own)}, or `}${codes}`;
  });
  return lines.join('\n');
}

interface Operation {
  readonly title: string;
  readonly group: string;
  readonly operation: Json;
}

function section({ title, operation }: Operation): string {
  const text = textOf(operation['description']);
  return [
    `### ${title}`,
    `${textOf(operation['summary'])}.${text === '' ? '' : ` ${text}`}`,
    facts(operation) + parameters(operation),
    replies(operation),
  ].join('\n\n');
}

/** The page as Markdown. `document`: the shape's OpenAPI document. */
export function endpointsPage(shape: Shape, document: Json): string {
  const operations = Object.entries(objectOf(document['paths'])).flatMap(([path, methods]) =>
    Object.entries(objectOf(methods)).map(([method, value]): Operation => {
      const operation = objectOf(value);
      const group = textOf(listOf(operation['tags'])[0]);
      return { title: `${method.toUpperCase()} ${path}`, group, operation };
    }),
  );
  const groups = [...new Set(operations.map(({ group }) => group))];
  const parts = groups.map((group) => {
    const sections = operations.filter((one) => one.group === group).map(section);
    return `## ${group}\n\n${sections.join('\n\n')}`;
  });
  const schemas = Object.entries(objectOf(objectOf(document['components'])['schemas'])).map(schemaSection);
  const name = shape.toUpperCase();
  return `# Endpoints in shape ${name}

Every endpoint with its parameters, body, replies and refusals, and below them every schema. The same for programs: [openapi-${shape}.json](openapi-${shape}.json), OpenAPI 3.1. The rules that all requests follow are on [HTTP](http.md).
Every request may name its shape by the header \`X-Wire-Shape: ${shape}\` or by \`?shape=${shape}\`. Codes link to the page on [errors](errors.md).

${parts.join('\n\n')}

## Schemas

Fields that are not marked as optional are always there. Replies may get more fields over time: ignore what you do not know.

${schemas.join('\n')}`;
}
