/**
 * Messages between coordinator and agent: JSON lines over TCP, each with a MAC under their shared secret. The MAC
 * covers both sides' nonces, the direction and the number of the message, so that none can be forged, changed,
 * replayed, dropped or reflected. Messages are not encrypted, and hold no secrets.
 */
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import type { Socket } from 'node:net';
import { StringDecoder } from 'node:string_decoder';
import { isObject } from '../protocol/bytes.js';
import { every, systemClock, type Clock, type Timer } from '../protocol/clock.js';

const NONCE = /^[0-9a-f]{32}$/;
/** Longest line: a process's result, with a few thousand buckets of each histogram, is far shorter. */
const LINE_MAX = 4 * 1024 * 1024;
/** Longest line before the other side has proved by its first message, a ping, that it has the secret. */
const FIRST_MAX = 4_096;
/** Silence after which the other side, which pings, counts as dead, ms; and the time limit for proving the secret. */
const SILENT_MS = 20_000;
const PING_MS = 5_000;
const PING = { ping: true };

/** One side of a connection. */
export class Channel {
  private readonly nonce = randomBytes(16).toString('hex');
  private other: string | undefined;
  private readonly decoder = new StringDecoder('utf8');
  private buffer = '';
  private sent = 0;
  private received = 0;
  private readonly waiting: unknown[] = [PING];
  private silence: Timer | undefined;

  /**
   * @param options.role `a`: the agent's side, `c`: the coordinator's.
   * @param options.onMessage returns why the connection has to end; undefined: it goes on.
   * @param options.onEnd is called once; `text` says why.
   */
  constructor(
    private readonly socket: Socket,
    private readonly options: {
      readonly role: 'a' | 'c';
      readonly secret: string;
      readonly onMessage: (message: unknown) => string | undefined;
      readonly onEnd: (text: string) => void;
    },
    clock: Clock = systemClock,
  ) {
    let reason = 'the connection ended';
    const cut = (why: string): void => {
      reason = why;
      socket.destroy();
    };
    // Not a time-out of the socket: what this side sends would renew that, and proves nothing about the other side.
    const restartTimeout = (): void => {
      this.silence?.cancel();
      this.silence = clock.setTimer(SILENT_MS, () => cut('nothing was received for 20 s'));
    };
    socket.setNoDelay(true);
    socket.on('data', (bytes: Buffer) => {
      const fault = this.read(bytes);
      if (fault !== undefined) cut(fault);
      else if (this.received > 0) restartTimeout();
    });
    socket.on('error', (error) => {
      reason = error.message;
    });
    socket.on('close', () => {
      this.silence?.cancel();
      ping.cancel();
      options.onEnd(reason);
    });
    restartTimeout();
    const ping = every(clock, PING_MS, () => this.send(PING));
    socket.write(`${this.nonce}\n`);
  }

  /** Sends a message, once the other side's nonce is known. */
  send(message: unknown): void {
    if (this.other === undefined) {
      this.waiting.push(message);
      return;
    }
    const text = JSON.stringify(message);
    this.socket.write(`${this.mac(this.options.role, this.sent++, text)} ${text}\n`);
  }

  end(): void {
    this.socket.end();
  }

  private mac(role: 'a' | 'c', number: number, text: string): string {
    const nonces = this.options.role === 'a' ? [this.nonce, this.other] : [this.other, this.nonce];
    const covered = [role, ...nonces, String(number), text].join('\n');
    return createHmac('sha256', this.options.secret).update(covered).digest('hex');
  }

  /** Processes received bytes. Returns why the connection has to end; undefined: it goes on. */
  private read(bytes: Buffer): string | undefined {
    this.buffer += this.decoder.write(bytes);
    for (let end = this.buffer.indexOf('\n'); end >= 0; end = this.buffer.indexOf('\n')) {
      const line = this.buffer.slice(0, end);
      this.buffer = this.buffer.slice(end + 1);
      const fault = this.line(line);
      if (fault !== undefined) return fault;
    }
    return this.tooLong(this.buffer);
  }

  private tooLong({ length }: string): string | undefined {
    return length > (this.received === 0 ? FIRST_MAX : LINE_MAX) ? 'a line that is too long' : undefined;
  }

  private line(line: string): string | undefined {
    // A line that arrives together with its end is never an incomplete one, whose length `read` checks.
    const fault = this.tooLong(line);
    if (fault !== undefined) return fault;
    if (this.other === undefined) {
      if (!NONCE.test(line)) return 'it is not part of a load test';
      this.other = line;
      for (const message of this.waiting.splice(0)) this.send(message);
      return undefined;
    }
    const [mac, text] = [line.slice(0, 64), line.slice(65)];
    const right = Buffer.from(this.mac(this.options.role === 'a' ? 'c' : 'a', this.received++, text));
    const given = Buffer.from(mac);
    if (given.length !== right.length || !timingSafeEqual(given, right)) return 'it has a different secret';
    let message: unknown;
    try {
      message = JSON.parse(text);
    } catch {
      return 'a message that is not JSON';
    }
    if (isObject(message) && 'ping' in message) return undefined;
    return this.options.onMessage(message);
  }
}
