/** What callers leave behind: sockets by ticket, and when a device was seen. */
import t from 'tap';
import { ask, DEVICE, frontOf, tokenOf, verify } from './support/front.js';
import { refusedSocket, socketOf } from './support/front-sockets.js';

t.test('TOKEN-27: a socket by ticket ends with the token that the ticket was drawn with', async (t) => {
  const { port, clock } = await frontOf(t, {
    services: {
      tickets: {
        issueSocket: () => ({ ticket: 'x', expiresAt: 1 }),
        readSocket: () => ({ deviceId: DEVICE, epoch: 1, expiresAt: ends, spend: () => Promise.resolve(true) }),
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
        readSocket: () => undefined,
      },
    },
  });
  actor.admit(DEVICE, 3);
  const token = tokenOf({ epoch: 3, expiresAt: 3e12 });
  t.equal((await ask(port, '/api/ws-ticket', { method: 'POST', token })).status, 200);
  t.match(drawn, [{ deviceId: DEVICE, epoch: 3, expiresAt: 3e12 }]);
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

t.test(
  'ADMIT-10: a tenant is read at once for a device that asks, with others for sockets and for who has no token',
  async (t) => {
    let hurried = 0;
    const { port, actor } = await frontOf(t, {
      services: {
        tenants: {
          actors: new Map(),
          get: () => Promise.resolve(actor),
          hurry: () => {
            hurried++;
          },
          changed: () => Promise.resolve(),
        },
      },
    });
    t.equal((await ask(port, '/api/devices')).status, 200);
    t.equal(hurried, 1);
    await socketOf(t, port);
    t.equal((await ask(port, '/api/password/exists', { token: null })).status, 200);
    t.equal(hurried, 1);
  },
);

t.test('TOKEN-28: a token is proven once while nothing changes, a forged one each time', async (t) => {
  let looks = 0;
  const verifying = {
    verify: (token: string, now: number) => {
      looks++;
      return verify(token, now);
    },
  };
  const { port, actor, clock } = await frontOf(t, { services: { tokens: verifying } });
  const status = async (token: string): Promise<number> => (await ask(port, '/api/me', { token })).status;
  const token = tokenOf({ expiresAt: clock.now() + 60_000 });
  t.same([await status(token), await status(token), await status(token), looks], [200, 200, 200, 1]);
  const forged = tokenOf({ forged: true });
  t.same([await status(forged), await status(forged), looks], [401, 401, 3]);
  // Good tokens of the same device: those that came last are remembered, a bounded number.
  for (let n = 0; n < 300; n++) await status(tokenOf({ expiresAt: clock.now() + 70_000 + n }));
  const before = looks;
  t.same([await status(token), looks - before], [200, 1], 'it was forgotten for the others');
  const padded = async (n: number): Promise<number> =>
    (await ask(port, '/api/me', { token: null, headers: { authorization: `Bearer${' '.repeat(300 + n)}${token}` } }))
      .status;
  // As many as are remembered: the next one that is would take the place of all.
  for (let n = 0; n < 210; n++) await status(tokenOf({ expiresAt: clock.now() + 80_000 + n }));
  const known = looks;
  t.same([await padded(0), await status(token), looks - known], [200, 200, 1], 'blanks before it drive nobody out');
  actor.admit(DEVICE, 2);
  t.equal(await status(token), 403, 'the device is another one now');
  actor.admit(DEVICE, 1);
  t.equal(await status(token), 200);
  clock.advance(60_000);
  t.equal(await status(token), 401, 'remembered, but it has ended');
});

t.test('TOKEN-28: nobody is remembered by an actor that was not compared for long', async (t) => {
  const { port, actor } = await frontOf(t);
  t.equal((await ask(port, '/api/me')).status, 200);
  actor.current = false;
  let reads = 0;
  actor.device = () => {
    reads++;
    return undefined;
  };
  t.equal((await ask(port, '/api/me')).status, 401, 'looked for anew');
  t.ok(reads > 0);
});
