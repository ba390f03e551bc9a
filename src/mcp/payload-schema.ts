/**
 * The payloads of the ten types as JSON Schema, each with an example, for the model that fills them in. Derived from
 * the shapes that a put is validated against; only those decide what is accepted.
 */
import { fieldsOf, kindOf, mainFields } from '../sdk/payloads/shapes.js';
import type { JsonObject } from '../crypto/payload.js';
import { CONTENT_TYPES, type ContentType } from '../protocol/item.js';

interface Lesson {
  readonly says: string;
  readonly example: JsonObject;
}

const LESSONS: Readonly<Record<ContentType, Lesson>> = {
  password: {
    says: 'A login, a key, a PIN or the password of a Wi-Fi network.',
    example: { service: 'Wi-Fi at home', user: 'Fritz-7590', secret: 'correct horse battery' },
  },
  link: {
    says: 'A web address.',
    example: {
      url: 'https://www.postgresql.org/docs/current/indexes.html',
      title: 'Indexes in PostgreSQL',
      desc: 'Which kinds there are',
      site: 'postgresql.org',
    },
  },
  text: { says: 'A note, or any text that fits no other type.', example: { text: 'Milk, bread, coffee' } },
  code: {
    says: 'Source code, a command or a query.',
    example: { lang: 'sql', label: 'Users per day', text: 'SELECT date(at), count(*) FROM visits GROUP BY 1' },
  },
  image: {
    says: 'What a picture shows; not the picture.',
    example: { w: 1600, h: 1200, label: 'Whiteboard of Monday', mime: 'image/png' },
  },
  file: {
    says: 'Name, size and type of a file; not its content.',
    example: { name: 'contract.pdf', size: 48213, mime: 'application/pdf' },
  },
  audio: {
    says: 'What a recording is; not the sound.',
    example: { duration: 92.5, label: 'Call with the landlord', mime: 'audio/mpeg' },
  },
  video: {
    says: 'What a film is; not the film.',
    example: { title: 'Building the shelf', duration: 314, mime: 'video/mp4' },
  },
  contact: {
    says: 'A person or company.',
    example: { name: 'Ada Lovelace', role: 'Plumber', email: 'ada@example.com', phone: '+44 20 7946 0958' },
  },
  location: {
    says: 'A place: name, addr, or lat and lng.',
    example: { name: 'Office', addr: 'Unter den Linden 1, Berlin', lat: 52.5163, lng: 13.3777 },
  },
};

/** Descriptions of fields whose name is not self-explanatory. */
const MEANINGS: Readonly<Record<string, string>> = {
  service: 'What it is for: a site, a device, a network.',
  user: 'User name; for Wi-Fi the name of the network.',
  site: 'Host or name of the site.',
  lang: "The language's usual name, lower case.",
  w: 'Pixels.',
  h: 'Pixels.',
  size: 'Bytes.',
  duration: 'Seconds.',
  mime: 'Media type.',
  lat: 'Degrees, -90 to 90.',
  lng: 'Degrees, -180 to 180.',
};

/** `main`: the field must not be empty. */
function fieldSchema(type: ContentType, field: string, main: boolean): JsonObject {
  const number = kindOf(type, field) === 'number';
  return {
    type: number ? 'number' : 'string',
    ...(main && !number ? { minLength: 1 } : {}),
    ...(MEANINGS[field] === undefined ? {} : { description: MEANINGS[field] }),
  };
}

function payloadSchema(type: ContentType): JsonObject {
  const main = mainFields(type);
  const { says, example } = LESSONS[type];
  return {
    title: type,
    description: says,
    type: 'object',
    properties: Object.fromEntries(fieldsOf(type).map((name) => [name, fieldSchema(type, name, main.includes(name))])),
    ...(main.length === 0 ? {} : { required: main }),
    additionalProperties: false,
    examples: [example],
  };
}

/** JSON Schema of a payload, one alternative for each type, with the type's name as its title. */
export const PAYLOAD_SCHEMAS: readonly JsonObject[] = CONTENT_TYPES.map(payloadSchema);
