/** Holds replies and frames against the reference's own documents. Undocumented fields fail. */
import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js';
import type { Reply } from './wire.js';

type Json = Readonly<Record<string, unknown>>;

const objectOf = (value: unknown): Json => (typeof value === 'object' && value !== null ? (value as Json) : {});

/** A named schema that takes no field but its own: what is served may have more one day, what is tested may not. */
function closed(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(closed);
  if (typeof value !== 'object' || value === null) return value;
  const out = Object.fromEntries(Object.entries(value).map(([key, entry]) => [key, closed(entry)]));
  if (out['type'] === 'object' && !('additionalProperties' in out)) out['additionalProperties'] = false;
  return out;
}

const pointer = (part: string): string => encodeURIComponent(part.replaceAll('~', '~0').replaceAll('/', '~1'));

/** A document with named schemas: an OpenAPI document, or that of the frames. */
export class Documented {
  private readonly ajv = new Ajv2020({ strict: false, allErrors: true });
  private readonly compiled = new Map<string, ValidateFunction>();
  /** What was checked: `POST /api/items 200`. */
  readonly seen = new Set<string>();
  /** Whose body was checked: `POST /api/items`. */
  readonly taken = new Set<string>();

  constructor(readonly document: Json) {
    const components = objectOf(document['components']);
    const schemas = closed(components['schemas']);
    this.ajv.addSchema({ ...document, components: { ...components, schemas } }, 'document');
  }

  /** What is wrong with a value by the schema at `path` in the document; '' for nothing. */
  faults(path: readonly string[], value: unknown): string {
    const ref = `document#/${path.map(pointer).join('/')}`;
    let validate = this.compiled.get(ref);
    if (validate === undefined) {
      validate = this.ajv.compile({ $ref: ref });
      this.compiled.set(ref, validate);
    }
    return validate(value) ? '' : this.ajv.errorsText(validate.errors);
  }

  /** The operation that a request goes to: its path in the document. */
  private templateOf(method: string, path: string): string | undefined {
    const paths = objectOf(this.document['paths']);
    const candidates = path in paths ? [path] : Object.keys(paths);
    return candidates.find((template) => {
      if (!(method.toLowerCase() in objectOf(paths[template]))) return false;
      const literal = template.split(/\{[a-z]+\}/).map((part) => part.replaceAll(/[.*+?^$()[\]\\|]/g, '\\$&'));
      return new RegExp(`^${literal.join('[^/]+')}$`).test(path);
    });
  }

  /** What is wrong with a reply; '' for nothing. `path` is the whole path with its query. */
  replyFaults(method: string, path: string, reply: Reply): string {
    const template = this.templateOf(method, path.split('?')[0] ?? '');
    if (template === undefined) return `${method} ${path} is not documented`;
    const at = ['paths', template, method.toLowerCase(), 'responses', String(reply.status)];
    this.seen.add(`${method} ${template} ${reply.status}`);
    let found: unknown = this.document;
    for (const part of at) found = objectOf(found)[part];
    if (found === undefined)
      return `${method} ${template}: ${reply.status} is not documented (${reply.raw.slice(0, 200)})`;
    const content = objectOf(objectOf(found)['content']);
    if (!('application/json' in content)) return '';
    const faults = this.faults([...at, 'content', 'application/json', 'schema'], reply.body);
    return faults === '' ? '' : `${method} ${template} ${reply.status}: ${faults} in ${reply.raw.slice(0, 600)}`;
  }

  /** What is wrong with a request's body, as it stands on the wire; '' for nothing. */
  bodyFaults(method: string, path: string, body: unknown): string {
    const template = this.templateOf(method, path.split('?')[0] ?? '') ?? '';
    const at = ['paths', template, method.toLowerCase(), 'requestBody'];
    this.taken.add(`${method} ${template}`);
    const found = objectOf(objectOf(objectOf(this.document['paths'])[template])[method.toLowerCase()])['requestBody'];
    if (found === undefined)
      return Object.keys(objectOf(body)).length === 0 ? '' : `${method} ${template} takes no body`;
    return this.faults([...at, 'content', 'application/json', 'schema'], body);
  }

  /** Every operation of the document that takes a body of JSON: `POST /api/items`. */
  get bodies(): string[] {
    return Object.entries(objectOf(this.document['paths'])).flatMap(([path, methods]) =>
      Object.entries(objectOf(methods))
        .filter(
          ([, operation]) => 'application/json' in objectOf(objectOf(objectOf(operation)['requestBody'])['content']),
        )
        .map(([method]) => `${method.toUpperCase()} ${path}`),
    );
  }

  /** Every operation of the document with a status below 400: `POST /api/items 200`. */
  get successes(): string[] {
    return Object.entries(objectOf(this.document['paths'])).flatMap(([path, methods]) =>
      Object.entries(objectOf(methods)).flatMap(([method, operation]) =>
        Object.keys(objectOf(objectOf(operation)['responses']))
          .filter((status) => Number(status) < 400)
          .map((status) => `${method.toUpperCase()} ${path} ${status}`),
      ),
    );
  }
}
