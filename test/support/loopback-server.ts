/** An HTTP server of a test on a loopback port, which can be stopped and listen again where it was. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { WithTeardown } from './postgres.js';

export abstract class LoopbackServer {
  /** Without a trailing slash. */
  url = '';
  private readonly server = createServer((request, response) => void this.take(request, response));

  /** Answers one request. */
  protected abstract take(request: IncomingMessage, response: ServerResponse): void | Promise<void>;

  /** Listens until the test is over. */
  protected async listenFor(t: WithTeardown): Promise<this> {
    t.teardown(() => this.stop());
    await this.listen(0);
    return this;
  }

  /** Listens; again on the same port after `stop`. */
  async listen(port = Number(new URL(this.url).port)): Promise<void> {
    await new Promise<void>((resolve) => this.server.listen(port, '127.0.0.1', resolve));
    this.url = `http://127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  /** Nobody answers there any more. */
  async stop(): Promise<void> {
    if (!this.server.listening) return;
    const closed = new Promise((resolve) => this.server.close(resolve));
    this.server.closeAllConnections();
    await closed;
  }
}
