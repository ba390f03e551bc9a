/** What one caller does to take all he can get, beside a judge who wants to work (see judge.ts). */
import { BASE, type Neighbour } from './hosted.js';
import { Judge, requestText, hostedServer, Unread, type HostedServer } from './judge.js';
import type { WithTeardown } from './postgres.js';
import { fill, released } from './socket-attacks.js';
import { range } from './stream.js';

/** Somebody without a token. */
const STRANGER = '203.0.113.9';

/** A server with two tenants: a judge, and somebody greedy whose pages are long. */
export class Stage {
  private readonly open: Unread[] = [];

  private constructor(
    readonly place: HostedServer,
    readonly judge: Judge,
    private readonly greedy: Neighbour,
  ) {}

  static async start(t: WithTeardown): Promise<Stage> {
    // Without rates: what one asks for is bounded by his shares alone.
    const place = await hostedServer(t, { RATE_READ_PER_S: '0', RATE_WRITE_PER_S: '0' });
    const [honest, greedy] = [await place.tenant('anna'), await place.tenant('berta')];
    // A page of these has about 4 MiB.
    await fill(greedy, [greedy.device], 8);
    const stage = new Stage(place, new Judge(place, honest), greedy);
    t.teardown(() => stage.leave());
    return stage;
  }

  /** A device asks for pages of 4 MiB, 20 at a time, and reads none. */
  async pages(waves: number): Promise<void> {
    for (const wave of range(1, waves)) {
      for (const _ of range(1, 20)) await this.send(this.page);
      await this.judge.after(wave);
    }
  }

  /** All at once. */
  async burst(count: number): Promise<void> {
    await Promise.all(range(1, count).map(() => this.send(this.page)));
    await this.judge.after(10);
  }

  /** Requests without a token for pages of the reference, 250 at a time, whose replies are not read. */
  async docs(waves: number): Promise<void> {
    const text = requestText('/docs/index-a-z', { address: STRANGER });
    for (const wave of range(1, waves)) {
      await Promise.all(range(1, 250).map(() => this.send(text)));
      await this.judge.after(wave);
    }
  }

  /** Thousands of requests without a token at once on each of ten connections, none of which waits for an answer. */
  async unwaited(waves: number): Promise<void> {
    const text = requestText('/api/health', { address: STRANGER }).repeat(5_000);
    for (const wave of range(1, waves)) {
      await Promise.all(range(1, 10).map(() => this.send(text)));
      await this.judge.after(wave);
    }
  }

  /** Half a body without a token on each of many connections. */
  async halves(count: number): Promise<void> {
    const text =
      `POST /api/devices/reauth HTTP/1.1\r\nHost: anna.${BASE}\r\nX-Forwarded-For: ${STRANGER}\r\n` +
      `Content-Type: application/json\r\nContent-Length: 8192\r\n\r\n${'x'.repeat(8_000)}`;
    await Promise.all(range(1, count).map(() => this.send(text)));
    await this.judge.after(10);
  }

  /** Ends every connection; resolves when the server holds nothing any more. */
  async leave(): Promise<void> {
    for (const unread of this.open.splice(0)) unread.destroy();
  }

  /** Resolves when every budget is empty. */
  async released(): Promise<void> {
    await this.leave();
    await released(this.place);
  }

  private get page(): string {
    return requestText('/api/items?since=0', { host: this.greedy.host, token: this.greedy.device.token });
  }

  private async send(text: string): Promise<void> {
    this.open.push(await Unread.open(this.place.server.port, text));
  }
}
