/** One tenant's ids, codes, writes and bytes have no effect on another tenant. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { mustWrite, newCode, newItem, npkBody, write, wrapBody } from './support/devices.js';
import { hosted, neighbour, type Neighbour } from './support/hosted.js';
import type { WithTeardown } from './support/postgres.js';
import { barrier, listAll, range, versionsOf } from './support/stream.js';

async function two(t: WithTeardown, env: Readonly<Record<string, string>> = {}) {
  const { port } = await hosted(t, { env });
  return [await neighbour(t, port, 'anna'), await neighbour(t, port, 'berta')] as const;
}

t.test('HOST-12: ids and codes of another tenant are unknown here, and change nothing there', async (t) => {
  const [anna, berta] = await two(t);
  const hers = { token: anna.device.token, shape: 'a' } as const;
  const mine = { token: berta.device.token, shape: 'a' } as const;
  t.equal((await anna.wire.post('/bins', { id: 'annas' }, hers)).status, 200);
  const item = newItem([anna.device.id]);
  await mustWrite(anna.wire, anna.device, item);
  const code = newCode();
  t.equal((await anna.wire.post('/devices/pair-init', { code, epk: randomBytes(32) }, hers)).status, 200);
  const before = [await listAll(anna.wire, hers.token), (await anna.wire.get('/bins', hers)).body];
  const calls: readonly (readonly [method: string, path: string, body: unknown, outcome: string])[] = [
    ['DELETE', `/items/${item.id}`, {}, '404 item_not_found'],
    ['POST', `/items/${item.id}/reconcile`, { binId: 'inbox', version: 1, sig: randomBytes(32) }, '404 item_not_found'],
    ['GET', '/items?since=0&bin_id=annas', undefined, '404 bin_not_found'],
    ['PATCH', '/bins/annas', { slug: 'bertas' }, '404 bin_not_found'],
    ['DELETE', '/bins/annas', { force: true }, '404 bin_not_found'],
    ['PATCH', `/devices/${anna.device.id}`, { name: 'x' }, '404 device_not_found'],
    ['POST', `/devices/${anna.device.id}/revoke`, {}, '404 device_not_found'],
    ['POST', '/devices/pair-fetch-epk', { code }, '400 pair_invalid'],
    ['POST', '/devices/pair-fetch-npk', npkBody(code), '400 pair_invalid'],
    ['POST', '/devices/pair-wrap', wrapBody(code), '400 pair_invalid'],
    ['POST', '/devices/reauth/challenge', { deviceId: anna.device.id }, '404 device_not_found'],
  ];
  for (const [method, path, body, outcome] of calls)
    t.equal((await berta.wire.ask(method, path, { ...mine, body })).outcome, outcome, `${method} ${path}`);
  t.equal((await write(berta.wire, berta.device, newItem([berta.device.id], { binId: 'annas' }))).status, 404);
  t.equal(
    (await write(berta.wire, berta.device, newItem([berta.device.id, anna.device.id]))).outcome,
    '400 validation',
  );
  t.same([await listAll(anna.wire, hers.token), (await anna.wire.get('/bins', hers)).body], before);
  t.equal((await anna.wire.post('/devices/pair-fetch-epk', { code })).status, 200, 'the code works at its own tenant');
});

t.test('HOST-12 HOST-13: a socket gets changes of its tenant only; versions and bytes are separate', async (t) => {
  const [anna, berta] = await two(t, { STORAGE_CAP_BYTES: '20000' });
  const sockets = await Promise.all(
    [anna, berta].map(async ({ wire, device }) => wire.connect({ token: device.token })),
  );
  for (const socket of sockets) await socket.hello(0, { acks: true });
  const fill = async ({ wire, device }: Neighbour): Promise<number> => {
    for (const count of range(0, 9)) {
      const reply = await write(wire, device, newItem([device.id], { ct: Buffer.alloc(4_000) }));
      if (reply.status === 200) t.equal(reply.at('version'), count + 1);
      else {
        t.equal(reply.outcome, '413 storage_cap_exceeded');
        return count;
      }
    }
    throw new Error('no cap');
  };
  t.equal(await fill(anna), 4);
  const used = async ({ wire, device }: Neighbour): Promise<unknown> =>
    (await wire.get('/me', { token: device.token, shape: 'a' })).at('server.storageUsedBytes');
  t.equal(await used(berta), 0, 'the other tenant has used nothing');
  const page = await berta.wire.get('/items?since=1', { token: berta.device.token, shape: 'a' });
  t.equal(page.at('reset'), true, 'a cursor above its own head, though not above the head of the other tenant');
  t.equal(await fill(berta), 4, 'the other tenant may still write as much');
  t.equal(await used(berta), await used(anna));
  for (const socket of sockets) {
    await barrier(socket);
    t.same(versionsOf(socket.frames), [1, 2, 3, 4]);
    t.same(socket.of('item'), [], 'the device wrote all of them, so it gets acknowledgements');
  }
});
