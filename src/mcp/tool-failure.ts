/**
 * Any error as one that a tool ends with. An agent reads it, so no word of it is the server's: a server that is not
 * trusted with content must not speak to whoever has it.
 */
import { ApiError, ClientError, NetworkError, ProtocolError, QueuedError } from '../client/errors.js';
import { asError } from '../client/events.js';
import { PayloadError } from '../client/payloads/shapes.js';
import { CryptoRefusal } from '../crypto/refusal.js';
import { McpError, type McpCode } from './errors.js';
import { failureOf, ofNetwork } from './failure.js';

/** The server's codes that mean something of their own to a tool. */
const API: Readonly<Record<string, { readonly code: McpCode; readonly says: string }>> = {
  bin_not_found: { code: 'bin_not_found', says: 'there is no such bin (any more)' },
  item_not_found: { code: 'item_not_found', says: 'the server does not know this item (any more)' },
  item_too_large: { code: 'too_large', says: 'the content is larger than the server takes' },
  payload_too_large: { code: 'too_large', says: 'the content is larger than the server takes' },
  blob_too_large: { code: 'too_large', says: 'the content is larger than the server takes' },
};

/** Errors whose message may quote the server. */
const QUOTING: ReadonlySet<McpCode> = new Set(['refused', 'server_trouble', 'device_limit']);
const CODE = /^[a-z0-9_]{1,64}$/;

/** See above. */
export function toolFailure(thrown: unknown): McpError {
  const error = asError(thrown);
  if (error instanceof McpError) return error;
  if (error instanceof PayloadError) return new McpError('bad_payload', error.message, { hint: error.hint });
  if (error instanceof QueuedError) return queued(error);
  if (error instanceof ClientError && (error.code === 'unknown_item' || error.code === 'deleted_item'))
    return new McpError('item_not_found', 'there is no such item (any more)', { cause: error });
  if (error instanceof CryptoRefusal && error.reason === 'too_large')
    return new McpError('too_large', error.message, { cause: error });
  if (error instanceof ProtocolError)
    return new McpError('bad_answer', `the server's answer breaks the protocol (${error.code})`, { cause: error });
  // The names in a certificate are words of whoever answers there.
  if (error instanceof NetworkError) return ofNetwork(error, { quoted: false });
  if (error instanceof ApiError && Object.hasOwn(API, error.code)) {
    const known = API[error.code];
    if (known !== undefined) return new McpError(known.code, known.says, { cause: error });
  }
  return unquoted(failureOf(error), error);
}

function unquoted(failure: McpError, error: Error): McpError {
  if (failure.code === 'internal')
    return new McpError('internal', 'something went wrong in the companion: standard error has it', { cause: error });
  if (!(error instanceof ApiError) || !QUOTING.has(failure.code)) return failure;
  const code = CODE.test(error.code) ? error.code : 'a code that is none';
  const says = failure.code === 'server_trouble' ? 'the server is in trouble' : 'the server refused';
  return new McpError(failure.code, `${says} (${code})`, {
    cause: error,
    hint: failure.code === 'refused' ? "The code stands in the service's reference, under Errors." : failure.hint,
  });
}

function queued(error: QueuedError): McpError {
  const why = toolFailure(error.cause).message;
  return new McpError(
    'queued',
    `the change of item ${error.id} is kept in this program and goes out when the server is back, as long as this ` +
      `program runs (${why})`,
    { cause: error },
  );
}
