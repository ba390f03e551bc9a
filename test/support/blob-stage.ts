/** A server with blobs in a folder, and a reaper that a test runs by itself, on a store that can fail. */
import { randomBytes } from 'node:crypto';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { Test } from 'tap';
import type { StoredObject } from '../../src/server/blobs/ports.js';
import { Reaper } from '../../src/server/blobs/reaper.js';
import { LocalStore } from '../../src/server/blobs/objects/local.js';
import { storageUnavailable } from '../../src/protocol/errors.js';
import type { BlobName } from '../../src/protocol/ids.js';
import { blobItem, uploaded } from './blobs.js';
import { ShiftedClock } from './clock.js';
import { poolOf, temporaryFolder, type WithTeardown } from './postgres.js';
import { Scene } from './scene.js';

/** A signal that is never given. */
export const never = new AbortController().signal;

/** A store that fails where it is told so. */
class BrokenStore extends LocalStore {
  /** Removals fail. */
  broken = false;
  /** Nothing is to be had. */
  away = false;
  /** Names of which it says nothing and which it does not remove. */
  readonly locked = new Set<string>();
  /** Calls so far. */
  calls = 0;

  override async remove(name: BlobName): Promise<void> {
    this.expect(name, this.broken);
    return super.remove(name);
  }

  override async head(name: BlobName): Promise<StoredObject | undefined> {
    this.expect(name, false);
    return super.head(name);
  }

  private expect({ ref }: BlobName, broken: boolean): void {
    this.calls++;
    if (broken || this.away || this.locked.has(ref)) throw storageUnavailable(new Error('told to fail'));
  }
}

/** A scene with a local store, and a reaper of the test's own at work on it. */
export interface Stage {
  readonly scene: Scene;
  readonly clock: ShiftedClock;
  readonly reaper: Reaper;
  readonly store: BrokenStore;
  /** Of `service-admin` beside this server. */
  readonly env: Readonly<Record<string, string>>;
  /** What one run did. */
  released(): Promise<number>;
  removed(): Promise<number>;
  /** Of the tenant. */
  readonly folder: string;
  files(): Promise<string[]>;
  used(): Promise<number>;
  /** Fails where a figure does not fit its rows. */
  sound(): Promise<void>;
  /** Writes an item with a blob of so many bytes; answers its body. */
  item(size: number): Promise<{ readonly body: Record<string, unknown>; readonly ref: string }>;
}

/** Sets it up. */
export async function stageOf(
  t: WithTeardown & Pick<Test, 'strictSame'>,
  env: Readonly<Record<string, string>> = {},
): Promise<Stage> {
  const dataDir = await temporaryFolder(t);
  const clock = new ShiftedClock();
  const scene = await Scene.start(t, { clock, env: { DATA_DIR: dataDir, TOKEN_TTL_DAYS: '300', ...env } });
  const store = new BrokenStore(join(dataDir, 'blobs'), 'unused');
  const pool = poolOf(t, scene.server.databaseUrl);
  const folder = join(dataDir, 'blobs', scene.server.tenantId);
  const reaper = new Reaper(store, pool, scene.server.databaseUrl, clock);
  return {
    scene,
    clock,
    store,
    reaper,
    env: { DATA_DIR: dataDir, DATABASE_URL: scene.server.databaseUrl },
    released: async () => (await reaper.releaseExpired(never)).done,
    removed: async () => (await reaper.removeUnused(never)).done,
    folder,
    files: async () => (await readdir(folder).catch(() => [])).sort(),
    used: async () => (await scene.me()).number('server.storageUsedBytes'),
    sound: async () => void t.strictSame(await scene.server.sql('SELECT * FROM discrepancies()'), []),
    item: async (size) => {
      const ref = await uploaded(scene.wire, scene.first, randomBytes(size));
      const body = blobItem('a', scene.ids, ref);
      const reply = await scene.wire.post('/items', body, scene.as('a'));
      if (reply.status !== 200) throw new Error(reply.raw);
      return { body, ref };
    },
  };
}
