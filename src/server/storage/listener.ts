/**
 * The LISTEN connection of an instance, maintained by pg-listen. By default pg-listen gives up after 3 s, may stop
 * receiving when the connection breaks again while it re-subscribes, and does not stop reconnecting when it is closed
 * meanwhile. So `replace` creates another subscriber, and a replaced subscriber ends itself.
 */
import { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type pg from 'pg';
import pgListen, { type Subscriber } from 'pg-listen';
import { WaitGroup } from '../../protocol/wait-group.js';

/** Reconnection attempts of one subscriber, three seconds in total; then another one is created. */
const RETRIES_MAX = 4;
/** Interval of pg-listen's queries that test whether its connection still works. */
const PARANOID_MS = 10_000;

interface Subscription {
  readonly subscriber: Subscriber;
  /** Resolves when connected, or when ended before, which the driver does not report. Rejects like `connect`. */
  readonly connected: () => Promise<void>;
  /** Ends it without waiting for the other side, which over a half-open connection would never answer. */
  readonly end: () => Promise<void>;
}

interface ListenerOptions {
  /** Settings of the connection, requested again when it could not be opened for some seconds. */
  readonly connection: () => Promise<pg.ClientConfig>;
  /** Called with the notifications of each channel. */
  readonly channels: Readonly<Record<string, (payload: unknown) => void>>;
  /** A connection was opened, and listens from now on to one channel after the other: notifications were lost. */
  readonly onOpened: () => void;
  /** It listens to all channels. */
  readonly onConnected: () => void;
  readonly onFault: (error: unknown) => void;
}

export class Listener {
  private current: Subscription | undefined;
  /** Pending attempts to replace the subscriber; `close` waits for them. */
  private readonly attempts = new WaitGroup();
  private closed = false;

  constructor(private readonly options: ListenerOptions) {}

  /** Resolves when it listens, or when the first attempt to connect failed: then it keeps trying. */
  async start(): Promise<void> {
    const connection = await this.options.connection();
    if (this.closed) return;
    const subscription = this.subscribe(connection);
    // Read only now: of two replacements at once, each ends the subscriber that it displaces.
    const replaced = this.current;
    this.current = subscription;
    await this.begin(subscription);
    await replaced?.end();
  }

  /** Connects and listens, or leaves pg-listen trying. Never rejects. */
  private async begin(subscription: Subscription): Promise<void> {
    const { onFault, channels } = this.options;
    const { subscriber, connected, end } = subscription;
    for (const [channel, onPayload] of Object.entries(channels)) subscriber.notifications.on(channel, onPayload);
    const replace = (error: unknown): void => {
      if (this.current !== subscription) return;
      onFault(error);
      this.replace();
    };
    // pg-listen has given up.
    subscriber.events.on('error', replace);
    // On its next connection pg-listen would listen to all channels at once, and queries that queue up are deprecated in
    // the driver: pg-listen is made to forget them. The statement itself fails, since the connection has ended.
    subscriber.events.on('reconnect', () => void subscriber.unlistenAll().catch(() => undefined));
    let isConnected = true;
    try {
      await connected();
    } catch (error) {
      // pg-listen keeps trying in the background.
      isConnected = false;
      if (this.current === subscription) onFault(error);
    }
    if (this.current !== subscription) {
      // Replaced or closed while connecting: `close` was called before there was a connection.
      await end();
      return;
    }
    // Not earlier: the first connection is handled below, so that `start` waits for it.
    subscriber.events.on('connected', () => void this.listen(subscription).catch(replace));
    // Not replaced here after a failure: a server that accepts connections and refuses LISTEN would be tried again without
    // a pause. The owner replaces a connection on which no heartbeat comes back.
    if (!isConnected) return;
    await this.listen(subscription).catch((error: unknown) => {
      if (this.current === subscription) onFault(error);
    });
  }

  /** Listens to every channel on a new connection; only then is the connection reported. Rejects if one fails. */
  private async listen(subscription: Subscription): Promise<void> {
    if (this.current !== subscription) return subscription.end();
    this.options.onOpened();
    // One after the other: queries that queue up are deprecated in the driver.
    for (const channel of Object.keys(this.options.channels)) await subscription.subscriber.listenTo(channel);
    // If it was replaced or closed meanwhile, `replace` or `close` ends it.
    if (this.current === subscription) this.options.onConnected();
  }

  /** Replaces the current subscriber, which receives nothing any more. */
  replace(): void {
    void this.attempts.add(this.start().catch(this.options.onFault));
  }

  async close(): Promise<void> {
    this.closed = true;
    const { current } = this;
    // Before the first await: a pending attempt ends itself once it is not the current one.
    this.current = undefined;
    await current?.end();
    await this.attempts.idle();
  }

  /** A subscriber of pg-listen, not connected yet. */
  private subscribe(connection: pg.ClientConfig): Subscription {
    const sockets = new Set<Duplex>();
    const stream = (): Duplex => {
      // The owner's, which it may end too.
      const socket = connection.stream?.() ?? new Socket();
      sockets.add(socket);
      return socket.once('close', () => sockets.delete(socket));
    };
    const subscriber: Subscriber = pgListen.default(
      { ...connection, stream },
      {
        retryTimeout: Infinity,
        retryLimit: Infinity,
        retryInterval: (attempt) => {
          if (this.current?.subscriber !== subscriber) throw new Error('replaced or closed');
          // This subscriber knows only one server; another may have taken over.
          if (attempt >= RETRIES_MAX) throw new Error('tried often enough');
          return 100 * 2 ** attempt;
        },
        paranoidChecking: PARANOID_MS,
        // Parsed by the caller: pg-listen would put the text of an unreadable payload into its error.
        parse: (payload) => payload,
      },
    );
    let resolveEnded = (): void => undefined;
    const ended = new Promise<void>((resolve) => (resolveEnded = resolve));
    const end = async (): Promise<void> => {
      resolveEnded();
      const closed = subscriber.close().catch(this.options.onFault);
      for (const socket of sockets) socket.destroy();
      await closed;
    };
    return { subscriber, connected: async () => Promise.race([subscriber.connect(), ended]), end };
  }
}
