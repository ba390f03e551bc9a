/** The client's side of the link: a page, or the service worker. */
import { channelOf, ANNOUNCEMENTS, failureOf, REPEATABLE } from './messages.js';
import type {
  Announcement,
  CallName,
  Calls,
  Failure,
  StreamName,
  Streams,
  ToClient,
  ToEngine,
  TopicName,
  Topics,
} from './messages.js';

/** A `Failure` as an error. `code` `engine_lost`: the leading tab was closed; the change may have been made or not. */
export class LinkError extends Error {
  override readonly name = 'LinkError';
  constructor(readonly problem: Failure) {
    super(problem.message);
  }
}

const LOST: Failure = {
  name: 'LinkError',
  code: 'engine_lost',
  message: 'the tab that did this was closed: look whether it was done, and do it again if not',
};

/** A request that waits for its answer, or a watch; sent again to the next engine where `again` is true. */
interface Open {
  readonly message: ToEngine;
  readonly again: boolean;
  readonly receive: (message: ToClient) => void;
  readonly fail: (error: LinkError) => void;
}

/**
 * Talks to the engine that leads. A client may start before there is one: its requests wait. When the leading tab is
 * closed, watches and repeatable calls continue with the next engine; other calls and streams under way fail with
 * `engine_lost`.
 */
export class Link {
  private readonly client = crypto.randomUUID();
  private readonly channel = new BroadcastChannel(channelOf(this.client));
  private readonly announcements = new BroadcastChannel(ANNOUNCEMENTS);
  private readonly open = new Map<number, Open>();
  private engine: string | null = null;
  private last = 0;

  constructor() {
    this.channel.onmessage = ({ data }: MessageEvent<ToClient | null>) => {
      if (data === null) return;
      if (data.kind === 'welcome') this.greet(data.engine);
      else this.open.get(data.id)?.receive(data);
    };
    const announce = (): void =>
      this.announcements.postMessage({ kind: 'here', client: this.client } satisfies Announcement);
    // Once this lock is free, the engine drops the client, also after a crash of its tab. It is therefore acquired
    // before the client announces itself.
    const held = navigator.locks.request(channelOf(this.client), () => {
      this.announcements.onmessage = ({ data }: MessageEvent<Announcement | null>) => {
        if (data?.kind === 'leads') announce();
      };
      announce();
      // Held as long as the page lives.
      return new Promise<never>(() => undefined);
    });
    held.catch((error: unknown) => {
      for (const { fail } of this.open.values()) fail(new LinkError(failureOf(error)));
      this.open.clear();
    });
  }

  /** Calls a function of the engine. Rejects with `LinkError`. */
  call<N extends CallName>(name: N, ...params: Parameters<Calls[N]>): Promise<ReturnType<Calls[N]>> {
    return new Promise((resolve, reject) => {
      const id = ++this.last;
      this.send({
        message: { kind: 'call', id, name, params: params[0] ?? null },
        again: REPEATABLE.has(name),
        receive: (answer) => {
          this.open.delete(id);
          if (answer.kind === 'failed') reject(new LinkError(answer.problem));
          else if (answer.kind === 'result') resolve(answer.value as ReturnType<Calls[N]>);
        },
        fail: reject,
      });
    });
  }

  /** `onValue` gets the value as soon as it is known and at each change; the result ends the watch. */
  watch<N extends TopicName>(topic: N, params: Topics[N]['params'], onValue: (value: Topics[N]['value']) => void) {
    const id = ++this.last;
    this.send({
      message: { kind: 'watch', id, topic, params },
      again: true,
      receive: (answer) => {
        if (answer.kind === 'value') onValue(answer.value as Topics[N]['value']);
      },
      fail: () => undefined,
    });
    return () => {
      if (this.open.delete(id)) this.post({ kind: 'end', id });
    };
  }

  /**
   * The bytes of a stream. The next chunk is requested when the last one was taken. `signal` ends it at once. Throws
   * `LinkError`; a stream that ends without an error was complete.
   */
  async *read<N extends StreamName>(
    stream: N,
    params: Streams[N],
    signal?: AbortSignal,
  ): AsyncGenerator<Uint8Array, void, undefined> {
    const id = ++this.last;
    let arrived: (message: ToClient) => void = () => undefined;
    let broken: (error: LinkError) => void = () => undefined;
    // Kept for a reader that pauses: it learns of the failure when it takes the next chunk.
    let failure: LinkError | undefined;
    const fail = (error: LinkError): void => {
      failure = error;
      broken(error);
    };
    const next = (): Promise<ToClient> =>
      new Promise((resolve, reject) => {
        if (failure !== undefined) throw failure;
        arrived = resolve;
        broken = reject;
      });
    let answer = next();
    this.send({
      message: { kind: 'read', id, stream, params },
      again: false,
      receive: (message) => arrived(message),
      fail,
    });
    const end = (): void => {
      if (this.open.delete(id)) this.post({ kind: 'end', id });
    };
    const stop = (): void => {
      end();
      fail(new LinkError({ name: 'LinkError', code: 'cancelled', message: 'the stream was stopped' }));
    };
    signal?.addEventListener('abort', stop, { once: true });
    try {
      for (;;) {
        const message = await answer;
        if (message.kind === 'failed') throw new LinkError(message.problem);
        if (message.kind !== 'chunk' || message.bytes === null) return;
        yield message.bytes;
        answer = next();
        this.post({ kind: 'pull', id });
      }
    } finally {
      signal?.removeEventListener('abort', stop);
      end();
    }
  }

  private send(request: Open): void {
    this.open.set(request.message.id, request);
    if (this.engine !== null) this.post(request.message);
  }

  private post(message: ToEngine): void {
    this.channel.postMessage(message);
  }

  /** An engine listens: the first one gets all waiting requests, a later one those that may be repeated. */
  private greet(engine: string): void {
    if (engine === this.engine) return;
    const first = this.engine === null;
    this.engine = engine;
    for (const request of [...this.open.values()]) {
      if (first || request.again) this.post(request.message);
      else {
        this.open.delete(request.message.id);
        request.fail(new LinkError(LOST));
      }
    }
  }
}
