/** What an instance began before it was killed with -9 remains in effect on the others. */
import { randomBytes } from 'node:crypto';
import t from 'tap';
import { claim, join, newCode, newItem, npkBody, waitForRequest, wrapBody, write } from './support/devices.js';
import { until } from './support/events.js';
import { BASE, MULTI, mustDeliver, neighbour, wireAt } from './support/hosted.js';
import { testDatabase, type WithTeardown } from './support/postgres.js';
import { spawnServer, type Child } from './support/server.js';
import { range } from './support/stream.js';
import { checkoutDone, payerOf, StripeStandIn, subscriptionIs } from './support/stripe.js';
import type { Wire } from './support/wire.js';

t.setTimeout(600_000);

async function pair(t: WithTeardown, env: Readonly<Record<string, string>> = {}): Promise<readonly [Child, Child]> {
  const database = await testDatabase(t);
  return Promise.all([spawnServer(t, { database, env }), spawnServer(t, { database, env })]);
}

t.test('INST-27 PAIR-23: a pairing that was begun on a killed instance is completed on another', async (t) => {
  const [one, two] = await pair(t);
  const first = await claim(one.wire);
  const mine = { token: first.token, shape: 'a' } as const;
  const code = newCode();
  t.equal((await one.wire.post('/devices/pair-init', { code, epk: randomBytes(32) }, mine)).status, 200);
  t.equal((await one.wire.post('/devices/pair-fetch-epk', { code })).status, 200);
  const body = npkBody(code);
  const held = one.wire.post('/devices/pair-fetch-npk', body, { shape: 'a' }).catch((error: unknown) => error);
  await waitForRequest(two.wire, first);
  await one.end('SIGKILL');
  t.ok((await held) instanceof Error, 'the held call is cut off');
  const socket = await two.wire.connect({ token: first.token, shape: 'a' });
  await socket.hello();
  t.match(await socket.next('pair_request'), { code, deviceId: body['deviceId'] });
  const waiting = two.wire.post('/devices/pair-fetch-npk', body, { shape: 'a' });
  t.equal((await two.wire.post('/devices/pair-wrap', wrapBody(code), mine)).status, 200);
  const paired = await waiting;
  t.equal(paired.status, 200);
  const token = paired.text('token');
  t.equal((await two.wire.get('/me', { token })).status, 200);
  const all = [first.id, paired.text('device.id')];
  t.equal((await write(two.wire, { token }, newItem(all))).status, 200);
});

t.test('INST-27 TOKEN-12: a device that was revoked on a killed instance stays revoked on the others', async (t) => {
  const [one, two] = await pair(t);
  const first = await claim(one.wire);
  const third = await join(one.wire, first, { existingWire: two.wire });
  const socket = await two.wire.connect({ token: third.token });
  await socket.hello();
  const revoked = await one.wire.post(`/devices/${third.id}/revoke`, {}, { token: first.token });
  await one.end('SIGKILL');
  t.equal(revoked.status, 200);
  t.equal((await socket.closed).code, 4403);
  t.equal((await two.wire.get('/me', { token: third.token })).outcome, '403 device_revoked');
});

t.test('INST-27 PAIR-23: a rate that was used up on a killed instance stays used up on another', async (t) => {
  const [one, two] = await pair(t, { RATE_PAIR_PER_MIN: '5' });
  await claim(one.wire);
  const guess = async (wire: Wire): Promise<string> =>
    (await wire.post('/devices/pair-fetch-epk', { code: newCode() }, { shape: 'a' })).outcome;
  for (const _ of range(1, 5)) t.equal(await guess(one.wire), '400 pair_invalid');
  await one.end('SIGKILL');
  const reply = await two.wire.post('/devices/pair-fetch-epk', { code: newCode() }, { shape: 'a' });
  t.equal(reply.outcome, '429 rate_limited');
  t.match(reply.headers['retry-after'], /^[1-9]\d*$/);
});

t.test(
  'INST-27 BILL-14: a tenant state that a webhook set on a killed instance remains in effect on the others',
  async (t) => {
    const stripe = await StripeStandIn.start(t);
    const [one, two] = await pair(t, { ...MULTI, ...stripe.env });
    const { wire: here, host, device } = await neighbour(t, one.port, 'anna');
    const [apex, there] = [wireAt(t, one.port, BASE), wireAt(t, two.port, host)];
    const id = (await here.get('/service/status')).text('tenantId');
    const payer = payerOf(id);
    const writing = async (wire: Wire): Promise<string> => (await write(wire, device, newItem([device.id]))).outcome;
    await mustDeliver(apex, checkoutDone(payer, Date.now() - 10_000));
    await until('paid, on both', async () => (await writing(here)) === '200' && (await writing(there)) === '200');
    const socket = await there.connect({ token: device.token });
    await socket.hello();
    await mustDeliver(apex, subscriptionIs('deleted', 'canceled', payer, Date.now()));
    await one.end('SIGKILL');
    t.match(await socket.closed, { code: 1012, reason: 'payment required' });
    t.equal(await writing(there), '402 payment_required');
  },
);
