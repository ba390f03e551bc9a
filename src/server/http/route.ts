/** What a row of the route table says of its endpoint, and what answers it. */
import type { Needs } from './authenticate.js';
import type { Answer } from './reply.js';
import type { RequestContext } from './request.js';

/**
 * What a handler gives that answers later, by `call.answer` or `call.refuse`: exactly one of the two, exactly once. For the
 * busiest calls, whose answer comes with those of many others: a promise each is most of what they would wait for.
 */
export const LATER = Symbol('later');

/**
 * What answers a row's calls. `P` are the parts of the server that it needs; `A` is the reply as the reference has it
 * (src/protocol/replies.ts). It throws, or rejects with, a ServiceError for a refusal; anything else is `internal`.
 */
export type Handler<P, A extends Answer = Answer> = (ctx: RequestContext, parts: P) => A | Promise<A> | typeof LATER;

/** Methods of the table; HEAD and OPTIONS follow from them. */
export type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';

/** One row of the route table; `P` as in `Handler`. A `Row` of no kind is one that nobody calls. */
export interface Row<P = never> {
  readonly method: Method;
  /** `:id` stands for one part of the path, `:tenant/:ref` for two. */
  readonly path: string;
  /** `url`: the signature in the query (reference, Blobs). */
  readonly auth: 'device' | 'admin' | 'url' | 'none';
  /** Token bucket of the device, limit of the client's address, or none (reference, HTTP, Rates). */
  readonly limit: 'read' | 'write' | 'pair' | 'password' | 'challenge' | 'signup' | 'payment' | 'return' | 'none';
  /** Tenant states that let it through (reference, HTTP, States of a tenant). */
  readonly state: Needs;
  /** Largest body in bytes; 0: a body is not looked at. */
  readonly body: number;
  /** The largest reply: room for it is reserved before the handler runs. Left out: it is small. */
  readonly reply?: number | undefined;
  /** Answers for the process, whatever host it is asked by and however busy it is. */
  readonly tenantless?: true;
  /** Is there at the apex of a hosted service only, and belongs to no tenant. */
  readonly apex?: true;
  /** The body is what a form of HTML sends, not JSON. */
  readonly form?: true;
  /** The body is not looked at here: its signature covers the bytes. Such a call is refused under load, like others. */
  readonly raw?: true;
  /** The body is not held: the handler takes it from the call's `inflow`, as it comes. */
  readonly stream?: true;
  readonly run: Handler<P>;
}
