/** What the front keeps about callers: sockets by ticket, when a device was seen, verified tokens. */
import t from 'tap';
import { ask, DEVICE, frontOf, tokenOf, verify } from './support/front.js';
import { refusedSocket, socketOf } from './support/front-sockets.js';

t.test('TOKEN-27: a socket opened by ticket closes when the token that requested the ticket expires', async (t) => {
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
  t.equal(byTicket.closeCode, undefined, 'not before the token expires');
  clock.advance(2_000);
  t.equal(await byTicket.closed(), 4401);
  await byToken.say({ type: 'pong' });
  t.equal(byToken.closeCode, undefined, 'a socket whose token is still valid stays');
});

t.test('TOKEN-27: a ticket carries the expiry and the epoch of the token that requested it', async (t) => {
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

t.test('DEV-16: a device counts as seen when it calls or opens a socket, and not when it is refused', async (t) => {
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
  'ADMIT-10: a tenant is read at once for a request of a device, with others for sockets and for calls without a token',
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

t.test('TOKEN-28: a token is verified once while nothing changes, a forged one each time', async (t) => {
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
  // Valid tokens of the same device: a bounded number is remembered, those that came last.
  for (let n = 0; n < 300; n++) await status(tokenOf({ expiresAt: clock.now() + 70_000 + n }));
  const before = looks;
  t.same([await status(token), looks - before], [200, 1], 'newer tokens displaced it');
  const padded = async (n: number): Promise<number> =>
    (await ask(port, '/api/me', { token: null, headers: { authorization: `Bearer${' '.repeat(300 + n)}${token}` } }))
      .status;
  // As many as are remembered: one more would displace all of them.
  for (let n = 0; n < 210; n++) await status(tokenOf({ expiresAt: clock.now() + 80_000 + n }));
  const known = looks;
  t.same([await padded(0), await status(token), looks - known], [200, 200, 1], 'blanks before a token displace none');
  actor.admit(DEVICE, 2);
  t.equal(await status(token), 403, 'the epoch of the device has changed');
  actor.admit(DEVICE, 1);
  t.equal(await status(token), 200);
  clock.advance(60_000);
  t.equal(await status(token), 401, 'a remembered token expires too');
});

t.test('TOKEN-28: an actor that has not been compared for long remembers no caller', async (t) => {
  const { port, actor } = await frontOf(t);
  t.equal((await ask(port, '/api/me')).status, 200);
  actor.current = false;
  let reads = 0;
  actor.device = () => {
    reads++;
    return undefined;
  };
  t.equal((await ask(port, '/api/me')).status, 401, 'the device is looked up again');
  t.ok(reads > 0);
});
