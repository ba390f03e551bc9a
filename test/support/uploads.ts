/** Uploads in parts by plain HTTP, as any client makes them. */
import { send, type BytesReply } from './blobs.js';
import type { TestDevice } from './devices.js';
import { camel, type Reply, type Shape, type Wire } from './wire.js';

/** One PUT. */
export interface Part {
  readonly from: number;
  readonly size: number;
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
}

/** Where an upload stands. */
export interface Standing {
  readonly blobRef: string;
  readonly size: number;
  readonly offset: number;
  readonly expiresAt: number;
  readonly parts: readonly Part[];
}

type Who = Pick<TestDevice, 'token'>;

/** The least size of a part. */
export const PART = 5 * 1024 * 1024;

export const standingIn = (reply: Reply): Standing => {
  if (reply.status !== 200) throw new Error(`upload: ${reply.status} ${reply.raw}`);
  return camel(reply.body) as unknown as Standing;
};

/** Asks for an upload. */
export function askBegin(wire: Wire, device: Who, size: number, shape: Shape = 'a'): Promise<Reply> {
  return wire.post('/uploads', shape === 'a' ? { contentLength: size } : { size }, {
    token: device.token,
    shape,
  });
}

/** Begins an upload. Throws when it is refused. */
export const begun = async (wire: Wire, device: Who, size: number): Promise<Standing> =>
  standingIn(await askBegin(wire, device, size));

/** Asks where an upload stands. */
export function askStanding(wire: Wire, device: Who, ref: string, shape: Shape = 'a'): Promise<Reply> {
  return wire.post(`/uploads/${ref}`, undefined, { token: device.token, shape });
}

/** Where an upload stands. Throws when it is refused. */
export const standing = async (wire: Wire, device: Who, ref: string): Promise<Standing> =>
  standingIn(await askStanding(wire, device, ref));

/** Sends a part of the whole. */
export function put(part: Part, whole: Buffer): Promise<BytesReply> {
  const body = whole.subarray(part.from, part.from + part.size);
  return send('PUT', part.url, { headers: part.headers, body });
}

/** Sends all that is missing, in order; returns how many PUTs it took. Throws when one is refused. */
export async function sendRest(wire: Wire, device: Who, at: Standing, whole: Buffer): Promise<number> {
  let puts = 0;
  for (let now = at; now.offset < now.size; now = await standing(wire, device, now.blobRef)) {
    if (now.parts.length === 0) throw new Error('an upload that is not whole, and no part to send');
    for (const part of now.parts) {
      const reply = await put(part, whole);
      puts++;
      if (reply.status < 200 || reply.status > 299) throw new Error(`part at ${part.from}: ${reply.outcome}`);
    }
  }
  return puts;
}
