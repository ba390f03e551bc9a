/** The route table: authentication, rate limit, tenant state, body cap and handler of every route. */
import {
  BODY_MAX,
  BODY_MAX_BATCH,
  BODY_MAX_ITEM,
  BODY_MAX_UNAUTHENTICATED,
  BODY_MAX_WEBHOOK,
  PAGE_REPLY_MAX,
} from '../../protocol/limits.js';
import type { SocketParts } from '../http/ports.js';
import type { Handler, Method, Row } from '../http/route.js';
import * as billing from '../billing/routes.js';
import * as bins from '../bins/routes.js';
import * as blobs from '../blobs/routes.js';
import * as devices from '../devices/routes.js';
import * as hosting from '../hosting/routes.js';
import * as items from '../items/routes.js';
import * as pairing from '../pairing/routes.js';
import { docsPage, health, type PageParts, ready, webFile, welcome } from '../http/pages.js';

/** Everything that the handlers of the table, HTTP and sockets need. */
export type App = SocketParts &
  items.ItemParts &
  bins.BinParts &
  blobs.BlobParts &
  devices.DeviceParts &
  pairing.PairingParts &
  hosting.HostingParts &
  billing.BillingParts &
  PageParts;

type Columns = readonly [
  method: Method,
  path: string,
  auth: Row<App>['auth'],
  limit: Row<App>['limit'],
  state: Row<App>['state'],
  body: number,
  run: Handler<App>,
  more?: Partial<Row<App>>,
];

const table = (rows: readonly Columns[]): readonly Row<App>[] =>
  rows.map(([method, path, auth, limit, state, body, run, more]) => {
    return { method, path, auth, limit, state, body, run, reply: undefined, ...more };
  });

/** Reply caps where many rows are read: 1,000 bins have 4 KiB of meta each, 10,000 test tenants about 100 bytes. */
const LARGE_REPLY = { reply: PAGE_REPLY_MAX } as const;
const MEDIUM_REPLY = { reply: PAGE_REPLY_MAX / 4 } as const;
const TENANTLESS = { tenantless: true } as const;
const APEX = { apex: true } as const;

/**
 * The route table. Paths are under /api; `body` is the largest body in bytes, 0 for none. `limit` write is for items
 * only: every other request with a token counts as a read, also where it changes bins, devices or the password
 * (reference, HTTP, Rates). Column `state` decides in which states of the tenant a change works.
 */
// prettier-ignore
const ROUTES = table([
  // method   path                           auth      limit        state    body            handler
  ['POST',   '/items',                       'device', 'write',     'write', BODY_MAX_ITEM,     items.writeItem, { fastPath: items.writeItemFromBytes }],
  ['GET',    '/items',                       'device', 'read',      'read',  0,                 items.listItems, LARGE_REPLY],
  ['POST',   '/items/batch',                 'device', 'write',     'write', BODY_MAX_BATCH,    items.writeBatch],
  ['DELETE', '/items/:id',                   'device', 'write',     'write', BODY_MAX,          items.deleteItem],
  ['POST',   '/items/:id/reconcile',         'device', 'write',     'write', BODY_MAX,          items.moveItem],

  ['GET',    '/bins',                        'device', 'read',      'read',  0,                 bins.listBins, LARGE_REPLY],
  ['POST',   '/bins',                        'device', 'read',      'write', BODY_MAX,          bins.createBin],
  ['PATCH',  '/bins/:id',                    'device', 'read',      'write', BODY_MAX,          bins.patchBin],
  ['DELETE', '/bins/:id',                    'device', 'read',      'write', BODY_MAX,          bins.deleteBin],

  ['POST',   '/blobs/upload-url',            'device', 'read',      'write', BODY_MAX,          blobs.uploadUrl],
  ['POST',   '/uploads',                     'device', 'read',      'write', BODY_MAX,          blobs.beginUpload],
  ['POST',   '/uploads/:ref',                'device', 'read',      'write', 0,                 blobs.continueUpload],
  ['DELETE', '/uploads/:ref',                'device', 'read',      'read',  0,                 blobs.giveUpUpload],
  ['GET',    '/blobs/:ref/url',              'device', 'read',      'read',  0,                 blobs.downloadUrl],

  ['GET',    '/devices',                     'device', 'read',      'read',  0,                 devices.listDevices, MEDIUM_REPLY],
  ['PATCH',  '/devices/:id',                 'device', 'read',      'read',  BODY_MAX,          devices.patchDevice],
  ['POST',   '/devices/:id/revoke',          'device', 'read',      'read',  BODY_MAX,          devices.revokeDevice],
  ['POST',   '/devices/pair-init',           'device', 'read',      'read',  BODY_MAX,          pairing.initPairing],
  ['POST',   '/devices/pair-fetch-epk',      'none',   'pair',      'read',  BODY_MAX_UNAUTHENTICATED, pairing.fetchEpk],
  ['POST',   '/devices/pair-fetch-npk',      'none',   'none',      'read',  BODY_MAX_UNAUTHENTICATED, pairing.fetchNpk],
  ['GET',    '/devices/pair-requests',       'device', 'read',      'read',  0,                 pairing.pairRequests],
  ['POST',   '/devices/pair-wrap',           'device', 'read',      'read',  BODY_MAX,          pairing.wrapKey],
  ['POST',   '/devices/bootstrap',           'none',   'none',      'any',   BODY_MAX,          devices.claim],
  ['POST',   '/devices/bootstrap/restart',   'admin',  'none',      'any',   BODY_MAX,          devices.restartBootstrap],
  ['POST',   '/devices/reauth/challenge',    'none',   'challenge', 'any',   BODY_MAX_UNAUTHENTICATED, devices.challengeReauth],
  ['POST',   '/devices/reauth',              'none',   'none',      'any',   BODY_MAX_UNAUTHENTICATED, devices.answerReauth],
  ['POST',   '/devices/recover/challenge',   'none',   'challenge', 'read',  BODY_MAX_UNAUTHENTICATED, devices.challengeRecovery],
  ['POST',   '/devices/recover',             'none',   'none',      'read',  BODY_MAX,          devices.recover],
  ['POST',   '/ws-ticket',                   'device', 'read',      'read',  BODY_MAX,          devices.issueTicket],

  ['POST',   '/password/set',                'device', 'read',      'read',  BODY_MAX,          devices.setPassword],
  ['DELETE', '/password',                    'device', 'read',      'read',  BODY_MAX,          devices.removePassword],
  ['POST',   '/password/verify',             'none',   'password',  'read',  BODY_MAX_UNAUTHENTICATED, devices.verifyPassword],
  ['GET',    '/password/exists',             'none',   'none',      'read',  0,                 devices.passwordExists],

  ['GET',    '/me',                          'device', 'read',      'any',   0,                 devices.me],
  ['GET',    '/service/status',              'none',   'none',      'any',   0,                 devices.serviceStatus],
]);

/** Blobs of the local store, by signed URLs; with another store clients reach it directly (reference, Blobs). */
// prettier-ignore
export const TRANSFER_ROWS = table([
  ['PUT', '/blobs/:tenant/:ref', 'url', 'none', 'write', 0, blobs.upload, { stream: true }],
  ['GET', '/blobs/:tenant/:ref', 'url', 'none', 'read',  0, blobs.download],
]);

/** For any host: they belong to the process. */
// prettier-ignore
const PROCESS = table([
  ['GET', '/api/health', 'none', 'none', 'any', 0, health,   TENANTLESS],
  ['GET', '/api/ready',  'none', 'none', 'any', 0, ready,    TENANTLESS],
  ['GET', '/',           'none', 'none', 'any', 0, welcome,  TENANTLESS],
  ['GET', '/docs',       'none', 'none', 'any', 0, docsPage, TENANTLESS],
  ['GET', '/docs/',      'none', 'none', 'any', 0, docsPage, TENANTLESS],
  ['GET', '/docs/:id',   'none', 'none', 'any', 0, docsPage, TENANTLESS],
]);

/**
 * The web app's files except `/`. `POST /web/share` (the share target) is answered by the service worker; a share that
 * reaches the server is refused without reading its body.
 */
// prettier-ignore
const WEB_ROWS = table([
  ['GET', '/web/:id',              'none', 'none', 'any', 0, webFile, TENANTLESS],
  ['GET', '/sw.js',                'none', 'none', 'any', 0, webFile, TENANTLESS],
  ['GET', '/manifest.webmanifest', 'none', 'none', 'any', 0, webFile, TENANTLESS],
]);

// prettier-ignore
const HOSTED = table([
  ['POST', '/api/signup',    'none', 'signup', 'any', BODY_MAX_UNAUTHENTICATED, hosting.signUp,       APEX],
  ['POST', '/signup',        'none', 'signup', 'any', BODY_MAX_UNAUTHENTICATED, hosting.signUpByForm, { apex: true, form: hosting.signUpRefused }],
  ['GET',  '/api/tls-check', 'none', 'none',   'any', 0,                 hosting.tlsCheck,     TENANTLESS],
  ['GET',  '/',              'none', 'none',   'any', 0,                 hosting.welcome,      TENANTLESS],
]);

/** For load tests (reference, Load tests). At any host: the client may not be able to reach the apex by its name. */
// prettier-ignore
const TEST_TENANTS = table([
  ['POST',   '/api/admin/test-tenants',     'admin', 'none', 'any', BODY_MAX, hosting.makeTestTenant,   TENANTLESS],
  ['GET',    '/api/admin/test-tenants',     'admin', 'none', 'any', 0,        hosting.listTestTenants,  { ...TENANTLESS, ...MEDIUM_REPLY }],
  ['DELETE', '/api/admin/test-tenants/:id', 'admin', 'none', 'any', BODY_MAX, hosting.removeTestTenant, TENANTLESS],
]);

// prettier-ignore
const BILLED = table([
  ['POST', '/api/billing/webhook', 'none',   'none',    'any', BODY_MAX_WEBHOOK,  billing.webhook, { tenantless: true, raw: true }],
  ['GET',  '/api/billing/portal',  'device', 'read',    'any', 0,                 billing.portal],
  ['GET',  '/signup/done',         'none',   'return',  'any', 0,                 billing.returned, APEX],
  ['POST', '/signup/pay',          'none',   'payment', 'any', BODY_MAX_UNAUTHENTICATED, billing.resume,   { apex: true, form: billing.payRefused }],
]);

/** The rows of every server. */
export const ROWS: readonly Row<App>[] = [...ROUTES.map((row) => ({ ...row, path: `/api${row.path}` })), ...PROCESS];

/** The rows of a hosted service: also signup and its page at the apex, and the certificate check of the proxy. */
export const HOSTED_ROWS: readonly Row<App>[] = [
  // The operator restarts a bootstrap in single mode only: the request names no tenant.
  ...ROWS.filter(({ path }) => path !== '/' && path !== '/api/devices/bootstrap/restart'),
  ...HOSTED,
  ...TEST_TENANTS,
];

/** The rows of a hosted service with billing (reference, Billing). */
export const BILLED_ROWS: readonly Row<App>[] = [...HOSTED_ROWS, ...BILLED];

/** The rows of a server with these parts. */
export function rowsOf({ hosting, checkout, transfers, web }: App): readonly Row<App>[] {
  const rows = hosting === undefined ? ROWS : checkout === undefined ? HOSTED_ROWS : BILLED_ROWS;
  return [...rows, ...(transfers === undefined ? [] : TRANSFER_ROWS), ...(web === undefined ? [] : WEB_ROWS)];
}

/** Every row of both modes, each once, for the reference. */
export const ALL_ROWS: readonly Row<App>[] = [
  ...ROWS,
  ...TRANSFER_ROWS,
  ...WEB_ROWS,
  ...BILLED_ROWS.filter((row) => !ROWS.some((known) => known.method === row.method && known.path === row.path)),
];
