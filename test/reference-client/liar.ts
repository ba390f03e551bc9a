/** The small client as `npm run liar` runs it: a JSON line per command on standard input, JSON lines in reply. */
import { randomBytes } from 'node:crypto';
import { createInterface } from 'node:readline';
import { Device, newId, url, type Json } from './client.js';
import * as crypto from './cryptography.js';
import { Replica } from './replica.js';

const say = (line: Json): boolean => process.stdout.write(`${JSON.stringify(line)}\n`);
const report = (problem: string): boolean => say({ problem });
const yes = (): boolean => true;

/** One device, from its claim or pairing on. */
class Played {
  private readonly device: Device;
  private readonly replica: Replica;

  constructor(origin: string) {
    this.device = new Device(origin, 'a', 'Small client');
    this.replica = new Replica(this.device, report);
  }

  async claim(): Promise<void> {
    await this.device.claim();
  }

  async join({ words }: Json): Promise<void> {
    await this.device.join(String(words), () => undefined);
  }

  async sync(): Promise<void> {
    try {
      await this.replica.sync();
    } finally {
      for (const { id, json, hidden } of this.replica.shown())
        say({ item: { id, text: (JSON.parse(json) as Json)['text'], hidden } });
    }
  }

  async put({ text }: Json): Promise<void> {
    const { device } = this;
    const head = { id: newId(), binId: 'inbox', type: 'text', ts: Date.now() };
    const devices = await device.recipients();
    await device.write(crypto.sealItem(head, JSON.stringify({ text }), { master: device.master, devices }), 0);
    say({ stored: { id: head.id } });
  }

  async delete({ id }: Json): Promise<void> {
    const sig = url(crypto.deleteTag(String(id), this.device.master));
    await this.device.call('DELETE', `/items/${String(id)}`, { sig });
  }

  async file({ id }: Json): Promise<void> {
    const item = this.replica.item(String(id));
    const content = crypto.openBlob(await this.device.download(item.blob?.ref ?? ''), item, this.device.reader);
    say({ content: content.toString('base64') });
  }

  async offer(): Promise<void> {
    const { device } = this;
    // Reads the list before the session: the ids in it count as known.
    await device.recipients();
    const line = await device.connect();
    try {
      const visible = crypto.words(randomBytes(8));
      const offer = await device.offer(visible);
      say({ words: visible });
      await device.approve(offer, await line.next('pair_request'), yes);
    } finally {
      line.close();
    }
  }

  async renew(): Promise<void> {
    await this.device.renew();
  }
}

const COMMANDS = ['claim', 'join', 'sync', 'put', 'delete', 'file', 'offer', 'renew'] as const;
type Command = (typeof COMMANDS)[number];
const isCommand = (name: unknown): name is Command => COMMANDS.some((command) => command === name);

let played: Played | undefined;
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line) as Json;
  played ??= new Played(String(command['url']));
  try {
    if (isCommand(command['do'])) await played[command['do']](command);
    else say({ cannot: true });
  } catch (error) {
    report(error instanceof Error ? error.message : String(error));
  }
  say({ done: true });
}
