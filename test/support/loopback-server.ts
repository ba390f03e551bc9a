/** An HTTP server of a test on a loopback port, which can be stopped and listen again where it was. */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo, Server } from 'node:net';
import type { WithTeardown } from './postgres.js';
import { freePort } from './free-port.js';

/** The port on which a server listens. */
export const portOf = (server: Server): number => (server.address() as AddressInfo).port;

/** Listens on any port of loopback, and gives it. */
export async function listenOnLoopback(server: Server): Promise<number> {
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return portOf(server);
}

/** The same until the test is over. */
export async function openFor(
  t: WithTeardown,
  server: Server & { readonly closeAllConnections?: () => void },
): Promise<number> {
  t.teardown(
    () =>
      new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections?.();
      }),
  );
  return listenOnLoopback(server);
}

export abstract class LoopbackServer {
  /** Without a trailing slash. */
  url = '';
  protected readonly server = createServer((request, response) => void this.take(request, response));

  /** Answers one request. */
  protected abstract take(request: IncomingMessage, response: ServerResponse): void | Promise<void>;

  /** Listens until the test is over. */
  protected async listenFor(t: WithTeardown): Promise<this> {
    t.teardown(() => this.stop());
    await this.listen(await freePort());
    return this;
  }

  /** Listens; again on the same port after `stop`. */
  async listen(port = Number(new URL(this.url).port)): Promise<void> {
    this.server.listen(port, '127.0.0.1');
    await once(this.server, 'listening');
    this.url = `http://127.0.0.1:${port}`;
  }

  /** Nobody answers there any more. */
  async stop(): Promise<void> {
    if (!this.server.listening) return;
    const closed = new Promise((resolve) => this.server.close(resolve));
    this.server.closeAllConnections();
    await closed;
  }
}
