/** Pages that any host serves: the web app, the reference, the welcome text and the health check. */
import { ServiceError } from '../../protocol/errors.js';
import { SERVICE_NAME } from '../../protocol/limits.js';
import type { Health, Ready } from '../../protocol/replies.js';
import type { Docs, WebApp } from './ports.js';
import { Page, PAGE_HEADERS, Text, webPage } from './reply.js';
import { acceptsHtml } from './query.js';
import type { Handler } from './route.js';

/** Absent where `WEB_APP` is off. */
export interface WebParts {
  readonly web?: WebApp | undefined;
}

/** What the pages need; version and commit are those of the running build. */
export interface PageParts extends WebParts, Omit<Health, 'ok'> {
  readonly docs?: Docs;
  /** Whether balancers may send new sockets here. */
  readonly ready: () => boolean;
}

/** `GET /docs` and `GET /docs/:name`. `index`, the file name in the repository, is the start page. Throws `not_found`. */
export const docsPage: Handler<PageParts, Page> = (ctx, { docs }) => {
  const page = docs?.(ctx.id);
  if (page === undefined) throw new ServiceError('not_found', 'no such page');
  return new Page(page, PAGE_HEADERS);
};

/** `GET /`: the web app for clients that accept HTML, else a few lines of text (reference, HTTP, The web app). */
export const welcome: Handler<WebParts & Pick<Health, 'version'>, Text | Page> = (ctx, { version, web }) => {
  const page = web?.file('/');
  if (web !== undefined && page !== undefined && acceptsHtml(ctx.accept))
    return webPage(ctx, web, page, 'accept, accept-encoding');
  return new Text(
    `${SERVICE_NAME} ${version}: encrypted multi-device sync. This server holds ciphertext only.\n` +
      (page === undefined ? '' : 'In a browser this address shows the web app.\n') +
      'The API is under /api, live changes come over the WebSocket /ws, the reference is under /docs.\n' +
      'Is it up and claimed? GET /api/service/status\n',
    'text/plain; charset=utf-8',
    page === undefined ? '' : 'accept',
  );
};

/** The other files of the web app, by their paths. Throws `not_found`. */
export const webFile: Handler<PageParts, Page> = (ctx, { web }) => {
  const file = web?.file(ctx.path);
  if (web === undefined || file === undefined) throw new ServiceError('not_found', 'no such file');
  return webPage(ctx, web, file, 'accept-encoding');
};

/** `GET /ready`: 503 while the instance is being drained. The database is not checked: all would fail together. */
export const ready: Handler<PageParts, Ready> = (ctx, parts) => {
  const isReady = parts.ready();
  if (!isReady) ctx.status = 503;
  return { ready: isReady };
};

/** `GET /health`: the process runs; nothing else is checked. */
export const health: Handler<PageParts, Health> = (_, { version, commit }) => ({ ok: true, version, commit });
