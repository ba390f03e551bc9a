/** From method and path to a row of the route table. */
import type { BlobFile } from '../blobs/transfers.js';
import type { TooSlow } from './pace.js';
import type { DocsPage, FrontOptions } from './ports.js';
import type { Call } from './request.js';

/** A reply that is text already. */
export class Text {
  constructor(
    readonly text: string,
    readonly type = 'application/json',
  ) {}
}

/** A page of the reference: it may be kept by its tag, and is allowed nothing but its own style sheet. */
export class Page {
  constructor(readonly page: DocsPage) {}
}

/** A file, of which the reply is all or a part. Whoever is given it closes it. */
export class Download {
  constructor(
    readonly file: BlobFile,
    /** Entity tag with its quotes. */
    readonly etag: string,
    readonly tooSlow: TooSlow,
  ) {}
}

/**
 * What a handler gives that answers later, by `call.answer` or `call.refuse`: exactly one of the two, exactly once. For the
 * busiest calls, whose answer comes with those of many others: a promise each is most of what they would wait for.
 */
export const LATER = Symbol('later');

/** What a handler gives: an object with camelCase keys and raw bytes, finished text, a page, or a file. */
export type Answer = object | Text | Page | Download;

/**
 * What answers a row's calls; `A` is the reply as the reference has it (src/protocol/replies.ts). It throws, or rejects
 * with, a ServiceError for a refusal; anything else is `internal`.
 */
export type Handler<A extends Answer = Answer> = (call: Call, app: FrontOptions) => A | Promise<A> | typeof LATER;

/** Methods of the table; HEAD and OPTIONS follow from them. */
export type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';

/** One row of the route table. */
export interface Row {
  readonly method: Method;
  /** `:id` stands for one part of the path, `:tenant/:ref` for two. */
  readonly path: string;
  /** `url`: the signature in the query (contract 8). */
  readonly auth: 'device' | 'admin' | 'url' | 'none';
  /** Token bucket of the device, limit of the client's address, or none (contract 5, Rates; contract 9). */
  readonly limit: 'read' | 'write' | 'pair' | 'password' | 'challenge' | 'signup' | 'payment' | 'return' | 'none';
  /** Tenant states that let it through: any, those that can read, those that can write (contract 12). */
  readonly state: 'any' | 'read' | 'write';
  /** Largest body in bytes; 0: a body is not looked at. */
  readonly body: number;
  /** The largest reply: room for it is reserved before the handler runs. Left out: it is small. */
  readonly reply?: number | undefined;
  /** Answers for the process, whatever host it is asked by and however busy it is. */
  readonly tenantless?: true;
  /** Is there at the apex of a hosted service only, and belongs to no tenant (contract 12). */
  readonly apex?: true;
  /** The body is what a form of HTML sends, not JSON. */
  readonly form?: true;
  /** The body is not looked at here: its signature covers the bytes. Such a call is refused under load, like others. */
  readonly raw?: true;
  /** The body is not held: the handler takes it from the call's `inflow`, as it comes. */
  readonly stream?: true;
  readonly run: Handler;
}

interface Route {
  readonly path: string;
  readonly methods: ReadonlyMap<string, Row>;
  /** For the `Allow` header. */
  readonly allow: string;
}

interface Pattern extends Route {
  readonly prefix: string;
  readonly suffix: string;
  /** Parts of the path that the parameters stand for. */
  readonly parts: number;
}

/** Longer than any path that leads somewhere. The library lets half a megabyte through, of slashes too. */
const PATH_MAX = 512;

/** `:id`, or `:tenant/:ref`: parameters stand side by side. */
const PARAMETERS = /:[a-z]+(?:\/:[a-z]+)*/;

function routeOf(path: string, rows: readonly Row[]): Route {
  const methods = new Map<string, Row>(rows.map((row) => [row.method, row]));
  const get = methods.get('GET');
  if (get !== undefined) methods.set('HEAD', get);
  return { path, methods, allow: [...methods.keys()].join(', ') };
}

/** What a path leads to. */
export interface Found {
  readonly route: Route;
  /** What stands for `:id`; for `:tenant/:ref` both, with the slash. */
  readonly id: string;
}

/** The route table as it is searched: exact paths by a map, those with an id one after the other. */
export class Router {
  private readonly exact = new Map<string, Found>();
  private readonly patterns: Pattern[] = [];

  constructor(rows: readonly Row[]) {
    for (const path of new Set(rows.map((row) => row.path))) {
      const route = routeOf(
        path,
        rows.filter((row) => row.path === path),
      );
      const [parameters] = PARAMETERS.exec(path) ?? [];
      if (parameters === undefined) {
        this.exact.set(path, { route, id: '' });
        continue;
      }
      const [prefix = '', suffix = ''] = path.split(parameters);
      this.patterns.push({ ...route, prefix, suffix, parts: parameters.split('/').length });
    }
  }

  /** The route of a path; exact ones win over those with an id. */
  find(path: string): Found | undefined {
    const exact = this.exact.get(path);
    if (exact !== undefined) return exact;
    if (path.length > PATH_MAX) return undefined;
    for (const route of this.patterns) {
      if (!path.startsWith(route.prefix) || !path.endsWith(route.suffix)) continue;
      const id = path.slice(route.prefix.length, path.length - route.suffix.length);
      const parts = id.split('/');
      if (parts.length === route.parts && !parts.includes('')) return { route, id };
    }
    return undefined;
  }
}
