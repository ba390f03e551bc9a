/** Blobs of several tenants, and of one tenant on several instances. */
import { randomBytes } from 'node:crypto';
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import t from 'tap';
import { blobItem, downloadUrl, openRequest, send, uploaded, uploadOf, type BytesReply } from './support/blobs.js';
import { until } from './support/events.js';
import { BASE, hosted, neighbour, type Neighbour } from './support/hosted.js';
import { temporaryFolder, testDatabase } from './support/postgres.js';
import { Scene } from './support/scene.js';
import { runServer } from './support/server.js';
import { askStanding, begun, PART, put, sendRest, standing } from './support/uploads.js';

t.test('BLOB-07 BLOB-26: a tenant reaches no blob of another tenant', async (t) => {
  const server = await hosted(t);
  const tenant = async (slug: string): Promise<Neighbour & { readonly id: string }> => {
    const made = await neighbour(t, server.port, slug);
    return { ...made, id: (await made.wire.get('/service/status')).text('tenantId') };
  };
  const [anna, berta] = [await tenant('anna'), await tenant('berta')];
  /** Sends a signed URL's request to this machine, under the given host name. */
  const at = (method: string, url: string, host: string, body?: Buffer): Promise<BytesReply> => {
    const { pathname, search } = new URL(url);
    const headers = { host, ...(body ? { 'content-type': 'application/octet-stream' } : {}) };
    return send(method, `http://127.0.0.1:${server.port}${pathname}${search}`, { headers, ...(body ? { body } : {}) });
  };
  const bytes = randomBytes(100);
  const given = await uploadOf(anna.wire, anna.device, { size: 100 });
  t.equal(new URL(given.url).origin, `http://${anna.host}`, "a URL leads to the tenant's own host");
  t.equal((await at('PUT', given.url, berta.host, bytes)).outcome, '403 url_invalid', 'an upload at another host');
  t.equal((await at('PUT', given.url, `nobody.${BASE}`, bytes)).outcome, '404 tenant_not_found');
  t.equal((await at('PUT', given.url, anna.host, bytes)).outcome, '200');
  const ref = given.blobRef;
  const url = await downloadUrl(anna.wire, anna.device, ref);
  t.equal((await at('GET', url, berta.host)).outcome, '403 url_invalid', 'a download at another host');
  t.equal(
    (await at('GET', url.replace(anna.id, berta.id), berta.host)).outcome,
    '403 url_invalid',
    "so is one in another tenant's path",
  );
  const asked = await berta.wire.get(`/blobs/${ref}/url`, { token: berta.device.token });
  t.equal(asked.outcome, '404 blob_not_found', 'a guessed name is unknown');
  const stranger = await anna.wire.get(`/blobs/${ref}/url`, { token: berta.device.token });
  t.equal(stranger.status, 401, "another tenant's token is refused");
  const named_ = await berta.wire.post('/items', blobItem('a', [berta.device.id], ref), { token: berta.device.token });
  t.equal(named_.outcome, '400 blob_not_found', "another tenant's item cannot name the blob");
  t.ok((await at('GET', url, anna.host)).bytes.equals(bytes));
  await t.test('BLOB-63: a tenant reaches no upload of another tenant', async (t) => {
    const open = await begun(anna.wire, anna.device, PART + 10);
    const [part] = open.parts;
    if (part === undefined) throw new Error('no part');
    const body = randomBytes(part.size);
    t.equal((await at('PUT', part.url, berta.host, body)).outcome, '403 url_invalid');
    t.equal((await at('PUT', part.url.replace(anna.id, berta.id), berta.host, body)).outcome, '403 url_invalid');
    t.equal((await askStanding(berta.wire, berta.device, open.blobRef)).outcome, '404 blob_not_found');
    await berta.wire.delete(`/uploads/${open.blobRef}`, { token: berta.device.token });
    t.equal((await at('PUT', part.url, anna.host, body)).outcome, '200', 'the upload is still open');
    t.equal((await standing(anna.wire, anna.device, open.blobRef)).offset, PART);
  });
  await server.sql(`UPDATE tenants SET state = 'suspended', generation = generation + 1 WHERE id = $1`, [anna.id]);
  const later = await uploadOf(berta.wire, berta.device, { size: 1 });
  t.equal((await at('PUT', later.url, berta.host, Buffer.alloc(1))).outcome, '200', 'the other tenant is not affected');
});

t.test('BLOB-27: a blob uploaded at one instance may be named and downloaded at another', async (t) => {
  const database = await testDatabase(t);
  const dataDir = await temporaryFolder(t);
  const scene = await Scene.start(t, { database, env: { DATA_DIR: dataDir } });
  const other = await runServer(t, { database, env: { DATA_DIR: dataDir } });
  const bytes = randomBytes(200_000);
  const given = await uploadOf(scene.wire, scene.first, { size: bytes.length });
  const elsewhere = given.url.replace(`:${scene.server.port}`, `:${other.port}`);
  t.equal((await send('PUT', elsewhere, { headers: given.headers, body: bytes })).outcome, '200');
  t.equal(
    (await send('PUT', given.url, { headers: given.headers, body: bytes })).outcome,
    '403 url_invalid',
    'the URL is used up',
  );
  const body = blobItem('a', scene.ids, given.blobRef);
  t.equal((await scene.wire.post('/items', body, scene.as('a'))).status, 200);
  for (const wire of [scene.wire, other.wire]) {
    t.ok((await send('GET', await downloadUrl(wire, scene.second, given.blobRef))).bytes.equals(bytes));
  }
  const racing = await uploadOf(scene.wire, scene.first, { size: bytes.length });
  const outcomes = await Promise.all(
    [scene.server.port, other.port].map(async (port) => {
      const url = racing.url.replace(`:${scene.server.port}`, `:${port}`);
      return (await send('PUT', url, { headers: racing.headers, body: bytes })).outcome;
    }),
  );
  t.strictSame(outcomes.sort(), ['200', '403 url_invalid'], 'of two uploads with one URL one wins');
  const ref = await uploaded(other.wire, scene.first, bytes);
  t.equal((await scene.wire.post('/items', blobItem('b', scene.ids, ref), scene.as('b'))).status, 200);
});

t.test('BLOB-56: of two PUTs of a part at two instances one counts, and either may end the upload', async (t) => {
  const database = await testDatabase(t);
  const dataDir = await temporaryFolder(t);
  const scene = await Scene.start(t, { database, env: { DATA_DIR: dataDir } });
  const other = await runServer(t, { database, env: { DATA_DIR: dataDir } });
  const whole = randomBytes(2 * PART);
  const open = await begun(scene.wire, scene.first, whole.length);
  const [one, two] = open.parts;
  if (one === undefined || two === undefined) throw new Error('no parts');
  for (const part of [one, two]) {
    const elsewhere = { ...part, url: part.url.replace(`:${scene.server.port}`, `:${other.port}`) };
    const outcomes = (await Promise.all([put(part, whole), put(elsewhere, whole)])).map(({ outcome }) => outcome);
    t.equal(outcomes.filter((outcome) => outcome === '200').length, 1, outcomes.join());
  }
  const wires = [scene.wire, other.wire];
  const ends = await Promise.all(wires.map((wire) => standing(wire, scene.first, open.blobRef)));
  t.strictSame(
    ends.map(({ offset }) => offset),
    [whole.length, whole.length],
  );
  const moved = await begun(scene.wire, scene.first, whole.length);
  await put({ ...(moved.parts[0] ?? one) }, whole);
  await sendRest(other.wire, scene.first, await standing(other.wire, scene.first, moved.blobRef), whole);
  for (const { blobRef } of [open, moved]) {
    t.ok((await send('GET', await downloadUrl(other.wire, scene.first, blobRef))).bytes.equals(whole));
  }
});

t.test('BLOB-56: a late part at another instance changes nothing of a complete blob', async (t) => {
  const database = await testDatabase(t);
  const dataDir = await temporaryFolder(t);
  const scene = await Scene.start(t, { database, env: { DATA_DIR: dataDir } });
  const other = await runServer(t, { database, env: { DATA_DIR: dataDir } });
  const whole = randomBytes(2 * PART);
  const { blobRef, parts } = await begun(scene.wire, scene.first, whole.length);
  const [one] = parts;
  if (one === undefined) throw new Error('no parts');
  const late = openRequest('PUT', one.url.replace(`:${scene.server.port}`, `:${other.port}`), one.headers);
  const uploads = join(dataDir, 'blobs', 'uploads');
  const files = (): Promise<string[]> => readdir(uploads).catch(() => []);
  late.sent.write(Buffer.alloc(PART / 4, 1));
  await until('all of that is written', async () => {
    const [name] = await files();
    return name !== undefined && (await stat(join(uploads, name))).size === PART / 4;
  });
  t.equal((await put(one, whole)).outcome, '200');
  await sendRest(scene.wire, scene.first, await standing(scene.wire, scene.first, blobRef), whole);
  const body = blobItem('a', scene.ids, blobRef);
  t.equal((await scene.wire.post('/items', body, scene.as('a'))).status, 200);
  late.sent.end(Buffer.alloc(one.size - PART / 4, 1));
  t.equal((await late.reply).outcome, '403 url_invalid');
  t.ok((await send('GET', await downloadUrl(scene.wire, scene.second, blobRef))).bytes.equals(whole));
  t.same(await files(), [], 'nothing is left of the late part');
});

t.test("BLOB-03: in multi mode a URL has the tenant's host, with the scheme and port that clients use", async (t) => {
  const host = `anna.${BASE}`;
  const originWith = async (
    env: Readonly<Record<string, string>>,
    sent: Readonly<Record<string, string>>,
  ): Promise<string> => {
    const { port } = await hosted(t, { env });
    const { wire, device } = await neighbour(t, port, 'anna');
    const body = { contentLength: 1, contentType: 'a/b' };
    const given = await wire.post('/blobs/upload-url', body, { token: device.token, headers: sent });
    return new URL(given.text('url')).origin;
  };
  const own = { host: `${host}:8080` };
  t.equal(await originWith({}, own), `http://${host}:8080`, 'by default those of the request');
  t.equal(
    await originWith({}, { host, 'x-forwarded-proto': 'https' }),
    `https://${host}`,
    'the scheme that a trusted proxy forwards',
  );
  t.equal(await originWith({ DOMAIN: BASE }, own), `https://${host}`);
  t.equal(await originWith({ PUBLIC_URL: `https://${BASE}:8443` }, own), `https://${host}:8443`);
});
