/** What callers leave behind: sockets by ticket, and when a device was seen (contract 4, `/ws-ticket`; contract 9). */
import t from 'tap';
import { ask, DEVICE, frontOf, tokenOf } from './support/front.js';
import { refusedSocket, socketOf } from './support/front-sockets.js';

t.test('TOKEN-27: a socket by ticket ends with the token that the ticket was drawn with', async (t) => {
  const { port, clock } = await frontOf(t, {
    services: {
      tickets: {
        issueSocket: () => ({ ticket: 'x', expiresAt: 1 }),
        redeemSocket: () => Promise.resolve({ deviceId: DEVICE, epoch: 1, tokenExpiresAt: ends }),
      },
    },
  });
  const ends = clock.now() + 45_000;
  const byTicket = await socketOf(t, port, { query: '?ticket=x' });
  const byToken = await socketOf(t, port, { query: `?token=${tokenOf()}` });
  for (const socket of [byTicket, byToken]) await socket.say({ type: 'hello', since: 0 });
  clock.advance(44_000);
  for (const socket of [byTicket, byToken]) await socket.say({ type: 'pong' });
  t.equal(byTicket.closeCode, undefined, 'not before');
  clock.advance(2_000);
  t.equal(await byTicket.closed(), 4401);
  await byToken.say({ type: 'pong' });
  t.equal(byToken.closeCode, undefined, 'the other token lives');
});

t.test('TOKEN-27: a ticket is drawn with the end and the epoch of the token that asked', async (t) => {
  const drawn: object[] = [];
  const { port, actor } = await frontOf(t, {
    services: {
      tickets: {
        issueSocket: (right) => {
          drawn.push(right);
          return { ticket: 'x', expiresAt: 1 };
        },
        redeemSocket: () => Promise.resolve(undefined),
      },
    },
  });
  actor.admit(DEVICE, 3);
  const token = tokenOf({ epoch: 3, expiresAt: 3e12 });
  t.equal((await ask(port, '/api/ws-ticket', { method: 'POST', token })).status, 200);
  t.match(drawn, [{ deviceId: DEVICE, epoch: 3, tokenExpiresAt: 3e12 }]);
});

t.test('DEV-16: a device is seen when it calls or opens a socket, and not when it is refused', async (t) => {
  const seen: string[] = [];
  const unasked = (): Promise<never> => Promise.reject(new Error('not asked for'));
  const devices = { patch: unasked, revoke: unasked, list: () => Promise.resolve({ devices: [] }) };
  const { port, actor } = await frontOf(t, {
    services: { devices: { ...devices, touch: (_tenantId, { id }) => void seen.push(id) } },
  });
  t.equal((await ask(port, '/api/devices')).status, 200);
  t.same(seen, [DEVICE], 'by a call');
  await socketOf(t, port);
  t.same(seen, [DEVICE, DEVICE], 'by a socket');
  actor.admit(DEVICE, 2, true);
  t.equal((await ask(port, '/api/devices')).status, 403);
  t.equal((await refusedSocket(t, port)).status, 403);
  t.equal((await ask(port, '/api/health', { token: null })).status, 200);
  t.equal(seen.length, 2);
});
