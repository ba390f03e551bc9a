/** Requests of a check, made as a client would make them, and what of their answers counts. */
import { connectionFault, StoreFault } from '../../blobs/objects/fault.js';
import { cappedBody } from '../../../terminal/capped-body.js';

/** Nobody waits longer for a few bytes. */
const ANSWER_MAX_MS = 15_000;
/** Answers of a store to these requests are small. */
const BODY_MAX_BYTES = 1024 * 1024;

/** A store's answer. */
export interface StoreAnswer {
  readonly status: number;
  readonly headers: Headers;
  readonly body: Buffer;
  /** The code in a refusal: of XML, or of this server's JSON. */
  readonly code: string | undefined;
}

/**
 * Asks; no redirection is followed, as no client would send a signed request elsewhere.
 * @throws StoreFault where there is no answer.
 */
export async function ask(url: string, init: Pick<RequestInit, 'method' | 'headers' | 'body'>): Promise<StoreAnswer> {
  const call = `${init.method} at the store`;
  const stop = new AbortController();
  // Not `AbortSignal.timeout`: its timer keeps no process waiting, and a request that hangs alone would end it in silence.
  const timer = setTimeout(() => stop.abort(new DOMException('no answer in time', 'TimeoutError')), ANSWER_MAX_MS);
  try {
    const { method, headers, body } = init;
    const answer = await fetch(url, { method, headers, body, redirect: 'manual', signal: stop.signal });
    const text = await cappedBody(answer, BODY_MAX_BYTES);
    return { status: answer.status, headers: answer.headers, body: text, code: codeIn(text.toString('latin1')) };
  } catch (error) {
    // `fetch` hides the reason one level down.
    const cause: unknown = error instanceof TypeError ? error.cause : error;
    throw connectionFault(call, cause) ?? new StoreFault('unreachable', `${call}: no answer`);
  } finally {
    clearTimeout(timer);
  }
}

const codeIn = (text: string): string | undefined =>
  (/<Code>([A-Za-z]{1,64})<\/Code>/.exec(text) ?? /"code":\s*"([a-z_]{1,64})"/.exec(text))?.[1];

/** A signed URL, with one digit of its signature changed. */
export const altered = (url: string): string =>
  url.replace(/((?:signature|sig)=[^&]*)([^&])(&|$)/i, (_, begin: string, last: string, end: string) => {
    return `${begin}${last === '0' ? '1' : '0'}${end}`;
  });

/** The store's clock by an answer, ms; undefined: it does not tell. */
export function clockOf({ headers }: StoreAnswer): number | undefined {
  const told = Date.parse(headers.get('date') ?? '');
  return Number.isNaN(told) ? undefined : told;
}
