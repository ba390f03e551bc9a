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
export async function exchange(url: string, { method, headers = {}, body }: Exchange): Promise<Answer> {
  const {
    status,
    headers: answered,
    bytes,
  } = await send(method, url, { headers, ...(body === undefined ? {} : { body }) });
  const [, code] = /<Code>(\w+)<\/Code>/.exec(bytes.toString('latin1')) ?? [];
  return { status, headers: answered, body: bytes, code };
}
