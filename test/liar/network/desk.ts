/**
 * Where lies are played to an unknown client: a real server, an honest device of the same user that is connected to it,
 * and the client, which reaches it only through the liar. What the client shows, sends and reports is judged.
 */
import { nodeSodium } from '../../../src/crypto/sodium-node.js';
import { Device } from '../../../src/sdk/device.js';
import { prepareClaim } from '../../../src/sdk/enrol.js';
import type { Identity } from '../../../src/sdk/identity.js';
import { join } from '../../../src/sdk/pairing.js';
import { soon } from '../../support/events.js';
import type { WithTeardown } from '../../support/postgres.js';
import type { OldPairing } from '../lies/pairing.js';
import { Liar, rows, type Json } from '../proxy.js';
import { platform } from '../victim.js';
import { Client, Faulty } from './client.js';

/** An item as the client printed it. */
interface Printed {
  readonly id: string;
  readonly text: string;
  readonly hidden: boolean;
}

const isItem = (frame: Json): boolean => frame['type'] === 'item';

export class Desk {
  client!: Client;
  clientId = '';
  /** Faults that were found in what the client shows or sent. */
  readonly believed: string[] = [];
  /** The items that the client printed at its last `sync` since the lie began; undefined: there was no `sync`. */
  private printed: readonly Printed[] | undefined;
  /** Devices that the client has let in for its user. */
  private readonly guests = new Set<string>();
  /** Every text that the user wrote, by item, oldest first; `null` as the last one: the user deleted the item. */
  private readonly wrote = new Map<string, (string | null)[]>();
  /** The items that the client showed when the lie began, with the index of the shown text in `wrote`. */
  private before = new Map<string, number>();
  private readonly secrets: (readonly [string, Uint8Array | string])[] = [];

  private constructor(
    readonly liar: Liar,
    readonly owner: Device,
    private readonly identity: Identity,
    private readonly command: readonly string[],
  ) {
    this.secrets.push(['the master key', identity.masterKey]);
  }

  /** Claims the server on this port of this machine. */
  static async set(t: WithTeardown, port: number, command: readonly string[]): Promise<Desk> {
    const serverUrl = `http://127.0.0.1:${port}`;
    const claim = await prepareClaim({ platform, serverUrl, name: 'Owner', glyph: 'laptop' });
    const identity = await claim.register();
    const owner = await Device.open({ platform, identity, onProblem: () => undefined });
    t.teardown(() => owner.close());
    await owner.connect();
    const desk = new Desk(await Liar.before(t, port), owner, identity, command);
    desk.secrets.push(['the phrase', claim.phrase]);
    await desk.put('a first item');
    await desk.put('a second item');
    return desk;
  }

  get tenant(): Pick<Identity, 'tenantId' | 'masterKey'> {
    return this.identity;
  }

  /** Starts a new client; `joined`: it is paired and up to date. Rejects with `Faulty`. */
  async enter(joined: boolean): Promise<void> {
    this.liar.honest();
    this.liar.heard.length = 0;
    this.client = new Client(this.command);
    this.clientId = '';
    this.guests.clear();
    if (joined) {
      await this.joinClient();
      await this.sync();
    }
    await this.arm();
    if (joined) {
      const lacking = [...this.wrote].filter(([id, texts]) => texts.at(-1) !== null && !this.before.has(id));
      if (lacking.length > 0) throw new Faulty('it does not show what its user wrote, with a server that is honest');
    }
  }

  /** Pairs the client by the owner's words. Rejects with `Faulty`. */
  async joinClient(): Promise<void> {
    // The timer of `soon` starts only where it is awaited: one left behind keeps the process alive until it fires.
    let unhear: (() => void) | undefined;
    const rewrapped = new Promise<unknown>((resolve) => (unhear = this.owner.on('rewrapped', resolve)));
    const { offer, joined } = await this.letIn();
    await this.client.do({ do: 'join', url: this.liar.url, words: offer.words });
    if (this.client.problems.length > 0) {
      offer.cancel();
      unhear?.();
      throw new Faulty(`it did not join: ${this.client.problems.join(', ')}`);
    }
    this.clientId = await joined;
    await soon(rewrapped, 'the keys for the client').finally(unhear);
  }

  /** The owner's offer of a pairing, and the id of the device that joins; that promise may reject. */
  async letIn() {
    const offer = await this.owner.offerPairing(() => true);
    this.secrets.push(['the six words', offer.words]);
    const joined = offer.joined;
    joined.catch(() => undefined);
    return { offer, joined };
  }

  /** A third device of the user joins by these words through the liar; undefined where it is refused. */
  async third(words: string, host = '127.0.0.1'): Promise<Identity | undefined> {
    this.secrets.push(['the six words', words]);
    const serverUrl = this.liar.url.replace('127.0.0.1', host);
    const device = { platform, serverUrl, name: 'Third', glyph: 'phone' as const, onDigits: () => undefined };
    return join({ ...device, words }).catch(() => undefined);
  }

  /** An honest pairing through the liar, without the client: what a liar could replay of it. */
  async oldPairing(): Promise<OldPairing> {
    const { offer, joined } = await this.letIn();
    const old = { known: this.owner.id, request: {} as Json, release: {} as Json };
    this.liar.tell = ({ path, body }) => {
      if (path === '/devices/pair-fetch-npk') old.request = { type: 'pair_request', ...body };
      return undefined;
    };
    this.liar.answer = ({ path }, truth) => {
      if (path === '/devices/pair-fetch-npk' && 'token' in truth) old.release = truth;
      return undefined;
    };
    await this.third(offer.words);
    await this.owner.revoke(await joined);
    this.liar.honest();
    return old;
  }

  /** Ends the client, and revokes all devices but the owner's. */
  async leave(): Promise<void> {
    this.client.end();
    this.liar.honest();
    this.liar.cut();
    const { devices } = await this.get('/devices');
    for (const { id, revokedAt } of devices as { id: string; revokedAt: number | null }[])
      if (id !== this.owner.id && revokedAt === null) await this.owner.revoke(id);
  }

  /** From here on, what the client reports, shows and sends counts as its answer to the lie. */
  async arm(): Promise<void> {
    if (this.client.problems.length > 0)
      throw new Faulty(`with an honest server it reported: ${this.client.problems.join(', ')}`);
    this.before = new Map();
    for (const { id, text, hidden } of this.printed ?? [])
      if (!hidden) this.before.set(id, this.wrote.get(id)?.lastIndexOf(text) ?? -1);
    for (const [id, at] of this.before) if (at < 0) throw new Faulty(`it shows ${id}, which its user did not write`);
    this.printed = undefined;
    this.believed.length = 0;
    this.liar.calls.length = 0;
    return Promise.resolve();
  }

  /** Has the client bring itself up to date and print its items. */
  async sync(): Promise<void> {
    const lines = await this.client.do({ do: 'sync' });
    this.printed = lines.flatMap(({ item }) => {
      const { id, text, hidden } = (item ?? {}) as Json;
      return item === undefined ? [] : [{ id: String(id), text: String(text), hidden: hidden === true }];
    });
  }

  /** The user writes, on the honest device. */
  async put(text: string, id?: string): Promise<{ readonly id: string; readonly version: number }> {
    const stored = await this.owner.put({ binId: 'inbox', type: 'text', payload: { text }, id });
    // A long text is stored as a blob, with its beginning in the item.
    this.note(stored.id, text.length > 65_000 ? text.slice(0, 1_000) : text);
    return stored;
  }

  /** The user deletes, on the honest device. */
  async remove(id: string): Promise<void> {
    await this.owner.delete(id);
    this.gone(id);
  }

  /** The user deleted an item. */
  gone(id: string): void {
    this.wrote.get(id)?.push(null);
  }

  note(id: string, text: string): void {
    this.wrote.set(id, [...(this.wrote.get(id) ?? []), text]);
  }

  /** A true reply of the server, to a request of the owner. */
  async get(path: string): Promise<Json> {
    const authorization = `Bearer ${this.identity.token.text}`;
    const headers = { authorization, 'x-wire-shape': 'a' };
    const response = await fetch(`${this.identity.serverUrl}/api${path}`, { headers });
    return (await response.json()) as Json;
  }

  /** All rows that the server has. */
  async rows(): Promise<readonly Json[]> {
    return (await this.get('/items?since=0&limit=1000'))['items'] as Json[];
  }

  /** The row of an item. */
  async row(id: string): Promise<Json> {
    return (await this.rows()).find((row) => row['id'] === id) ?? {};
  }

  /** Bends the client's view of items, in frames and in listings: both are given to `change` as rows. */
  bend(change: (row: Json) => readonly Json[]): void {
    this.liar.frame = (frame) => (isItem(frame) ? change(rowOf(frame)).map(frameOf) : [frame]);
    this.liar.answer = ({ path }, truth) =>
      path.startsWith('/items?') ? rows(truth, (all) => all.flatMap((row) => change(row))) : undefined;
  }

  /** Bends the counts by which a client checks that it has everything. */
  recount(change: (end: Json) => Json): void {
    const { frame, answer } = this.liar;
    this.liar.frame = (truth) => frame(truth).map((one) => (isEnd(one) ? change(one as Json) : one));
    this.liar.answer = (call, truth) => {
      if (call.path !== '/me') return answer(call, truth);
      const server = truth['server'] as Json;
      const told = change({ ...server, version: server['headVersion'] });
      const { version: headVersion, itemCount, versionSum } = told;
      return { ...truth, headVersion, versionSum, server: { ...server, headVersion, itemCount, versionSum } };
    };
  }

  /** Judges what the client shows and what it sent since the lie began. */
  judge(): readonly string[] {
    const found = [...this.believed];
    for (const { id, text, hidden } of this.printed ?? []) {
      const texts = this.wrote.get(id) ?? [];
      const at = texts.lastIndexOf(text);
      if (at < 0) found.push(`it shows '${text.slice(0, 40)}' as ${id}, which its user did not write`);
      else if (!hidden && texts.at(-1) === null) found.push(`it shows ${id}, which its user deleted`);
      else if (!hidden && at < (this.before.get(id) ?? 0)) found.push(`it shows an older state of ${id} than it had`);
    }
    const here = new Set(this.printed?.map(({ id }) => id));
    const lost = [...this.before.keys()].filter((id) => !here.has(id) && this.wrote.get(id)?.at(-1) !== null);
    if (this.printed !== undefined && lost.length > 0)
      found.push(`it has lost ${lost.length} items that its user did not delete, ${String(lost[0])} among them`);
    for (const [name, secret] of this.secrets) if (this.liar.leaked(secret)) found.push(`it sent ${name}`);
    for (const id of this.strangers()) found.push(`it sealed a key for ${id}, which is no device of its user`);
    return found;
  }

  /** True where the client shows the newest text of an item. */
  shows(id: string): boolean {
    return (
      this.printed?.some((one) => one.id === id && !one.hidden && one.text === this.wrote.get(id)?.at(-1)) ?? false
    );
  }

  /** Counts the devices that are in now as the user's: a client that lets one in adds its keys to items at once. */
  async welcome(): Promise<void> {
    const { devices } = await this.get('/devices');
    for (const { id, revokedAt } of devices as Json[]) if (revokedAt === null) this.guests.add(String(id));
  }

  private strangers(): readonly string[] {
    const own = new Set([this.clientId, this.owner.id, ...this.guests]);
    return this.liar.sealedFor().filter((id) => !own.has(id));
  }

  /** The public key that the client registered. */
  async clientKey(): Promise<Uint8Array> {
    const { devices } = await this.get('/devices');
    const own = (devices as Json[]).find(({ id }) => id === this.clientId);
    return Buffer.from(String(own?.['pubkey']), 'base64url');
  }

  /** Seals something to the client. */
  async sealed(message: Uint8Array): Promise<string> {
    return Buffer.from(nodeSodium.seal(message, await this.clientKey())).toString('base64url');
  }
}

const isEnd = (frame: unknown): boolean => (frame as Json)['type'] === 'caught_up';

/** An `item` frame as a row of a listing. */
const rowOf = ({ itemType, ...frame }: Json): Json => ({ ...frame, type: itemType });
/** A row of a listing as a frame: `item`, or `delete` for a deleted item. */
export const frameOf = (row: Json): Json => {
  const { id, version, sig, type: itemType } = row;
  return row['deletedAt'] === null || row['deletedAt'] === undefined
    ? { ...row, type: 'item', itemType }
    : { type: 'delete', id, version, ...(sig === undefined || sig === null ? {} : { sig }) };
};
