/** Transfers that resume against a server and a store that lie about what they have. */
import { randomBytes } from 'node:crypto';
import type { OutgoingHttpHeaders } from 'node:http';
import t from 'tap';
import { SEALED_CHUNK_BYTES, sealedBlobSize } from '../src/crypto/blob-stream.js';
import { downloadBlob } from '../src/sdk/blobs/download.js';
import { bytesSource } from '../src/sdk/blobs/source.js';
import { uploadBlob } from '../src/sdk/blobs/upload.js';
import { readUpload } from '../src/sdk/replies.js';
import { decryptorOf, PART_BYTES, standInStore, transfers, type Trick } from './support/blob-store.js';
import { newId } from './support/client.js';

const HEAD = { type: 'file', ts: () => 1_760_000_000_123 } as const;
const CONTENT = randomBytes(9 * 1024 * 1024 + 5);
const SIZE = sealedBlobSize(CONTENT.length);
const content = { ...HEAD, source: bytesSource(CONTENT) };

void t.test('CBLOB-59: the offset in the refusal of a part is ignored', async (t) => {
  const store = await standInStore(t);
  for (const offset of [0, -1, 17, PART_BYTES, SIZE, SIZE + 1, 2 ** 60, '5', null]) {
    const all = transfers(store);
    const refuses: Trick = (_, response) => {
      const body = { error: { code: 'upload_offset', message: 'elsewhere', details: { offset } }, offset };
      response.writeHead(409, { 'content-type': 'application/json' }).end(JSON.stringify(body));
      return true;
    };
    store.tricks.push(refuses, () => false, refuses, refuses);
    const { ref } = await uploadBlob(all.ports, { ...content, id: newId() });
    t.equal(store.objects.get(`/${ref}`)?.length, SIZE, `${offset}`);
  }
});

void t.test('CBLOB-60: a server that repeatedly has less than it accepted is given up', async (t) => {
  const store = await standInStore(t);
  const all = transfers(store);
  let asked = 0;
  // Each answer reports more progress than any before, and each accepted part is lost.
  all.alterState = (truth) => {
    const offset = 300_000 * asked++;
    const { url = '', headers = null } = truth.parts[0] ?? {};
    return { ...truth, offset, parts: [{ from: offset, size: Math.min(PART_BYTES, SIZE - offset), url, headers }] };
  };
  store.tricks.push(
    ...Array.from({ length: 60 }, (): Trick => (_, response) => {
      response.writeHead(200).end();
      return true;
    }),
  );
  await t.rejects(uploadBlob(all.ports, { ...content, id: newId() }), { code: 'bad_upload' });
  t.equal(store.calls.length, 11, 'eleven parts are sent before that');
});

/** The second answer of a download, whose first one was cut in the chunk that begins at `from`. */
interface Lie {
  readonly status: number;
  readonly headers?: OutgoingHttpHeaders;
  readonly body?: Buffer;
  /** How the download ends. */
  readonly ends: 'whole' | 'bad_ct' | 'malformed';
}

void t.test('CBLOB-61: whatever a range is answered with, only bytes of the content are handed on', async (t) => {
  const store = await standInStore(t);
  const all = transfers(store);
  const { ref, draft } = await uploadBlob(all.ports, { ...content, id: newId() });
  const whole = store.objects.get(`/${ref}`) ?? Buffer.alloc(0);
  const other = await uploadBlob(all.ports, { ...content, id: newId() });
  const swapped = store.objects.get(`/${other.ref}`) ?? Buffer.alloc(0);
  const chunk = (at: number): Buffer => whole.subarray(at * SEALED_CHUNK_BYTES, (at + 1) * SEALED_CHUNK_BYTES);
  const CUT = 5;
  const from = CUT * SEALED_CHUNK_BYTES;
  const rest = whole.subarray(from);
  const range = `bytes ${from}-${SIZE - 1}/${SIZE}`;
  const partial = (body: Buffer, told = range): Omit<Lie, 'ends'> => ({
    status: 206,
    headers: { 'content-range': told },
    body,
  });
  const exchanged = Buffer.concat([chunk(CUT + 1), chunk(CUT), rest.subarray(2 * SEALED_CHUNK_BYTES)]);
  const lies: Readonly<Record<string, Lie>> = {
    'the truth': { ...partial(rest), ends: 'whole' },
    'another end and total': { ...partial(rest, `bytes ${from}-9/7`), ends: 'whole' },
    'no Content-Range': { status: 206, body: rest, ends: 'whole' },
    'no Content-Range, from the beginning': { status: 206, body: whole, ends: 'bad_ct' },
    'another range': { ...partial(whole, `bytes 0-${SIZE - 1}/${SIZE}`), ends: 'malformed' },
    'a range that begins with the same digits': {
      ...partial(rest, `bytes ${from}0-${SIZE}/${SIZE}`),
      ends: 'malformed',
    },
    'another unit': { ...partial(rest, `items ${from}-${SIZE - 1}/${SIZE}`), ends: 'malformed' },
    'several ranges': {
      ...{ status: 206, headers: { 'content-type': 'multipart/byteranges; boundary=x' } },
      ...{ body: Buffer.concat([Buffer.from('--x\r\ncontent-range: x\r\n\r\n'), rest]), ends: 'bad_ct' },
    },
    'other bytes': { ...partial(whole.subarray(from - 1)), ends: 'bad_ct' },
    'exchanged chunks': { ...partial(exchanged), ends: 'bad_ct' },
    'a chunk twice': { ...partial(Buffer.concat([chunk(CUT - 1), rest])), ends: 'bad_ct' },
    'one chunk less': { ...partial(rest.subarray(SEALED_CHUNK_BYTES)), ends: 'bad_ct' },
    'another blob': { ...partial(swapped.subarray(from)), ends: 'bad_ct' },
    'another blob after a chunk': {
      ...partial(Buffer.concat([chunk(CUT), swapped.subarray(from + SEALED_CHUNK_BYTES)])),
      ends: 'bad_ct',
    },
    'bytes behind the end': { ...partial(Buffer.concat([rest, Buffer.alloc(9)])), ends: 'bad_ct' },
    'all of it': { status: 200, body: whole, ends: 'whole' },
    'all of it, and more': { status: 200, body: Buffer.concat([whole, whole]), ends: 'bad_ct' },
    'the rest as all of it': { status: 200, body: rest, ends: 'bad_ct' },
    'another blob from its beginning': { status: 200, body: swapped, ends: 'bad_ct' },
    'nothing as all of it': { status: 200, body: Buffer.alloc(0), ends: 'whole' },
    'no content': { status: 204, ends: 'whole' },
    'no such range': { status: 416, ends: 'bad_ct' },
  };
  for (const [what, lie] of Object.entries(lies)) {
    const cut: Trick = (_, response) => {
      response.writeHead(200, { 'content-length': SIZE });
      response.write(whole.subarray(0, from + 1_000), () => response.destroy());
      return true;
    };
    const answers: Trick = ({ headers }, response) => {
      t.equal(headers.range, `bytes=${from}-`);
      response.writeHead(lie.status, lie.headers).end(lie.body);
      return true;
    };
    store.tricks.push(cut, answers);
    const got: Uint8Array[] = [];
    const ended = await (async () => {
      for await (const part of downloadBlob(all.ports, { ref, decryptor: decryptorOf(draft, ref) }))
        got.push(new Uint8Array(part));
      return 'whole';
    })().catch((error: unknown) => error);
    const bytes = Buffer.concat(got);
    t.ok(bytes.equals(CONTENT.subarray(0, bytes.length)), `${what}: ${bytes.length} bytes, all of the content`);
    if (lie.ends === 'whole') t.strictSame([ended, bytes.length], ['whole', CONTENT.length], what);
    else t.match(ended, lie.ends === 'bad_ct' ? { reason: 'bad_ct' } : { code: lie.ends }, what);
    store.tricks.length = 0;
  }
});

void t.test('CBLOB-62: a reference with any character beyond an id and its suffix is refused', (t) => {
  const id = newId();
  const reply = { size: 9, offset: 0, expiresAt: 1, parts: [] };
  t.match(readUpload({ ...reply, blobRef: `${id}.bin` }, 'reply'), { blobRef: `${id}.bin` });
  const refs = [
    '',
    id,
    `../${id}.bin`,
    `${id}.bin/..`,
    `${id}/.bin`,
    `${id}.bin\n`,
    `%2e%2e%2f${id}.bin`,
    `${id}.bin?x=1`,
  ];
  for (const blobRef of [...refs, `${id}.bin#`, `${id}\\.bin`, `${id}.bin\0`, '.', '..', 7, null])
    t.throws(() => readUpload({ ...reply, blobRef }, 'reply'), { name: 'ProtocolError' }, JSON.stringify(blobRef));
  t.end();
});
