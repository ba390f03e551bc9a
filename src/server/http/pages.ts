/** Pages that any host serves: the reference, the welcome text and the health check. */
import { ServiceError } from '../../protocol/errors.js';
import { SERVICE_NAME } from '../../protocol/limits.js';
import type { Health } from '../../protocol/replies.js';
import type { Docs } from './ports.js';
import { Page, Text } from './reply.js';
import type { Handler } from './route.js';

/** `GET /docs` and `GET /docs/:name`. `index`, the file name in the repository, is the start page. Throws `not_found`. */
export const docsPage: Handler<{ readonly docs?: Docs }, Page> = (ctx, { docs }) => {
  const page = docs?.page(ctx.id === 'index' ? '' : ctx.id);
  if (page === undefined) throw new ServiceError('not_found', 'no such page');
  return new Page(page);
};

interface About {
  readonly version: string;
}

/** `GET /`: for a browser that opens the address (reference, HTTP, Status and identity). */
export const welcome: Handler<About, Text> = (_, { version }) =>
  new Text(
    `${SERVICE_NAME} ${version}: encrypted multi-device sync. This server holds ciphertext only.\n` +
      'The API is under /api, live changes come over the WebSocket /ws, the reference is under /docs.\n' +
      'Is it up and claimed? GET /api/service/status\n',
    'text/plain; charset=utf-8',
  );

/** `GET /health`: the process runs; nothing else is checked. */
export const health: Handler<About, Health> = (_, { version }) => ({ ok: true, version });
