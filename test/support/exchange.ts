/** One HTTP request, exactly as a test writes it, and its whole answer. */
import { request as httpRequest, type IncomingHttpHeaders } from 'node:http';

export interface Exchange {
  readonly method: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: Buffer;
}

export interface Answer {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly body: Buffer;
  /** The code of a store's refusal. */
  readonly code: string | undefined;
}

/** Rejects where the connection ends before the answer does. */
export function exchange(url: string, { method, headers = {}, body }: Exchange): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const request = httpRequest(url, { method, headers, agent: false }, (response) => {
      const chunks: Buffer[] = [];
      response.on('data', (chunk: Buffer) => chunks.push(chunk));
      response.on('error', reject);
      response.on('end', () => {
        const whole = Buffer.concat(chunks);
        const [, code] = /<Code>(\w+)<\/Code>/.exec(whole.toString('latin1')) ?? [];
        resolve({ status: response.statusCode ?? 0, headers: response.headers, body: whole, code });
      });
    });
    request.on('error', reject);
    request.end(body);
  });
}
