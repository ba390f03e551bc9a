/** What the route table does not say of the endpoints of blobs; see endpoints.ts. */
import type { Endpoint } from './endpoints.js';

const BLOB_REF = { schema: 'BlobRef', what: "The blob's name." };

/** By method and path as in the route table. */
export const BLOBS: Readonly<Record<string, Endpoint>> = {
  'POST /api/blobs/upload-url': {
    group: 'Blobs',
    summary: 'Room for a blob, and a URL to upload it to',
    text: 'Good for 15 minutes and one PUT of exactly the declared size and type. The size counts towards the storage cap from now on. `rate_limited`: so many uploads are open already. `storage_unavailable`: the store could not sign, or could not say whether uploads that ran out of time left room. See [Blobs](blobs.md).',
    body: { a: 'UploadBodyA', b: 'UploadBodyB' },
    replies: [{ status: 200, when: 'Room is reserved.', schema: 'BlobUpload' }],
    errors: ['blob_too_large', 'storage_cap_exceeded', 'storage_unavailable'],
  },
  'GET /api/blobs/:ref/url': {
    group: 'Blobs',
    summary: 'A URL to download a blob from',
    text: 'Good for 5 minutes and any number of requests. Ask for another one when it runs out.',
    id: BLOB_REF,
    replies: [{ status: 200, when: 'Done.', schema: 'BlobDownload' }],
    errors: ['no_blob', 'storage_unavailable'],
  },
  'PUT /blobs/:tenant/:ref': {
    group: 'Blobs',
    summary: 'Upload a blob to the local store',
    text: 'Only by a URL that the server gave, with exactly the `headers` that came with it. The blob is durable when the reply is there. With another store the URL leads there, and this is 404.',
    id: BLOB_REF,
    bytes: true,
    replies: [{ status: 200, when: 'The blob is stored.', schema: 'Ok' }],
    errors: ['storage_unavailable'],
  },
  'GET /blobs/:tenant/:ref': {
    group: 'Blobs',
    summary: 'Download a blob from the local store',
    text: 'Only by a URL that the server gave. Takes `Range` (one range), `If-Range`, `If-None-Match`, and HEAD. With another store the URL leads there, and this is 404.',
    id: BLOB_REF,
    replies: [
      { status: 200, when: 'All of it.', bytes: true },
      { status: 206, when: 'The part that was asked for.', bytes: true },
      { status: 304, when: 'The tag that was given is still right.' },
    ],
    errors: ['no_blob', 'range_invalid', 'storage_unavailable'],
  },
};
