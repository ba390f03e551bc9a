/** The list of a bucket's objects in a backup: its parts, damage to it, its size, and how checksums compare. */
import { createHash } from 'node:crypto';
import { createReadStream, createWriteStream } from 'node:fs';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { createGunzip, createGzip } from 'node:zlib';
import { extract, pack } from 'tar-stream';
import t, { type Test } from 'tap';
import { ulid } from 'ulid';
import { readObjectList, verifyArchive, writeArchive } from '../src/server/admin/backup/archive.js';
import { compareObjects, ObjectLedger, sameChecksum } from '../src/server/admin/backup/compare.js';
import type { ListedObject, Manifest } from '../src/server/admin/backup/manifest.js';
import { temporaryFolder, testDatabase } from './support/postgres.js';

const nothing = (): void => undefined;
const TENANT = ulid();
const PAGE = 1000;

const objectOf = (n: number): ListedObject => ({
  tenantId: TENANT,
  ref: `${'0'.repeat(20)}${String(n).padStart(6, '0')}.bin`,
  size: n,
  checksum: { etag: createHash('md5').update(String(n)).digest('hex') },
});

async function* pagesOf(
  count: number,
  change = (object: ListedObject): ListedObject => object,
): AsyncGenerator<ListedObject[]> {
  for (let at = 0; at < count; at += PAGE) {
    await Promise.resolve();
    yield Array.from({ length: Math.min(PAGE, count - at) }, (_, n) => change(objectOf(at + n)));
  }
}

async function written(t: Test, pages: AsyncIterable<ListedObject[]>): Promise<{ file: string; manifest: Manifest }> {
  const file = join(await temporaryFolder(t), 'list.tar.gz');
  const none = { tables: [], bytes: 0, createdAt: 1, version: 'test', schema: 1, postgres: '17' };
  const read = (): never => {
    throw new Error('no tables');
  };
  const objects = { store: 's3', bucket: 'of-the-tests', prefix: null, pages } as const;
  const { manifest } = await writeArchive(file, { ...none, read, objects }, nothing);
  return { file, manifest };
}

type Entries = Map<string, Buffer>;

/** Writes the archive again, with changed entries. */
async function changed(t: Test, file: string, change: (entries: Entries) => void): Promise<string> {
  const entries: Entries = new Map();
  const from = extract();
  const reading = pipeline(createReadStream(file), createGunzip(), from);
  for await (const entry of from) entries.set(entry.header.name, await buffer(entry));
  await reading;
  change(entries);
  const other = join(await temporaryFolder(t), 'changed.tar.gz');
  const to = pack();
  for (const [name, bytes] of entries) to.entry({ name }, bytes);
  to.finalize();
  await pipeline(to, createGzip(), createWriteStream(other));
  return other;
}

/** Replaces the part by these lines, and puts their SHA-256 into the manifest. */
const withLines =
  (lines: string) =>
  (entries: Entries): void => {
    entries.set('objects/000000', Buffer.from(lines));
    const manifest = JSON.parse(entries.get('manifest.json')?.toString() ?? '') as Manifest;
    const sha256 = createHash('sha256').update(lines).digest('hex');
    const parts = [{ name: 'objects/000000', bytes: lines.length, sha256 }];
    entries.set(
      'manifest.json',
      Buffer.from(JSON.stringify({ ...manifest, objects: { ...manifest.objects, count: 3, parts } })),
    );
  };

t.test('BACKUP-13: a list that is not what its manifest says is refused', async (t) => {
  const { file } = await written(t, pagesOf(3));
  await verifyArchive(file, nothing);
  const part = (entries: Entries): Buffer => entries.get('objects/000000') ?? Buffer.alloc(0);
  const line = JSON.stringify({ tenant: TENANT, ref: objectOf(1).ref, size: 1 });
  const odd = (change: object): string => `${JSON.stringify({ ...(JSON.parse(line) as object), ...change })}\n`;
  const damage: Readonly<Record<string, (entries: Entries) => void>> = {
    // Another digit of a checksum: still a valid list, so that only the SHA-256 of the part reveals it.
    altered: (entries) => {
      const bytes = part(entries);
      const at = bytes.lastIndexOf('"}}') - 1;
      bytes[at] = bytes[at] === 0x61 ? 0x62 : 0x61;
    },
    cut: (entries) => entries.set('objects/000000', part(entries).subarray(0, 50)),
    lost: (entries) => entries.delete('objects/000000'),
    'one too many': (entries) => {
      const manifest = entries.get('manifest.json') ?? Buffer.alloc(0);
      entries.delete('manifest.json');
      entries.set('objects/000001', part(entries)).set('manifest.json', manifest);
    },
    shorter: withLines(`${line}\n`),
    longer: withLines(`${line}\n`.repeat(4)),
    'half a line': withLines(`${line}\n${line}\n${line.slice(0, 30)}`),
    'without its end': withLines(`${line}\n${line}\n${line}`),
    text: withLines('one\ntwo\nthree\n'),
    null: withLines('null\nnull\nnull\n'),
    'a path': withLines(odd({ ref: '../../etc/passwd' }).repeat(3)),
    'no tenant': withLines(odd({ tenant: 'me' }).repeat(3)),
    'a size below 0': withLines(odd({ size: -1 }).repeat(3)),
    'a long checksum': withLines(odd({ checksum: { etag: 'x'.repeat(1000) } }).repeat(3)),
    'a checksum in a list': withLines(odd({ checksum: ['x'] }).repeat(3)),
    'many checksums': withLines(
      odd({ checksum: Object.fromEntries(Array.from({ length: 9 }, (_, n) => [n, 'x'])) }).repeat(3),
    ),
    'no store': (entries) => {
      const text = entries.get('manifest.json')?.toString() ?? '';
      entries.set('manifest.json', Buffer.from(text.replace('"s3"', '"ftp"')));
    },
  };
  for (const [name, change] of Object.entries(damage)) {
    await t.rejects(verifyArchive(await changed(t, file, change), nothing), { name: 'ArchiveError' }, name);
  }
  await verifyArchive(await changed(t, file, nothing), nothing);
  await verifyArchive(await changed(t, file, withLines(`${line}\n`.repeat(3))), nothing);
  const other = await changed(t, file, withLines(`${line}\n`));
  const manifest = await verifyArchive(file, nothing);
  await t.rejects(
    async () => {
      for await (const objects of readObjectList(other, manifest)) t.equal(objects.length, 3);
    },
    { name: 'ArchiveError', message: /changed/ },
    'a list that changed after it was verified is refused',
  );
});

t.test('BACKUP-14: a list of 100,000 objects is written and compared piece by piece', async (t) => {
  const count = 100_000;
  const { file, manifest } = await written(t, pagesOf(count));
  const parts = manifest.objects?.parts ?? [];
  t.equal(manifest.objects?.count, count);
  t.ok(parts.length >= 3, 'the list has several parts');
  t.ok(
    parts.every(({ bytes }) => bytes < 5 * 1024 * 1024),
    'each part is less than 5 MiB',
  );
  const read = await verifyArchive(file, nothing);
  let next = 0;
  for await (const objects of readObjectList(file, read)) {
    const wanted = objects.map((_, n) => objectOf(next + n));
    next += objects.length;
    if (JSON.stringify(objects) !== JSON.stringify(wanted)) t.fail(`another list before object ${next}`);
  }
  t.equal(next, count);
  const { url } = await testDatabase(t);
  const ledger = await ObjectLedger.open(url);
  t.teardown(() => ledger.close());
  // The bucket has 5,000 objects more, and object 10 has other bytes.
  const bucket = pagesOf(count + 5000, (object) =>
    object.size === 10 ? { ...object, checksum: { etag: 'other' } } : object,
  );
  let seen = 0;
  const found = await compareObjects(readObjectList(file, read), bucket, ledger, (objects) => (seen = objects));
  t.match(found, { listed: count, same: count - 1, otherChecksum: 1, missing: 0, added: 5000, sizeOnly: 0 });
  t.match(found.examples, [{ ref: objectOf(10).ref, difference: 'checksum', found: '10 bytes, etag other' }]);
  t.equal(seen, count + 5000);
});

t.test('BACKUP-11: checksums of one kind are compared, different kinds are reported as not comparable', async (t) => {
  const one = 'd41d8cd98f00b204e9800998ecf8427e';
  const other = '9e107d9d372bb6826bd81d3542a419d6';
  t.equal(sameChecksum({ etag: one }, { etag: one }), true);
  t.equal(sameChecksum({ etag: one }, { etag: other }), false);
  t.equal(sameChecksum({ etag: one }, { etag: `${other}-2` }), undefined, 'the object was copied in parts');
  t.equal(sameChecksum({ etag: `${one}-3` }, { etag: `${other}-2` }), undefined);
  t.equal(sameChecksum({ etag: `${one}-2` }, { etag: `${other}-2` }), false);
  t.equal(sameChecksum({ crc32c: 'AAAAAA==', md5: 'x' }, { crc32c: 'AAAAAA==' }), true, 'one common checksum suffices');
  t.equal(sameChecksum({ crc32c: 'AAAAAA==', md5: 'x' }, { crc32c: 'AAAAAA==', md5: 'y' }), false);
  t.equal(sameChecksum({ etag: one }, { md5: one }), undefined, 'another store has another kind of checksum');
  t.equal(sameChecksum({ etag: one }, undefined), undefined);
  t.equal(sameChecksum({ toString: 'x' }, {}), undefined);
});
