/**
 * The description of every endpoint: its purpose, body, replies and errors. What follows from the columns of the route
 * table (tokens, rates, tenant states, sizes) is added in openapi.ts.
 */
import type { ErrorName } from '../protocol/errors.js';

/** A named schema (src/docs/schemas.ts), or one per shape. */
export type SchemaName = string | { readonly a: string; readonly b: string };

/** A reply other than a refusal. */
export interface Reply {
  readonly status: number;
  readonly when: string;
  /** Absent: text for users, or bytes. */
  readonly schema?: SchemaName;
  readonly bytes?: true;
}

/** One endpoint; the key in ENDPOINTS is its method and path in the route table. */
export interface Endpoint {
  readonly group: string;
  readonly summary: string;
  /** Markdown. */
  readonly text?: string;
  /** The last parameter of the path, if it has any. */
  readonly id?: { readonly schema: string; readonly what: string };
  /** Takes the query parameters of a page of items. */
  readonly paged?: true;
  /** A change that may name the history which it is based on. */
  readonly based?: true;
  readonly body?: SchemaName;
  /** The body is bytes. */
  readonly bytes?: true;
  readonly replies: readonly Reply[];
  /** Errors in addition to those that follow from the route table. */
  readonly errors?: readonly ErrorName[];
}

/** The last parameter of the paths of a group. */
const IDS: Readonly<Record<string, Endpoint['id']>> = {
  Items: { schema: 'Ulid', what: "The item's id." },
  Bins: { schema: 'BinId', what: "The bin's id." },
  Blobs: { schema: 'BlobRef', what: "The blob's name." },
  Devices: { schema: 'Ulid', what: "The device's id." },
};

/** By method and path as in the route table. */
type Endpoints<E = Endpoint> = Readonly<Record<string, E>>;

const inGroup = (group: string, endpoints: Endpoints<Omit<Endpoint, 'group'>>): Endpoints =>
  Object.fromEntries(Object.entries(endpoints).map(([key, endpoint]) => [key, { group, id: IDS[group], ...endpoint }]));

const done = (schema: SchemaName, when = 'Done.'): readonly Reply[] => [{ status: 200, when, schema }];

const UNCHANGED: Reply = { status: 304, when: 'The tag that was given is still right.' };
const PAGE: readonly Reply[] = [{ status: 200, when: 'The page.' }];

const WRITE_ERRORS = [
  'item_too_large',
  'unknown_type',
  'blob_not_found',
  'storage_unavailable',
  'bin_not_found',
  'version_conflict',
  'storage_cap_exceeded',
  'epoch_mismatch',
] as const;

const WEB_FILE = [{ status: 200, when: 'The file, in an encoding that the client takes.' }, UNCHANGED];
const TAGGED = 'With an `ETag`; `If-None-Match` gets 304.';

export const ENDPOINTS: Endpoints = {
  ...inGroup('Items', {
    'POST /api/items': {
      summary: 'Write an item: a new one, a replacement, or more keys for one that is stored',
      text: 'Idempotent on `id`: the same write again answers the stored version. See [HTTP](http.md#writing-an-item) for the order of decisions.',
      body: { a: 'ItemBodyA', b: 'ItemBodyB' },
      based: true,
      replies: done({ a: 'Changed', b: 'ChangedB' }, 'The item is durable under this version.'),
      errors: WRITE_ERRORS,
    },
    'GET /api/items': {
      summary: 'A page of items and deletes above a version',
      paged: true,
      replies: done({ a: 'PageA', b: 'PageB' }, 'One page, from one snapshot.'),
      errors: ['bin_not_found'],
    },
    'POST /api/items/batch': {
      summary: 'Up to 100 writes, each judged alone',
      text: 'Counts as one write. Two writes of one id are done one after the other. A refused write has an `error` in its place; the others are in.',
      body: 'BatchBody',
      based: true,
      replies: done('BatchReply', 'One result for each write, in their order.'),
      errors: ['epoch_mismatch'],
    },
    'DELETE /api/items/:id': {
      summary: 'Delete an item',
      text: 'Of a deleted item: the same version again. The body may be left out.',
      body: 'DeleteBody',
      based: true,
      replies: done('Changed', 'The item is deleted at this version.'),
      errors: ['item_not_found', 'epoch_mismatch'],
    },
    'POST /api/items/:id/reconcile': {
      summary: 'Move an item to another bin, with a tag made anew',
      body: 'ReconcileBody',
      based: true,
      replies: done('Changed', 'The item has moved at this version.'),
      errors: ['item_not_found', 'bin_not_found', 'version_conflict', 'epoch_mismatch'],
    },
  }),
  ...inGroup('Bins', {
    'GET /api/bins': { summary: 'All bins', replies: done('BinList') },
    'POST /api/bins': {
      summary: 'Make a bin',
      text: 'A deleted bin’s id is free again. A tenant has at most 1,000 bins.',
      body: 'BinCreateBody',
      replies: done('BinReply'),
      errors: ['conflict', 'slug_taken'],
    },
    'PATCH /api/bins/:id': {
      summary: 'Change slug or meta of a bin',
      text: 'What is left out stays.',
      body: 'BinPatchBody',
      replies: done('BinReply'),
      errors: ['bin_not_found', 'slug_taken'],
    },
    'DELETE /api/bins/:id': {
      summary: 'Delete a bin',
      text: 'With live items only by `force`. It closes first: writes to it get `bin_not_found`. Then its items are deleted, each with a version and a push and without a tag, which clients report: ours delete the items themselves first. Then the bin. `inbox` stays. Of a bin whose deletion was cut off the same call goes on with it.',
      body: 'BinDeleteBody',
      replies: done('Ok'),
      errors: ['bin_not_found', 'conflict'],
    },
  }),
  ...inGroup('Blobs', {
    'POST /api/blobs/upload-url': {
      summary: 'Room for a blob, and a URL to upload it to',
      text: 'Good for 15 minutes and one PUT of exactly the declared size and type. The size counts towards the storage cap from now on. `rate_limited`: so many uploads are open already. `storage_unavailable`: the store could not sign, or could not say whether uploads that ran out of time left room. See [Blobs](blobs.md).',
      body: { a: 'UploadBodyA', b: 'UploadBodyB' },
      replies: done('BlobUpload', 'Room is reserved.'),
      errors: ['blob_too_large', 'storage_cap_exceeded', 'storage_unavailable'],
    },
    'POST /api/uploads': {
      summary: 'Begin an upload that goes on where it stopped',
      text: 'As `upload-url`, but in parts of 5 MiB, each with a URL of its own: `PUT` the bytes from `from` on, `size` of them, in order. What fits into one part is one `PUT`. See [Blobs](blobs.md#an-upload-that-goes-on).',
      body: { a: 'UploadBodyA', b: 'UploadBodyB' },
      replies: done('OpenUploadReply', 'Room is reserved, and nothing is there yet.'),
      errors: ['blob_too_large', 'storage_cap_exceeded', 'storage_unavailable'],
    },
    'POST /api/uploads/:ref': {
      summary: 'Where an upload stands, and its next parts',
      text: 'All bytes before `offset` are kept and need not be sent again; it may lie within a part. Where `offset` is `size` the upload is whole, and an item may name it. The upload may then be continued for 24 hours more, but not longer than 7 days after it began. `blob_not_found`: it is not open (any more); begin again, under a fresh item key.',
      replies: done('OpenUploadReply', 'It is open, or whole.'),
      errors: ['no_blob', 'storage_unavailable'],
    },
    'DELETE /api/uploads/:ref': {
      summary: 'Give an upload up',
      text: 'Its room is free when the reply is there. A blob that is whole stays: where no item names it within 24 hours it is removed.',
      replies: done('Ok'),
      errors: ['no_blob', 'storage_unavailable'],
    },
    'GET /api/blobs/:ref/url': {
      summary: 'A URL to download a blob from',
      text: 'Good for 5 minutes and any number of requests. Ask for another one when it runs out.',
      replies: done('BlobDownload'),
      errors: ['no_blob', 'storage_unavailable'],
    },
    'PUT /blobs/:tenant/:ref': {
      summary: 'Upload a blob to the local store',
      text: 'Only by a URL that the server gave, with exactly the `headers` that came with it. The blob, or the part of an upload, is durable when the reply is there. `upload_offset`: the part does not begin where the upload stands. With another store the URL leads there, and this is 404.',
      bytes: true,
      replies: done('Ok', 'The bytes are stored.'),
      errors: ['upload_offset', 'storage_unavailable'],
    },
    'GET /blobs/:tenant/:ref': {
      summary: 'Download a blob from the local store',
      text: 'Only by a URL that the server gave. Takes `Range` (one range), `If-Range`, `If-None-Match`, and HEAD. With another store the URL leads there, and this is 404.',
      replies: [
        { status: 200, when: 'All of it.', bytes: true },
        { status: 206, when: 'The requested part.', bytes: true },
        UNCHANGED,
      ],
      errors: ['no_blob', 'range_invalid', 'storage_unavailable'],
    },
  }),
  ...inGroup('Devices', {
    'GET /api/devices': {
      summary: 'All devices',
      text: 'Of revoked devices the latest 1,000.',
      replies: done('DeviceList'),
    },
    'PATCH /api/devices/:id': {
      summary: 'Change name, glyph or certificate of a device',
      text: 'What is left out stays. Any device may change any other.',
      body: 'DevicePatchBody',
      replies: done('KnownDeviceReply'),
      errors: ['device_not_found'],
    },
    'POST /api/devices/:id/revoke': {
      summary: 'Revoke a device',
      text: 'When the reply is there its tokens are dead and its sockets on this instance are closed; on others within 5 s at most. Revoking oneself is signing out. Again: 200, nothing changes. Needs no body.',
      replies: done('KnownDeviceReply'),
      errors: ['device_not_found', 'last_device'],
    },
    'POST /api/devices/bootstrap': {
      summary: 'Claim an empty tenant with its first device',
      text: 'Of any number of concurrent calls exactly one wins.',
      body: 'BootstrapBody',
      replies: done('Claimed', 'The tenant is claimed.'),
      errors: ['bootstrap_already_done', 'forbidden', 'device_exists', 'device_limit'],
    },
    'POST /api/devices/bootstrap/restart': {
      summary: 'Make a tenant unclaimed again',
      text: 'Removes devices, pairings, challenges, password and recovery key; closes all sockets. Items and bins stay. Needs no body.',
      replies: done('Ok'),
    },
    'POST /api/devices/reauth/challenge': {
      summary: 'A challenge that only the device can open',
      body: 'ReauthChallengeBody',
      replies: done('ReauthChallengeReply', 'One use, two minutes.'),
      errors: ['device_not_found', 'device_revoked'],
    },
    'POST /api/devices/reauth': {
      summary: 'A new token for the right answer',
      text: '`forbidden` says that the challenge is unknown, late, used or wrongly answered, and not which of these.',
      body: 'ReauthBody',
      replies: done('TokenReply'),
      errors: ['forbidden', 'device_revoked'],
    },
    'POST /api/devices/recover/challenge': {
      summary: 'A challenge that the recovery key signs',
      text: 'Answered also where no recovery key is registered. Needs no body.',
      replies: done('RecoveryChallengeReply', 'One use, two minutes.'),
    },
    'POST /api/devices/recover': {
      summary: 'Add a device by the phrase alone',
      text: '`validation`, `password_required` and a foreign `host` leave the challenge as it is; any other try uses it up. `forbidden` does not say what is wrong.',
      body: 'RecoverBody',
      replies: done('Recovered'),
      errors: ['password_required', 'forbidden', 'device_exists', 'device_limit'],
    },
    'POST /api/ws-ticket': {
      summary: 'A ticket that opens one socket',
      text: 'Good for 60 s and one use of `/ws?ticket=`. Needs no body.',
      replies: done('TicketReply'),
    },
  }),
  ...inGroup('Pairing', {
    'POST /api/devices/pair-init': {
      summary: 'Step 1, existing device: open a session of five minutes',
      text: 'Ends an older session of the same device. `conflict`: the code is in use, by this device’s own session too; draw another.',
      body: 'PairInitBody',
      replies: done('PairStarted'),
      errors: ['pair_invalid', 'conflict'],
    },
    'POST /api/devices/pair-fetch-epk': {
      summary: 'Step 2, new device: the session’s public key for the code',
      body: 'PairFetchEpkBody',
      replies: done('PairEpk'),
      errors: ['pair_invalid', 'pair_expired'],
    },
    'POST /api/devices/pair-fetch-npk': {
      summary: 'Step 3, new device: ask to join and wait for approval',
      text: 'Held up to 25 s. The same call again by the same key goes on waiting, and gets the result again until the session is cleared away. With `withdraw: true` it ends the session instead, and answers `pair_invalid` (`pair_expired` after the five minutes).',
      body: 'PairFetchNpkBody',
      replies: [
        { status: 200, when: 'Approved: the device exists.', schema: 'Paired' },
        { status: 202, when: 'Not answered yet: ask again.', schema: 'PairPending' },
      ],
      errors: ['pair_invalid', 'pair_expired', 'password_required', 'device_exists', 'device_limit'],
    },
    'GET /api/devices/pair-requests': {
      summary: 'What waits for this device’s approval',
      text: 'The same as the frame `pair_request`.',
      replies: done('PairRequestList'),
    },
    'POST /api/devices/pair-wrap': {
      summary: 'Step 4, existing device: approve or reject',
      text: 'Either `wrappedMasterKey` or `reject: true`. The same again is `ok`. `conflict`: it was answered otherwise already.',
      body: 'PairWrapBody',
      replies: done('Ok'),
      errors: ['pair_invalid', 'pair_expired', 'conflict', 'password_required', 'device_exists', 'device_limit'],
    },
  }),
  ...inGroup('Password', {
    'POST /api/password/set': {
      summary: 'Set or change the account password',
      text: 'Beside the read rate it has a limit of its own, by device: as many in a minute as `password/verify` admits by address.',
      body: 'PasswordSetBody',
      replies: done('Ok'),
      errors: ['password_invalid'],
    },
    'DELETE /api/password': {
      summary: 'Remove the account password',
      text: 'From then on pairing and recovery need none, and tickets of the removed one are void. Limited together with `password/set`. `password_invalid` also where none is set.',
      body: 'PasswordRemoveBody',
      replies: done('Ok'),
      errors: ['password_invalid'],
    },
    'POST /api/password/verify': {
      summary: 'A ticket for the right password',
      text: 'The ticket is good for one use and ten minutes, for this tenant, for `pubkey` where it is given, and for the password as it is now. `password_invalid` also where none is set.',
      body: 'PasswordVerifyBody',
      replies: done('PasswordTicketReply'),
      errors: ['password_invalid'],
    },
    'GET /api/password/exists': { summary: 'Whether an account password is set', replies: done('PasswordExists') },
  }),
  ...inGroup('Status', {
    'GET /api/me': { summary: 'The caller, the server and the tenant', replies: done('Me') },
    'GET /api/service/status': {
      summary: 'Whether the server works, and whether it is claimed',
      replies: [
        { status: 200, when: 'The database answers.', schema: 'StatusUp' },
        { status: 503, when: 'The database is down.', schema: 'StatusDown' },
      ],
    },
    'GET /api/health': {
      summary: 'The process lives',
      text: 'Neither database nor tenant is looked at.',
      replies: done('Health'),
    },
    'GET /api/ready': {
      summary: 'Whether new sockets may come here',
      text: 'For balancers. Neither database nor tenant is looked at.',
      replies: [
        { status: 200, when: 'They may.', schema: 'Ready' },
        { status: 503, when: 'The instance is being drained.', schema: 'Ready' },
      ],
    },
    'GET /': {
      summary: 'The web app',
      text: 'For a client whose `Accept` names `text/html`; others, and where `WEB_APP` is `off`, get a few lines of text. See [HTTP](http.md#the-web-app).',
      replies: [
        { status: 200, when: 'The page, or plain text.' },
        { status: 304, when: 'The page did not change.' },
      ],
    },
    'GET /web/:id': {
      summary: 'A file of the web app',
      id: { schema: 'PageName', what: "The file's name, with its hash." },
      text: 'Cached for ever: another content has another name.',
      replies: WEB_FILE,
      errors: ['not_found'],
    },
    'GET /sw.js': { summary: "The web app's service worker", replies: WEB_FILE },
    'GET /manifest.webmanifest': { summary: "The web app's manifest", replies: WEB_FILE },
  }),
  // Multi mode only: elsewhere these are 404 `not_found`.
  ...inGroup('Hosting', {
    'POST /api/signup': {
      summary: 'Make a tenant: a name under the domain of the service',
      text: 'At the apex only. Limits: five an hour and ten a day for an address, twenty an hour and fifty a day for an IPv4 /24 or IPv6 /48, fifty unclaimed names for an IPv4 /16 or IPv6 /32. `claimToken` is shown once: the first device claims with it (`POST /devices/bootstrap`). A tenant that nobody claims or pays for is freed after 24 hours.',
      body: 'SignupBody',
      replies: done('SignedUp', 'The tenant is there.'),
      errors: ['slug_taken'],
    },
    'POST /signup': {
      summary: 'The form of the signup page',
      text: 'Takes `application/x-www-form-urlencoded` with the same fields, and answers a page with the claim link.',
      replies: PAGE,
      errors: ['slug_taken'],
    },
    'GET /api/tls-check': {
      summary: 'Shall there be a certificate for this host?',
      text: "The proxy's question, `?domain=`, before it gets a certificate. Answered from memory, on any host. Of names that were signed up lately sixty an hour are let through, on all instances together; those known before never count.",
      replies: done('Ok', "It is the apex, or an existing tenant's host."),
      errors: ['tenant_not_found', 'rate_limited'],
    },
    // On any host, with the operator's token.
    'POST /api/admin/test-tenants': {
      summary: 'Make a tenant for load tests, with all its devices',
      text: 'Claimed, active, without a recovery key and without a bill. At most 10,000 at once; one more is 409 `conflict`. See [Load tests](load.md#the-tenants-of-a-run).',
      body: 'TestTenantBody',
      replies: done('TestTenant', 'The tenant is there.'),
      errors: ['slug_taken', 'conflict', 'device_limit'],
    },
    'GET /api/admin/test-tenants': { summary: 'The test tenants that there are', replies: done('TestTenantList') },
    'DELETE /api/admin/test-tenants/:id': {
      summary: 'Remove a test tenant with all it has',
      text: 'A tenant that was signed up is 404 `tenant_not_found`: this call cannot remove it. Of a large one a part is removed: the same call goes on.',
      id: { schema: 'PageName', what: "The tenant's name." },
      replies: done('TestTenantRemoval'),
      errors: ['tenant_not_found'],
    },
    // Only where billing is on: elsewhere these are 404 `not_found`.
    'POST /api/billing/webhook': {
      summary: "The payment provider's events",
      text: 'The body is taken as it came, up to 1 MiB, and its `Stripe-Signature` is checked. Each event is applied once, in any order; 503 asks for it again. Forged ones are counted by address, and 429 from the sixth a minute on.',
      replies: done('Received', 'The event is durable, or is none of ours.'),
      errors: ['webhook_invalid', 'rate_limited', 'unavailable', 'payload_too_large'],
    },
    'GET /api/billing/portal': {
      summary: 'Where bills and means of payment are',
      text: 'A short-lived address at the payment provider. A tenant without a running subscription gets a checkout.',
      replies: done('Portal'),
    },
    'GET /signup/done': {
      summary: 'The page after checkout',
      text: 'Shows the claim link after the payment; can be loaded again for seven days.',
      replies: [
        { status: 200, when: 'The page. For an address that is none of ours it is a page as well, with status 404.' },
      ],
    },
    'POST /signup/pay': {
      summary: 'Back to the checkout',
      text: 'Takes `application/x-www-form-urlencoded`.',
      replies: [{ status: 200, when: 'A page that leads to the checkout.' }],
      errors: ['not_found'],
    },
  }),
  ...inGroup('Reference', {
    'GET /docs': {
      summary: 'The first page of this reference',
      text: `Also at \`/docs/\`. ${TAGGED}`,
      replies: [...PAGE, UNCHANGED],
    },
    'GET /docs/:id': {
      summary: 'A page of this reference',
      text: TAGGED,
      id: { schema: 'PageName', what: "The page's name." },
      replies: [...PAGE, UNCHANGED],
      errors: ['not_found'],
    },
  }),
};
