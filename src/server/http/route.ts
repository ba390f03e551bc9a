/** A row of the route table: what an endpoint requires, and its handler. */
import type { Needs } from './authenticate.js';
import { ServiceError } from '../../protocol/errors.js';
import type { Answer, Text } from './reply.js';
import type { RequestContext } from './request.js';

/**
 * Returned by a handler that answers later, by `answer` or `refuse` of the context: exactly one of the two, exactly
 * once. For the hottest requests, which are answered in batches: a promise for each would be most of their latency.
 */
export const LATER = Symbol('later');

/**
 * Handles the requests of a row. `P` are the parts of the server that it needs; `A` is the reply as the reference has it
 * (src/protocol/replies.ts). It throws, or rejects with, a ServiceError for a refusal; anything else is `internal`.
 */
export type Handler<P, A extends Answer = Answer> = (ctx: RequestContext, parts: P) => A | Promise<A> | typeof LATER;

/**
 * Handles requests in their usual form from the bytes of the body, which are valid until it returns. Returns undefined
 * for any other form and for invalid input: the body is then parsed, and the row's handler is called.
 */
export type FastPath<P> = (ctx: RequestContext, body: Buffer, parts: P) => typeof LATER | undefined;

/** Methods of the table; HEAD and OPTIONS follow from them. */
export type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';

/** One row of the route table; `P` as in `Handler`. A `Row` without a type argument can be read, but not run. */
export interface Row<P = never> {
  readonly method: Method;
  /** `:id` matches one segment of the path, `:tenant/:ref` two. */
  readonly path: string;
  /** `url`: the signature in the query (reference, Blobs). */
  readonly auth: 'device' | 'admin' | 'url' | 'none';
  /** Token bucket of the device, limit of the client's address, or none (reference, HTTP, Rates). */
  readonly limit: 'read' | 'write' | 'pair' | 'password' | 'challenge' | 'signup' | 'payment' | 'return' | 'none';
  /** Tenant states in which it works (reference, HTTP, States of a tenant). */
  readonly state: Needs;
  /** Largest body in bytes; 0: a body is ignored. */
  readonly body: number;
  /** The largest reply: room for it is reserved before the handler runs. Omitted for small ones. */
  readonly reply?: number | undefined;
  /** Answers for the process: for any host, and also under load, unless it has `auth` or is `raw`. */
  readonly tenantless?: true;
  /** Exists at the apex of a hosted service only, and belongs to no tenant. */
  readonly apex?: true;
  /** The body is an HTML form, not JSON. The function returns the page that a browser gets in place of a refusal. */
  readonly form?: (refusal: ServiceError, ctx: RequestContext, parts: P) => Text;
  /** The body is not parsed: its signature covers the bytes. Such a request is refused under load, like others. */
  readonly raw?: true;
  /** The body is not buffered: the handler reads it from the context's `upload`. */
  readonly stream?: true;
  readonly run: Handler<P>;
  /** Tried before the body is parsed; not where the query is malformed, or the caller has to be looked up again. */
  readonly fastPath?: FastPath<P> | undefined;
}

/** A part of the server that is not configured everywhere. Throws `not_found` where it does not exist. */
export function mounted<T>(part: T | undefined): T {
  if (part === undefined) throw new ServiceError('not_found', 'no such route');
  return part;
}
