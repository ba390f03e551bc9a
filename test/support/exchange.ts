/** One HTTP request to a store, exactly as a test writes it, and its whole answer. */
import type { IncomingHttpHeaders } from 'node:http';
import { send } from './blobs.js';

interface Exchange {
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
export async function exchange(url: string, { method, ...sent }: Exchange): Promise<Answer> {
  const { status, headers, bytes: body } = await send(method, url, sent);
  const [, code] = /<Code>(\w+)<\/Code>/.exec(body.toString('latin1')) ?? [];
  return { status, headers, body, code };
}
