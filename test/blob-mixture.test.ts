/**
 * Any mixture of what devices, the nightly job and a store that fails do with blobs, at two instances at once: no item
 * is without its bytes, what counts is what is there, and in the end nothing is left over.
 */
import { randomBytes, randomInt } from 'node:crypto';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import { never, stageOf, type Stage } from './support/blob-stage.js';
import { askUpload, blobItem, downloadUrl, send } from './support/blobs.js';
import { inLongRun } from './support/long.js';
import { oneOf } from './support/one-of.js';
import { runServer } from './support/server.js';
import { askBegin, askStanding, PART, put, standingIn, type Part } from './support/uploads.js';
import type { Json, Wire } from './support/wire.js';

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;
const ROUNDS = inLongRun(10, 100);
const AT_ONCE = 12;
const CAP = 40 * 1024 * 1024;

/** A blob of the mixture. */
interface Content {
  readonly ref: string;
  readonly bytes: Buffer;
  readonly parts: readonly Part[];
}

/** What may be answered, beside 200: a refusal is right where another call was first. */
const ALLOWED = [
  '413 storage_cap_exceeded',
  '400 blob_not_found',
  '404 blob_not_found',
  '404 item_not_found',
  '404 bin_not_found',
  '409 conflict',
  '409 upload_offset',
  '403 url_invalid',
  '429 rate_limited',
  '503 storage_unavailable',
];

class Mixture {
  readonly contents: Content[] = [];
  /** Bodies of accepted writes. */
  private readonly items: Json[] = [];

  constructor(
    private readonly stage: Stage,
    private readonly wires: readonly [Wire, Wire],
  ) {}

  private get wire(): Wire {
    return oneOf(this.wires) ?? this.wires[0];
  }

  private get token(): { readonly token: string } {
    const { first, second } = this.stage.scene;
    return oneOf([first, second]) ?? first;
  }

  /** The same URL at one of the instances. */
  private at(url: string): string {
    const from = new URL(url);
    from.port = String(this.wire.port);
    return from.href;
  }

  private readonly calls: readonly (() => Promise<string>)[] = [
    // One PUT, which may be left out.
    async () => {
      const bytes = randomBytes(randomInt(1, 9_000));
      const asked = await askUpload(this.wire, this.token, { size: bytes.length });
      if (asked.status !== 200 || randomInt(4) === 0) return asked.outcome;
      const url = this.at(asked.text('url'));
      const sent = await send('PUT', url, { headers: { 'content-type': 'application/octet-stream' }, body: bytes });
      this.contents.push({ ref: asked.text('blobRef'), bytes, parts: [] });
      return sent.outcome;
    },
    // An upload in parts begins.
    async () => {
      const bytes = randomBytes(PART + randomInt(1, 9_000));
      const reply = await askBegin(this.wire, this.token, bytes.length);
      if (reply.status !== 200) return reply.outcome;
      const { blobRef, parts } = standingIn(reply);
      this.contents.push({ ref: blobRef, bytes, parts });
      return '200';
    },
    // A part is sent, at its offset or not.
    async () => {
      const open = oneOf(this.contents.filter(({ parts }) => parts.length > 0));
      const part = oneOf(open?.parts ?? []);
      if (open === undefined || part === undefined) return '200';
      // A second PUT of a part cuts off the first.
      const sent = await put({ ...part, url: this.at(part.url) }, open.bytes).catch(() => undefined);
      return sent?.outcome ?? '200';
    },
    async () => {
      const { ref } = oneOf(this.contents) ?? { ref: 'none' };
      const reply = await askStanding(this.wire, this.token, ref);
      return reply.outcome;
    },
    async () => {
      const open = oneOf(this.contents.filter(({ parts }) => parts.length > 0));
      if (open === undefined || randomInt(3) > 0) return '200';
      return (await this.wire.delete(`/uploads/${open.ref}`, this.token)).outcome;
    },
    // An item names a blob: a new one, or one that has another.
    () => this.name(),
    () => this.name(),
    async () => {
      const item = oneOf(this.items);
      if (item === undefined) return '200';
      return (await this.wire.delete(`/items/${String(item['id'])}`, this.token)).outcome;
    },
    async () => {
      if (randomInt(4) > 0) return '200';
      const created = await this.wire.post('/bins', { id: 'other' }, this.token);
      if (created.status === 200) return '200';
      return (await this.wire.delete('/bins/other', { ...this.token, body: { force: true } })).outcome;
    },
    async () => {
      await this.stage.reaper.removeUnused(never).catch(() => undefined);
      return '200';
    },
    async () => {
      if (randomInt(4) === 0) this.stage.clock.advance((oneOf([MINUTE_MS, HOUR_MS, 25 * HOUR_MS]) ?? 0) + 1);
      await this.stage.reaper.releaseExpired(never).catch(() => undefined);
      return '200';
    },
    () => {
      this.stage.store.broken = !this.stage.store.broken;
      return Promise.resolve('200');
    },
  ];

  private async name(): Promise<string> {
    const { ids } = this.stage.scene;
    const content = oneOf(this.contents);
    if (content === undefined) return '200';
    const old = randomInt(2) === 0 ? oneOf(this.items) : undefined;
    const binId = randomInt(4) === 0 ? 'other' : 'inbox';
    const fresh = { ...blobItem('a', ids, content.ref), binId };
    const body = old === undefined ? fresh : { ...fresh, id: old['id'], ts: Number(old['ts']) + randomInt(3) };
    const reply = await this.wire.post('/items', body, this.token);
    if (reply.status === 200) this.items.push(body);
    return reply.outcome;
  }

  /** Calls at once; returns the answers that are wrong. */
  async round(): Promise<readonly string[]> {
    const outcomes = await Promise.all(Array.from({ length: AT_ONCE }, async () => oneOf(this.calls)?.()));
    return outcomes.filter((outcome) => outcome !== '200' && !ALLOWED.includes(String(outcome))).map(String);
  }

  /** Names and sizes of the blobs of the items that are there, each read at an instance. */
  async named(): Promise<ReadonlyMap<string, number>> {
    const named = new Map<string, number>();
    for (const { blobRef, deletedAt } of await this.stage.scene.rows()) {
      if (typeof blobRef !== 'string' || deletedAt !== null) continue;
      const { bytes } = await send('GET', await downloadUrl(this.wire, this.token, blobRef));
      const content = this.contents.find(({ ref }) => ref === blobRef);
      if (content?.bytes.equals(bytes) !== true) throw new Error(`${blobRef} has other bytes`);
      named.set(blobRef, bytes.length);
    }
    return named;
  }
}

t.test('BLOB-21 BLOB-22 BLOB-25 BLOB-27 BLOB-57: any mixture of calls, at two instances', async (t) => {
  const stage = await stageOf(t, { STORAGE_CAP_BYTES: String(CAP) });
  const { scene, clock, store, reaper } = stage;
  const env = { ...stage.env, TOKEN_TTL_DAYS: '300', STORAGE_CAP_BYTES: String(CAP) };
  const other = await runServer(t, { clock, database: { url: scene.server.databaseUrl }, env });
  const before = await stage.used();
  const mixture = new Mixture(stage, [scene.wire, other.wire]);
  for (let round = 0; round < ROUNDS; round++) {
    t.strictSame(await mixture.round(), []);
    await stage.sound();
    await mixture.named();
    t.ok((await stage.used()) <= CAP, 'storage never exceeds the cap');
  }
  store.broken = false;
  const named = await mixture.named();
  // What nothing names is removed, whatever state it is in.
  for (let days = 0; days < 3; days++) {
    clock.advance(25 * HOUR_MS);
    await reaper.releaseExpired(never);
    await reaper.removeUnused(never);
  }
  t.strictSame(await stage.files(), [...named.keys()].sort(), 'the folder has exactly the blobs of the items');
  t.strictSame(await readdir(join(stage.folder, '..', 'uploads')), []);
  t.strictSame(await mixture.named(), named);
  t.match(await reaper.compare(false, never), { strays: 0, missing: 0, unremoved: { count: 0 } });
  const items = [...named.values()].reduce((sum, size) => sum + size, 0);
  t.ok((await stage.used()) >= before + items);
  await stage.sound();
});
