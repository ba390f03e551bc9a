/** What a server says of itself, whatever host it is reached by (reference, HTTP, Status and identity). */
import { SERVICE_NAME } from '../../protocol/limits.js';
import type { Health } from '../../protocol/replies.js';
import { Text } from './reply.js';
import type { Handler } from './route.js';

interface About {
  readonly version: string;
}

/** `GET /`: for whoever opens the address in a browser. */
export const welcome: Handler<About, Text> = (_, { version }) =>
  new Text(
    `${SERVICE_NAME} ${version}: encrypted multi-device sync. This server holds ciphertext only.\n` +
      'The API is under /api, live changes come over the WebSocket /ws, the reference is under /docs.\n' +
      'Is it up and claimed? GET /api/service/status\n',
    'text/plain; charset=utf-8',
  );

/** `GET /health`: the process lives; nothing else is asked. */
export const health: Handler<About, Health> = (_, { version }) => ({ ok: true, version });
