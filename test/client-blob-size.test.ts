/** A device uploads and downloads a large file while its memory is measured. */
import t from 'tap';
import type { BlobSource } from '../src/sdk/blobs/source.js';
import { Device } from '../src/sdk/device.js';
import { prepareClaim } from '../src/sdk/enrol.js';
import { nodePlatform } from '../src/sdk/node-platform.js';
import { hashOf } from './support/large-files.js';
import { peakOf } from './support/memory.js';
import { spawnServer } from './support/server.js';

const MIB = 1024 * 1024;
const SIZE = 192 * MIB;
/** Memory that the garbage collector may not have freed yet; far below the size of the file. */
const EXTRA_MAX = 96 * MIB;

/** Numbered pieces, so that a lost or repeated piece changes the hash. */
const numbered = (size: number): BlobSource => ({
  size,
  async *open() {
    const piece = new Uint8Array(MIB / 4).fill(7);
    for (let at = 0; at < size; at += piece.length) {
      await Promise.resolve();
      new DataView(piece.buffer).setUint32(0, at / piece.length);
      yield piece;
    }
  },
});

void t.test(
  "CBLOB-23: a device's memory does not grow with the size of a file that it uploads and downloads",
  { skip: process.platform !== 'linux' },
  async (t) => {
    const server = await spawnServer(t, { env: { LOG_LEVEL: 'info' } });
    const platform = await nodePlatform();
    const serverUrl = `http://127.0.0.1:${server.port}`;
    const claim = await prepareClaim({ platform, serverUrl, name: 'First', glyph: 'laptop' });
    const identity = await claim.register();
    const device = await Device.open({ platform, identity, onProblem: (error) => t.fail(error.message) });
    t.teardown(() => device.close());
    const put = async (size: number): Promise<string> => {
      const payload = { name: 'large', size, mime: 'application/octet-stream' };
      return (await device.put({ binId: 'inbox', type: 'file', payload, content: numbered(size) })).id;
    };
    await hashOf(device.blob(await put(16 * MIB)));
    const before = await peakOf(process.pid);
    const id = await put(SIZE);
    t.equal(await hashOf(device.blob(id)), await hashOf(numbered(SIZE).open() as AsyncIterable<Uint8Array>));
    const extra = (await peakOf(process.pid)) - before;
    t.ok(extra < EXTRA_MAX, `${Math.round(extra / MIB)} MiB of extra memory for ${SIZE / MIB} MiB`);
  },
);
