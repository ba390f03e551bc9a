/** The used part of the service worker's global scope: TypeScript's libraries for workers and for pages conflict. */

/** An event that can be extended until its work is done. */
export interface LongEvent extends Event {
  waitUntil(work: Promise<unknown>): void;
}

/** A request of a page. Without `respondWith` the browser does what it would do without a service worker. */
export interface FetchEvent extends LongEvent {
  readonly request: Request;
  respondWith(response: Promise<Response>): void;
}

interface Events {
  readonly install: LongEvent;
  readonly activate: LongEvent;
  readonly fetch: FetchEvent;
  readonly message: LongEvent & MessageEvent<unknown>;
}

/** A tab. */
interface Client {
  postMessage(message: unknown): void;
}

/** The global scope. */
export interface WorkerScope {
  readonly location: { readonly origin: string };
  readonly clients: {
    claim(): Promise<void>;
    matchAll(options: { readonly includeUncontrolled: boolean; readonly type: 'window' }): Promise<readonly Client[]>;
  };
  skipWaiting(): Promise<void>;
  addEventListener<N extends keyof Events>(name: N, listener: (event: Events[N]) => void): void;
}
