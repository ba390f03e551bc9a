/** Uploads and downloads by plain HTTP requests to signed URLs, as any client makes them. */
import { randomBytes } from 'node:crypto';
import { request, type ClientRequest, type IncomingHttpHeaders, type IncomingMessage } from 'node:http';
import { buffer as bufferOf } from 'node:stream/consumers';
import { newItem, sealedFor, type TestDevice } from './devices.js';
import { camel, type Reply, type Shape, type Wire } from './wire.js';

/** An answer in bytes. */
export interface BytesReply {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly bytes: Buffer;
  /** Status, and the code of a refusal. */
  readonly outcome: string;
}

/** What a device was given for an upload. */
interface Upload {
  readonly blobRef: string;
  readonly url: string;
  readonly expiresAt: number;
  readonly headers: Readonly<Record<string, string>>;
}

async function replyOf(incoming: IncomingMessage): Promise<BytesReply> {
  const bytes = await bufferOf(incoming);
  const status = incoming.statusCode ?? 0;
  const isError = status >= 400 && incoming.headers['content-type'] === 'application/json';
  const code = isError ? (JSON.parse(bytes.toString()) as { error: { code: string } }).error.code : '';
  return { status, headers: incoming.headers, bytes, outcome: code === '' ? String(status) : `${status} ${code}` };
}

/** A request to a signed URL whose body the test writes itself. */
export function openRequest(
  method: string,
  url: string,
  headers: Readonly<Record<string, string>> = {},
): { readonly sent: ClientRequest; readonly reply: Promise<BytesReply> } {
  const sent = request(url, { method, headers, agent: false });
  const reply = new Promise<BytesReply>((resolve, reject) => {
    sent.on('response', (incoming) => replyOf(incoming).then(resolve, reject));
    sent.on('error', reject);
  });
  // A test may look at it late, or not at all.
  reply.catch(() => undefined);
  return { sent, reply };
}

/** Sends the body in one piece. */
export async function send(
  method: string,
  url: string,
  options: { readonly headers?: Readonly<Record<string, string>>; readonly body?: Buffer } = {},
): Promise<BytesReply> {
  const { sent, reply } = openRequest(method, url, options.headers);
  sent.end(options.body);
  return reply;
}

/** Asks for an upload URL. */
export function askUpload(
  wire: Wire,
  device: Pick<TestDevice, 'token'>,
  { size, type, shape = 'a' }: { readonly size: number; readonly type?: string; readonly shape?: Shape },
): Promise<Reply> {
  const body = shape === 'a' ? { contentLength: size, contentType: type } : { size, contentType: type };
  return wire.post('/blobs/upload-url', body, { token: device.token, shape });
}

/** An upload URL that must be given. */
export async function uploadOf(
  wire: Wire,
  device: Pick<TestDevice, 'token'>,
  wish: { readonly size: number; readonly type?: string; readonly shape?: Shape },
): Promise<Upload> {
  const reply = await askUpload(wire, device, wish);
  if (reply.status !== 200) throw new Error(`upload-url: ${reply.status} ${reply.raw}`);
  return camel(reply.body) as unknown as Upload;
}

/** Uploads bytes; answers the blob's name. Throws when it is refused. */
export async function uploaded(wire: Wire, device: Pick<TestDevice, 'token'>, bytes: Buffer): Promise<string> {
  const { blobRef, url, headers } = await uploadOf(wire, device, { size: bytes.length });
  const reply = await send('PUT', url, { headers, body: bytes });
  if (reply.status !== 200) throw new Error(`upload: ${reply.outcome}`);
  return blobRef;
}

/** The download URL of a blob. Throws when there is none. */
export async function downloadUrl(wire: Wire, device: Pick<TestDevice, 'token'>, ref: string): Promise<string> {
  const reply = await wire.get(`/blobs/${ref}/url`, { token: device.token });
  if (reply.status !== 200) throw new Error(`download-url: ${reply.status} ${reply.raw}`);
  return reply.text('url');
}

/** The body of a write that names a blob, before `spelled`; without metadata beside it. */
export function blobItem(shape: Shape, devices: readonly string[], blobRef: string): Record<string, unknown> {
  const { id, binId, type, ts, keys } = newItem(devices, { type: 'file' });
  const nonce = randomBytes(24);
  if (shape === 'a') return { id, binId, type, ts, blobRef, blobNonce: nonce, blobKeys: keys };
  const wrapped = Object.entries(sealedFor(...devices)).map(([deviceId, key]) => ({ deviceId, key }));
  return { id, binId, type, ts, nonce, ct: '', wrapped, blobRef };
}
