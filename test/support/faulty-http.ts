/** An HTTP proxy in front of a store, which breaks answers as a test decides. It leaves `Host` alone: signatures cover it. */
import { request as httpRequest, type IncomingMessage, type ServerResponse } from 'node:http';
import { LoopbackServer } from './loopback-server.js';
import type { WithTeardown } from './postgres.js';

/** How an answer goes wrong: another one, or none. */
export type HttpFault = { readonly status: number } | { readonly body: string } | 'hang';

/** A request that went through, or would have. */
export interface ProxiedCall {
  readonly method: string;
  readonly target: string;
  readonly headers: IncomingMessage['headers'];
}

/** The proxy; `fault` decides what becomes of a call. */
export class FaultyHttp extends LoopbackServer {
  readonly calls: ProxiedCall[] = [];
  /** Headers of answers that are not passed on, in lower case. */
  readonly hidden = new Set<string>();
  fault: (call: ProxiedCall) => HttpFault | undefined = () => undefined;

  private constructor(private readonly target: URL) {
    super();
  }

  /** Listens until the test is over. */
  static before(t: WithTeardown, target: string): Promise<FaultyHttp> {
    return new FaultyHttp(new URL(target)).listenFor(t);
  }

  protected take(request: IncomingMessage, response: ServerResponse): void {
    const { method = '', url: target = '', headers } = request;
    const call = { method, target, headers };
    this.calls.push(call);
    const fault = this.fault(call);
    if (fault === 'hang') return;
    if (fault !== undefined) {
      response.writeHead('status' in fault ? fault.status : 200, { 'content-type': 'application/xml' });
      response.end('body' in fault ? fault.body : undefined);
      return;
    }
    const onward = httpRequest({ host: this.target.hostname, port: this.target.port, method, path: target, headers });
    onward.on('error', () => response.destroy());
    onward.on('response', (answer) => {
      // Node would add one of its own.
      response.sendDate = false;
      response.writeHead(answer.statusCode ?? 502, this.shown(answer.rawHeaders));
      answer.pipe(response);
    });
    request.pipe(onward);
  }

  /** Names and values in turn, as they come. */
  private shown(raw: readonly string[]): string[] {
    return raw.filter((_, at) => !this.hidden.has((raw[at - (at % 2)] ?? '').toLowerCase()));
  }
}
