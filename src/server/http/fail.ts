/** Converts errors to refusals of the catalogue, and to their fields in replies and logs (reference, Errors). */
import { codeOf, ServiceError } from '../../protocol/errors.js';
import type { ErrorDetailsReply, ErrorFields } from '../../protocol/replies.js';
import { encode, type Shape } from '../../protocol/shape.js';

/** A refusal of the catalogue. An unexpected error becomes `internal`; its cause is not sent. */
export const asRefusal = (error: unknown): ServiceError =>
  error instanceof ServiceError ? error : new ServiceError('internal');

/** Field names as shape B spells them. Capitals inside ids stay: they have no lower-case letter on both sides. */
const snakePath = (path: string): string =>
  path.replace(/(?<=[a-z])[A-Z](?=[a-z])/g, (letter) => `_${letter.toLowerCase()}`);

/** The refusal with its field path respelled, in its message too. */
export function renamed(refusal: ServiceError, spell: (path: string) => string): ServiceError {
  const { error, details, message, retryAfter } = refusal;
  const path = details?.path;
  if (typeof path !== 'string' || spell(path) === path) return refusal;
  const name = spell(path);
  const respelled = message.startsWith(path) ? name + message.slice(path.length) : message;
  return new ServiceError(error, respelled, { ...details, path: name }, retryAfter);
}

/** The value of `error` in a reply, a batch result or an `error` frame. */
export function errorFields(refusal: ServiceError, shape: Shape): ErrorFields {
  const code = codeOf(refusal.error, shape);
  const { message, details } = shape === 'b' ? renamed(refusal, snakePath) : refusal;
  return {
    code,
    message,
    ...(shape === 'b' ? { hint: `/docs/errors#${code}` } : {}),
    ...(details === undefined ? {} : { details: encode(shape, details) as ErrorDetailsReply }),
  };
}

/** Whole seconds for `Retry-After`; undefined where the status has none. */
export function secondsToWait(refusal: ServiceError, status: number): number | undefined {
  if (status !== 429 && status !== 503) return undefined;
  return Math.max(1, Math.ceil(refusal.retryAfter ?? 1));
}

/** The loggable fields of an error. Those that database errors add have rows and parameters, maybe codes or keys. */
export function describe(error: unknown, depth = 0): object {
  if (!(error instanceof Error)) return { type: typeof error };
  const code = 'code' in error && typeof error.code === 'string' ? { code: error.code } : {};
  const cause = error.cause === undefined || depth >= 3 ? {} : { cause: describe(error.cause, depth + 1) };
  return { type: error.name, message: error.message, ...code, stack: error.stack, ...cause };
}
