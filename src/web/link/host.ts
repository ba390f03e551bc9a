/** The engine's side of the link: serves the clients of this browser, and drops those whose tab was closed. */
import { storeErrorOf } from '../../sdk/store/error.js';
import { channelOf, ANNOUNCEMENTS, failureOf } from './messages.js';
import type { Announcement, Calls, Failure, Streams, ToClient, ToEngine, Topics } from './messages.js';

/** What the engine offers. A watch pushes the current value at once, and returns the function that ends it. */
export interface Served {
  /** Resolves when the engine has determined the state of this browser. Calls and streams wait for it. */
  readonly settled: () => Promise<void>;
  readonly calls: {
    readonly [N in keyof Calls]: (
      params: Parameters<Calls[N]> extends [] ? null : Parameters<Calls[N]>[0],
      /** Aborted when the client's tab was closed or has crashed. */
      departed: AbortSignal,
    ) => ReturnType<Calls[N]> | Promise<ReturnType<Calls[N]>>;
  };
  readonly topics: {
    readonly [N in keyof Topics]: (
      params: Topics[N]['params'],
      push: (value: Topics[N]['value']) => void,
    ) => () => void;
  };
  readonly streams: {
    readonly [N in keyof Streams]: (params: Streams[N], signal: AbortSignal) => AsyncIterable<Uint8Array>;
  };
}

/** Maximum of clients of one browser: more than anyone opens. */
const CLIENTS_MAX = 200;
/** Watches and streams of one client: a page has about a dozen. */
const OPEN_MAX = 100;

const KINDS: ReadonlySet<unknown> = new Set<ToEngine['kind']>(['call', 'watch', 'read', 'pull', 'end']);

const isMessage = (data: unknown): data is ToEngine =>
  typeof data === 'object' && data !== null && 'id' in data && 'kind' in data && KINDS.has(data.kind);

/** Accepts the form of `crypto.randomUUID`. */
const isClient = (client: unknown): boolean => typeof client === 'string' && /^[\da-f-]{36}$/.test(client);

/**
 * An error as the clients get it; that of a browser's storage with the code of a `StoreError`: `closed` also where a
 * newer version of the page has upgraded it, `unsupported` where the browser gives this page none.
 */
export const problemOf = (error: unknown): Failure =>
  failureOf(error instanceof DOMException ? storeErrorOf(error) : error);

/** A client, and what it has open. */
class ConnectedClient {
  private readonly channel: BroadcastChannel;
  /** By request id: ends a watch or a stream. */
  private readonly ends = new Map<number, () => void>();
  /** By request id: continues a stream, which waits after each chunk. */
  private readonly pulls = new Map<number, () => void>();
  private readonly departed = new AbortController();

  constructor(
    private readonly served: Served,
    client: string,
  ) {
    this.channel = new BroadcastChannel(channelOf(client));
    this.channel.onmessage = ({ data }: MessageEvent<unknown>) => this.receive(data);
  }

  welcome(engine: string): void {
    this.send({ kind: 'welcome', id: 0, engine });
  }

  close(): void {
    this.departed.abort();
    for (const end of [...this.ends.values()]) end();
    this.channel.close();
  }

  private send(message: ToClient): void {
    // A closed channel throws, and a call may end after its client.
    if (!this.departed.signal.aborted) this.channel.postMessage(message);
  }

  /** A tab of another version, or a faulty one, may send anything; no message may end the engine. */
  private receive(data: unknown): void {
    if (!isMessage(data)) return;
    const { id } = data;
    if (data.kind === 'pull') return this.pulls.get(id)?.();
    if (data.kind === 'end') return this.ends.get(id)?.();
    const failed = (error: unknown): void => this.send({ kind: 'failed', id, problem: problemOf(error) });
    try {
      if (data.kind === 'call')
        this.call(data)
          .then((value) => this.send({ kind: 'result', id, value }))
          .catch(failed);
      else if (this.ends.has(id)) throw new RangeError('a watch or a stream has this id already');
      else if (this.ends.size >= OPEN_MAX) throw new RangeError('too many watches and streams are open in this tab');
      else if (data.kind === 'watch') this.watch(data);
      else this.read(data).catch(failed);
    } catch (error) {
      failed(error);
    }
  }

  private async call({ name, params }: ToEngine & { readonly kind: 'call' }): Promise<unknown> {
    await this.served.settled();
    const run = this.served.calls[name] as (params: unknown, departed: AbortSignal) => unknown;
    return (await run(params, this.departed.signal)) ?? null;
  }

  private watch({ id, topic, params }: ToEngine & { readonly kind: 'watch' }): void {
    const watch = this.served.topics[topic] as (params: unknown, push: (value: unknown) => void) => () => void;
    const stop = watch(params, (value) => this.send({ kind: 'value', id, value }));
    // `constructor` and other inherited functions are not topics.
    if (typeof (stop as unknown) !== 'function') throw new RangeError('there is no such topic');
    this.ends.set(id, () => {
      this.ends.delete(id);
      stop();
    });
  }

  /** Sends the first chunk at once, each further one on request: at most one chunk waits for a slow reader. */
  private async read({ id, stream, params }: ToEngine & { readonly kind: 'read' }): Promise<void> {
    const open = this.served.streams[stream] as (params: unknown, signal: AbortSignal) => AsyncIterable<Uint8Array>;
    const stop = new AbortController();
    let resume: () => void = () => undefined;
    this.ends.set(id, () => {
      stop.abort();
      resume();
    });
    try {
      await this.served.settled();
      for await (const bytes of open(params, stop.signal)) {
        if (stop.signal.aborted) return;
        const pulled = new Promise<void>((resolve) => (resume = resolve));
        this.pulls.set(id, resume);
        this.send({ kind: 'chunk', id, bytes });
        await pulled;
        if (stop.signal.aborted) return;
      }
      this.send({ kind: 'chunk', id, bytes: null });
    } finally {
      this.ends.delete(id);
      this.pulls.delete(id);
    }
  }
}

/** Starts serving: announces itself to the existing clients and welcomes new ones. Ends with its worker. */
export function serve(served: Served): void {
  const engine = crypto.randomUUID();
  const announcements = new BroadcastChannel(ANNOUNCEMENTS);
  const clients = new Map<string, ConnectedClient>();
  announcements.onmessage = ({ data }: MessageEvent<Announcement | null>) => {
    if (data?.kind !== 'here' || !isClient(data.client)) return;
    const { client } = data;
    if (!clients.has(client)) {
      if (clients.size >= CLIENTS_MAX) return;
      clients.set(client, new ConnectedClient(served, client));
      // Granted when the client's tab was closed or has crashed.
      const gone = navigator.locks.request(channelOf(client), () => {
        clients.get(client)?.close();
        clients.delete(client);
      });
      // Rejects only where the engine's own tab is being closed.
      gone.catch(() => undefined);
    }
    clients.get(client)?.welcome(engine);
  };
  announcements.postMessage({ kind: 'leads' } satisfies Announcement);
}
