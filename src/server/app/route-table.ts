/** The route table: every route with who may call it, what it counts as, in which state, and who answers. */
import {
  BODY_MAX,
  BODY_MAX_BATCH,
  BODY_MAX_ITEM,
  BODY_MAX_UNAUTHENTICATED,
  BODY_MAX_WEBHOOK,
  PAGE_REPLY_MAX,
} from '../../protocol/limits.js';
import type { Docs } from '../http/ports.js';
import type { SocketParts } from '../realtime/upgrade.js';
import type { Handler, Method, Row } from '../http/route.js';
import * as billing from '../billing/routes.js';
import * as bins from '../bins/routes.js';
import * as blobs from '../blobs/routes.js';
import * as devices from '../devices/routes.js';
import { docsPage } from '../http/docs-page.js';
import * as hosting from '../hosting/routes.js';
import * as items from '../items/routes.js';
import * as pairing from '../pairing/routes.js';
import * as status from '../devices/status-routes.js';
import { health, welcome } from '../http/welcome.js';

/** Everything that the rows of the table need, and HTTP and sockets themselves. */
export type App = SocketParts &
  items.ItemParts &
  bins.BinParts &
  blobs.BlobParts &
  devices.DeviceParts &
  status.StatusParts &
  pairing.PairingParts &
  hosting.HostingParts &
  billing.BillingParts & { readonly docs?: Docs };

type Columns = readonly [
  method: Method,
  path: string,
  auth: Row<App>['auth'],
  limit: Row<App>['limit'],
  state: Row<App>['state'],
  body: number,
  run: Handler<App>,
];

/**
 * The route table. Paths are under /api; `body` is the largest body in bytes, 0 for none. `limit` write is for items
 * only: every other call with a token counts as a read, also where it changes bins, devices or the password
 * (reference, HTTP, Rates). What may be changed in which state of the tenant is the column beside it.
 */
// prettier-ignore
const ROUTES: readonly Columns[] = [
  // method   path                           auth      limit        state    body            handler
  ['POST',   '/items',                       'device', 'write',     'write', BODY_MAX_ITEM,     items.writeItem],
  ['GET',    '/items',                       'device', 'read',      'read',  0,                 items.listItems],
  ['POST',   '/items/batch',                 'device', 'write',     'write', BODY_MAX_BATCH,    items.writeBatch],
  ['DELETE', '/items/:id',                   'device', 'write',     'write', BODY_MAX,          items.deleteItem],
  ['POST',   '/items/:id/reconcile',         'device', 'write',     'write', BODY_MAX,          items.moveItem],

  ['GET',    '/bins',                        'device', 'read',      'read',  0,                 bins.listBins],
  ['POST',   '/bins',                        'device', 'read',      'write', BODY_MAX,          bins.createBin],
  ['PATCH',  '/bins/:id',                    'device', 'read',      'write', BODY_MAX,          bins.patchBin],
  ['DELETE', '/bins/:id',                    'device', 'read',      'write', BODY_MAX,          bins.deleteBin],

  ['POST',   '/blobs/upload-url',            'device', 'read',      'write', BODY_MAX,          blobs.uploadUrl],
  ['GET',    '/blobs/:ref/url',              'device', 'read',      'read',  0,                 blobs.downloadUrl],

  ['GET',    '/devices',                     'device', 'read',      'read',  0,                 devices.listDevices],
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

  ['GET',    '/me',                          'device', 'read',      'any',   0,                 status.me],
  ['GET',    '/service/status',              'none',   'none',      'any',   0,                 status.serviceStatus],
];

/** What reads many rows, and the most that its reply has: a thousand bins have 4 KiB of meta each. */
const LONG_REPLIES: ReadonlyMap<Handler<App>, number> = new Map<Handler<App>, number>([
  [items.listItems, PAGE_REPLY_MAX],
  [bins.listBins, PAGE_REPLY_MAX],
  [devices.listDevices, PAGE_REPLY_MAX / 4],
]);

const SIGNED = { path: '/blobs/:tenant/:ref', auth: 'url', limit: 'none', body: 0 } as const;

/** Blobs of the local store, by signed URLs; elsewhere clients reach the store by themselves (reference, Blobs). */
export const TRANSFER_ROWS: readonly Row<App>[] = [
  { ...SIGNED, method: 'PUT', state: 'write', stream: true, run: blobs.upload },
  { ...SIGNED, method: 'GET', state: 'read', run: blobs.download },
];

const HOSTED = { auth: 'none', state: 'any' } as const;

/** Every row, with those that answer for the process itself, whatever host is asked. */
export const ROWS: readonly Row<App>[] = [
  ...ROUTES.map(([method, path, auth, limit, state, body, run]): Row<App> => {
    return { method, path: `/api${path}`, auth, limit, state, body, run, reply: LONG_REPLIES.get(run) };
  }),
  ...Object.entries({
    '/api/health': health,
    '/': welcome,
    '/docs': docsPage,
    '/docs/': docsPage,
    '/docs/:id': docsPage,
  }).map(([path, run]): Row<App> => {
    return { method: 'GET', path, auth: 'none', limit: 'none', state: 'any', body: 0, tenantless: true, run };
  }),
];

/** What a hosted service answers besides: signup and its page at the apex, and the proxy's question. */
export const HOSTED_ROWS: readonly Row<App>[] = [
  // The operator's way back to an unclaimed server is for single mode: it knows no tenant.
  ...ROWS.filter(({ path }) => path !== '/' && path !== '/api/devices/bootstrap/restart'),
  {
    ...HOSTED,
    method: 'POST',
    path: '/api/signup',
    limit: 'signup',
    body: BODY_MAX_UNAUTHENTICATED,
    apex: true,
    run: hosting.signUp,
  },
  {
    ...HOSTED,
    method: 'POST',
    path: '/signup',
    limit: 'signup',
    body: BODY_MAX_UNAUTHENTICATED,
    apex: true,
    form: true,
    run: hosting.signUpByForm,
  },
  { ...HOSTED, method: 'GET', path: '/api/tls-check', limit: 'none', body: 0, tenantless: true, run: hosting.tlsCheck },
  { ...HOSTED, method: 'GET', path: '/', limit: 'none', body: 0, tenantless: true, run: hosting.welcome },
];

const APEX = { ...HOSTED, apex: true } as const;

/** What a hosted service that is paid for answers besides (reference, Billing). */
export const BILLED_ROWS: readonly Row<App>[] = [
  ...HOSTED_ROWS,
  {
    ...HOSTED,
    method: 'POST',
    path: '/api/billing/webhook',
    limit: 'none',
    body: BODY_MAX_WEBHOOK,
    tenantless: true,
    raw: true,
    run: billing.webhook,
  },
  {
    method: 'GET',
    path: '/api/billing/portal',
    auth: 'device',
    limit: 'read',
    state: 'any',
    body: 0,
    run: billing.portal,
  },
  { ...APEX, method: 'GET', path: '/signup/done', limit: 'return', body: 0, run: billing.returned },
  {
    ...APEX,
    method: 'POST',
    path: '/signup/pay',
    limit: 'payment',
    body: BODY_MAX_UNAUTHENTICATED,
    form: true,
    run: billing.resume,
  },
];

/** The rows of a server with these parts. */
export function rowsOf({ hosting, billing: billed, transfers }: App): readonly Row<App>[] {
  const rows = hosting === undefined ? ROWS : billed === undefined ? HOSTED_ROWS : BILLED_ROWS;
  return transfers === undefined ? rows : [...rows, ...TRANSFER_ROWS];
}

/** Every row of either mode, each once: what the reference documents. */
export const ALL_ROWS: readonly Row<App>[] = [
  ...ROWS,
  ...TRANSFER_ROWS,
  ...BILLED_ROWS.filter((row) => !ROWS.some((known) => known.method === row.method && known.path === row.path)),
];
