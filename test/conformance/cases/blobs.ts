/** Blobs: addresses, the bytes behind them, and items that name them. */
import { randomBytes } from 'node:crypto';
import { send } from '../../support/blobs.js';
import { newId, sealedFor } from '../../support/devices.js';
import type { Json, Reply } from '../../support/wire.js';
import { NotApplicable } from '../check.js';
import { CODES, type Case, type Stage } from '../stage.js';

const SIZE = 3_000;

async function asked(stage: Stage, size: unknown): Promise<Reply> {
  const contentType = 'application/octet-stream';
  const body = stage.shape === 'a' ? { contentLength: size, contentType } : { size, contentType };
  const reply = await stage.wire.post('/blobs/upload-url', body, stage.as());
  if (reply.status === 404) throw new NotApplicable('the server takes no blobs');
  return reply;
}

const headersOf = (reply: Reply): Record<string, string> => (reply.at('headers') ?? {}) as Record<string, string>;

/** A write that names a blob, without metadata: in B the blob's nonce and keys stand in the item's place (SHAPE-19). */
function naming({ shape, world }: Stage, blobRef: string): Json {
  const head = { id: newId(), binId: world.bin, type: 'file', ts: Date.now(), blobRef, sig: randomBytes(32) };
  const [nonce, keys] = [randomBytes(24), sealedFor(...world.ids)];
  if (shape === 'a') return { ...head, blobNonce: nonce, blobKeys: keys };
  return { ...head, ct: '', nonce, wrapped: Object.entries(keys).map(([deviceId, key]) => ({ deviceId, key })) };
}

const transfer: Case = {
  ids: ['BLOB-01', 'BLOB-02', 'BLOB-03', 'BLOB-04', 'BLOB-05', 'BLOB-06', 'BLOB-07', 'BLOB-41'],
  async run(stage, check) {
    const { wire, shape } = stage;
    const content = randomBytes(SIZE);
    const grant = await asked(stage, SIZE);
    const granted = shape === 'a' ? ['blobRef', 'expiresAt'] : ['blob_ref', 'expires_at'];
    for (const key of [...granted, 'url', 'headers'])
      check.of('BLOB-41', grant, grant.at(key) !== undefined, `'${key}' of an upload`);
    const [refKey = '', expiresKey = ''] = granted;
    const ref = grant.text(refKey);
    check.of('BLOB-01', grant, /^[0-7][0-9A-HJKMNP-TV-Z]{25}\.bin$/.test(ref), 'blobRef is <ULID>.bin');
    check.of('BLOB-01', grant, URL.canParse(grant.text('url')), 'an absolute url');
    const life = grant.number(expiresKey) - Date.now();
    check.of('BLOB-01', grant, life > 13 * 60_000 && life < 17 * 60_000, 'expiresAt 15 minutes ahead');
    for (const size of [0, -1, 1.5, 'x', null])
      check.outcome('BLOB-04', await asked(stage, size), CODES.validation[shape], `a size of ${String(size)}`);
    const write = async (): Promise<Reply> => wire.post('/items', naming(stage, ref), stage.as());
    const unknown = '400 blob_not_found';
    check.outcome('BLOB-05', await write(), unknown, 'an item that names a blob that was not uploaded');
    const missing = await wire.get(`/blobs/${ref}/url`, stage.as());
    check.outcome('BLOB-05', missing, '404 blob_not_found', 'its download address');
    // A server may refuse by closing the connection before it has read the whole body: then there is no answer (0).
    const put = async (url: string, body: Buffer): Promise<number> =>
      send('PUT', url, { headers: { ...headersOf(grant), 'content-length': String(body.length) }, body }).then(
        ({ status }) => status,
        () => 0,
      );
    const bad = async (rule: string, url: string, body: Buffer, what: string): Promise<void> => {
      const status = await put(url, body);
      check.same(
        rule,
        status === 0 || (status >= 400 && status < 500),
        true,
        `${what}: whether it is refused (status ${status})`,
      );
    };
    const url = grant.text('url');
    await bad('BLOB-06', url, content.subarray(1), 'a byte too few');
    await bad('BLOB-06', url, Buffer.concat([content, content]), 'twice the bytes');
    const altered = new URL(url);
    altered.pathname = altered.pathname.replace(ref, `${newId()}.bin`);
    await bad('BLOB-07', altered.href, content, 'another name under the same signature');
    const status = await put(url, content);
    check.same('BLOB-02', status >= 200 && status < 300, true, `whether the upload is accepted (status ${status})`);
    await bad('BLOB-06', url, content, 'the address once more');
    const stored = await write();
    check.of('BLOB-02', stored, stored.status === 200, 'the item that names it');
    check.outcome('BLOB-05', await write(), unknown, 'a second item that names it');
    const down = await wire.get(`/blobs/${ref}/url`, stage.as());
    check.of('BLOB-03', down, down.number('size') === SIZE, `size ${SIZE}`);
    const expires = down.at(expiresKey);
    check.of('BLOB-41', down, typeof expires === 'number', `'${expiresKey}' of a download`);
    const left = Number(expires) - Date.now();
    check.of('BLOB-03', down, left > 3 * 60_000 && left < 7 * 60_000, 'expiresAt 5 minutes ahead');
    const got = await send('GET', down.text('url'));
    check.same(
      'BLOB-02',
      [got.status, got.bytes.equals(content)],
      [200, true],
      'status of the download, and whether its bytes are the uploaded ones',
    );
    const spoilt = await send('GET', `${down.text('url').slice(0, -4)}AAAA`);
    check.same(
      'BLOB-07',
      spoilt.status >= 400 && spoilt.status < 500,
      true,
      `whether an altered address is refused (status ${spoilt.status})`,
    );
  },
};

const PART = 5 * 1024 * 1024;

/** A part of an upload, as the server returned it. */
interface Part {
  readonly from: number;
  readonly size: number;
  readonly url: string;
  readonly headers: Record<string, string>;
}

const upload: Case = {
  ids: ['BLOB-53', 'BLOB-54', 'BLOB-57'],
  async run(stage, check) {
    const { wire, shape } = stage;
    const content = randomBytes(PART + SIZE);
    const begin = (size: number): Promise<Reply> =>
      wire.post('/uploads', shape === 'a' ? { contentLength: size } : { size }, stage.as());
    const stands = (ref: string): Promise<Reply> => wire.post(`/uploads/${ref}`, undefined, stage.as());
    const refIn = (reply: Reply): string => reply.text(shape === 'a' ? 'blobRef' : 'blob_ref');
    const begun = await begin(content.length);
    if (begun.status === 404) throw new NotApplicable('the server takes no uploads in parts');
    check.of(
      'BLOB-53',
      begun,
      begun.number('offset') === 0 && begun.number('size') === content.length,
      'its beginning',
    );
    const parts = (begun.at('parts') ?? []) as Part[];
    const cuts = parts.map(({ from, size }) => [from, size]);
    const expected = [
      [0, PART],
      [PART, SIZE],
    ];
    check.same('BLOB-53', cuts, expected, 'offsets and sizes of the parts, of 5 MiB each but the last');
    for (const { from, size, url, headers } of parts) {
      const body = content.subarray(from, from + size);
      const { status } = await send('PUT', url, { headers, body });
      check.same(
        'BLOB-53',
        status >= 200 && status < 300,
        true,
        `whether the part from ${from} is accepted (status ${status})`,
      );
    }
    const ref = refIn(begun);
    const end = await stands(ref);
    check.of('BLOB-53', end, end.number('offset') === content.length, 'all of it is kept');
    check.of('BLOB-53', end, (end.at('parts') as unknown[]).length === 0, 'and no part is missing');
    check.outcome('BLOB-53', await wire.post('/items', naming(stage, ref), stage.as()), '200', 'an item names it');
    const got = await send('GET', (await wire.get(`/blobs/${ref}/url`, stage.as())).text('url'));
    check.same('BLOB-53', got.bytes.equals(content), true, 'whether the downloaded bytes are the uploaded ones');
    check.outcome('BLOB-54', await stands(`${newId()}.bin`), '404 blob_not_found', 'an unknown upload');
    const other = refIn(await begin(SIZE));
    const dropped = await wire.delete(`/uploads/${other}`, stage.as());
    check.of('BLOB-57', dropped, dropped.status < 300, 'an upload is given up');
    const again = await wire.delete(`/uploads/${other}`, stage.as());
    check.outcome('BLOB-54', again, '404 blob_not_found', 'it is gone');
    check.outcome('BLOB-57', await stands(other), '404 blob_not_found', 'what was given up');
  },
};

export const blobs: readonly Case[] = [transfer, upload];
