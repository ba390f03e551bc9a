/** The LISTEN connection of an instance, opened again whenever it is lost. */
import { Socket } from 'node:net';
import pg from 'pg';
import { delay, systemClock } from '../../protocol/clock.js';
import { SingleFlight } from '../../protocol/single-flight.js';
import { openClient, type ConnectionSettings } from './database.js';

/** Pause after a loss and after the first failed attempt to connect, which doubles with each; and the longest one, ms. */
const RETRY_MS = 100;
const RETRY_MAX_MS = 3_000;

interface ListenerOptions {
  readonly connection: Pick<ConnectionSettings, 'url' | 'name'>;
  /** Called with the notifications of each channel. */
  readonly channels: Readonly<Record<string, (payload: unknown) => void>>;
  /** The connection was opened, or reopened: notifications in between are lost. */
  readonly onConnected: () => void;
  readonly onFault: (error: unknown) => void;
}

export class Listener {
  /** That of the connection, or of the attempt to open one. */
  private socket: Socket | undefined;
  /** False until every channel is listened to. */
  private listening = false;
  private closed = false;
  private readonly connecting = new SingleFlight(() => this.connect());
  /** Called after each attempt to connect; resolves `start`. */
  private tried = (): void => undefined;
  private endPause = (): void => undefined;

  constructor(private readonly options: ListenerOptions) {}

  /** Resolves when it listens, or when the first attempt to connect failed: then it keeps trying. */
  start(): Promise<void> {
    return new Promise((resolve) => {
      this.tried = resolve;
      void this.connecting.join().then(resolve);
    });
  }

  /**
   * Opens another connection. Does not wait for the other side of this one, which over a half-open connection would never
   * answer.
   */
  replace(): void {
    this.socket?.destroy();
    this.endPause();
  }

  async close(): Promise<void> {
    this.closed = true;
    this.replace();
    await this.connecting.idle();
  }

  private async connect(): Promise<void> {
    for (let failures = 0; !this.closed; failures++) {
      try {
        return await this.listen();
      } catch (error) {
        this.socket?.destroy();
        if (!this.closed) this.options.onFault(error);
      } finally {
        this.tried();
      }
      await this.pause(Math.min(RETRY_MAX_MS, RETRY_MS * 2 ** failures));
    }
  }

  private async pause(ms: number): Promise<void> {
    const ended = new AbortController();
    this.endPause = () => ended.abort();
    if (!this.closed) await delay(systemClock, ms, ended.signal).catch(() => undefined);
  }

  /** Listens to every channel on a new connection; only then is the connection reported. Rejects if one fails. */
  private async listen(): Promise<void> {
    const { connection, channels, onConnected } = this.options;
    const link = (): Socket => (this.socket = new Socket());
    const client = await openClient({ ...connection, link, onLost: () => this.lost() });
    if (this.closed) return client.end();
    client.on('notification', ({ channel, payload }) => channels[channel]?.(payload));
    // One after the other: queries that queue up are deprecated in the driver.
    for (const channel of Object.keys(channels)) await client.query(`LISTEN ${pg.escapeIdentifier(channel)}`);
    this.listening = true;
    onConnected();
  }

  /** One that is lost before it listens fails the attempt. */
  private lost(): void {
    if (!this.listening) return;
    this.listening = false;
    // Not at once: a server that ends every connection would be asked without a pause.
    void this.pause(RETRY_MS).then(() => this.connecting.fresh());
  }
}
