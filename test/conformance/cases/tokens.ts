/** Tokens and callers. */
import { newCode, newId } from '../../support/devices.js';
import { UpgradeRefused } from '../../support/wire.js';
import { CODES, type Case } from '../stage.js';

/** The endpoints that need the token of a device. */
export const TOKEN_ENDPOINTS: readonly (readonly [string, string])[] = [
  ['POST', '/items'],
  ['GET', '/items'],
  ['POST', '/items/batch'],
  ['DELETE', `/items/${newId()}`],
  ['POST', `/items/${newId()}/reconcile`],
  ['GET', '/bins'],
  ['POST', '/bins'],
  ['PATCH', '/bins/inbox'],
  ['DELETE', '/bins/inbox'],
  ['GET', '/devices'],
  ['PATCH', `/devices/${newId()}`],
  ['POST', `/devices/${newId()}/revoke`],
  ['POST', '/devices/pair-init'],
  ['GET', '/devices/pair-requests'],
  ['POST', '/devices/pair-wrap'],
  ['POST', '/ws-ticket'],
  ['POST', '/password/set'],
  ['GET', '/me'],
];

const missing: Case = {
  ids: ['TOKEN-01', 'TOKEN-02', 'TOKEN-23'],
  async run(stage, check) {
    const { wire, shape } = stage;
    for (const [method, path] of TOKEN_ENDPOINTS) {
      check.outcome('TOKEN-01', await wire.ask(method, path, { shape }), CODES.noToken[shape], 'without a token');
      check.outcome(
        'TOKEN-02',
        await wire.ask(method, path, { shape, token: 'x' }),
        CODES.badToken[shape],
        'a token that is none',
      );
    }
    const inQuery = await wire.get(`/me?token=${stage.first.token}`, { shape });
    check.outcome('TOKEN-01', inQuery, CODES.noToken[shape], 'a token in the query serves /ws only');
    const { token, id: deviceId } = stage.first;
    for (const authorization of ['', 'Bearer', 'Bearer ', 'Basic dTpw', token, `Token ${token}`]) {
      const reply = await wire.get('/me', { shape, headers: { authorization } });
      check.outcome('TOKEN-01', reply, [CODES.noToken[shape], CODES.badToken[shape]], 'a header without a token');
    }
    const bearer = await wire.get('/me', { shape, headers: { authorization: `bearer ${token}` } });
    check.outcome('TOKEN-02', bearer, '200', 'the scheme in lower case');
    for (const ask of [{ shape }, { shape, token: 'nonsense' }, { shape, token }]) {
      for (const path of ['/health', '/service/status', '/password/exists'])
        check.outcome('TOKEN-23', await wire.get(path, ask), '200');
      const epk = await wire.post('/devices/pair-fetch-epk', { code: newCode() }, ask);
      check.outcome('TOKEN-23', epk, '400 pair_invalid', 'an unknown code, but no token wanted');
      check.outcome('TOKEN-23', await wire.post('/devices/recover/challenge', {}, ask), '200');
      check.outcome('TOKEN-23', await wire.post('/devices/reauth/challenge', { deviceId }, ask), '200');
    }
  },
};

const altered: Case = {
  ids: ['TOKEN-02', 'TOKEN-07', 'TOKEN-09'],
  once: true,
  async run(stage, check) {
    const { token } = stage.first;
    const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
    check.ok(
      'TOKEN-09',
      /^[A-Za-z0-9._~-]+$/.test(token),
      'characters that are safe in a URL',
      token.replace(/[A-Za-z0-9]/g, '*'),
    );
    for (let index = 0; index < token.length; index++) {
      const at = alphabet.indexOf(token[index] ?? '');
      for (const other of at < 0 ? ['A'] : [alphabet[at ^ 1], alphabet[at ^ 32], '.']) {
        const changed = `${token.slice(0, index)}${other}${token.slice(index + 1)}`;
        const reply = await stage.wire.get('/me', { token: changed, shape: 'b' });
        check.outcome('TOKEN-07', reply, CODES.badToken.b, `character ${index} of ${token.length} changed`);
      }
    }
    for (const variant of [
      ...[token.slice(0, -1), token.slice(1), `${token}A`, `${token}=`, `A${token}`, token.toUpperCase()],
      ...[token + token, 'A'.repeat(3_500), 'A'.repeat(5_000)],
    ])
      check.outcome('TOKEN-02', await stage.wire.get('/me', { token: variant, shape: 'b' }), CODES.badToken.b);
    check.outcome('TOKEN-07', await stage.wire.get('/me', { token }), '200', 'the token itself');
  },
};

const revoked: Case = {
  ids: ['TOKEN-11', 'TOKEN-13', 'TOKEN-14', 'TOKEN-21'],
  async run(stage, check) {
    const { wire, shape, second } = stage;
    const lost = await stage.join();
    const ticket = (await wire.post('/ws-ticket', {}, stage.as('a', lost))).text('ticket');
    const sockets = [await stage.connect({ token: lost.token, shape }), await stage.watch(lost)];
    const reply = await stage.world.revoke(lost);
    check.outcome('TOKEN-11', reply, '200', 'the revocation');
    check.outcome('TOKEN-11', await wire.get('/me', stage.as(shape, lost)), '403 device_revoked', 'from the reply on');
    for (const socket of sockets)
      check.same('TOKEN-14', (await socket.closed).code, 4403, "close code of the revoked device's sockets");
    check.same(
      'TOKEN-21',
      await stage.upgrade({ token: lost.token, shape }),
      '403 device_revoked',
      "outcome of the revoked device's upgrade",
    );
    const late = await stage.upgrade({ ticket, shape });
    check.ok('TOKEN-21', /^40[13] /.test(late), 'a ticket from before opens nothing', late);
    check.outcome('TOKEN-13', await wire.get('/me', stage.as(shape, second)), '200', 'another device');
  },
};

const race: Case = {
  ids: ['TOKEN-15'],
  async run(stage, check) {
    for (let round = 0; round < 2; round++) {
      const lost = await stage.join();
      const opening = Array.from({ length: 12 }, () =>
        stage.wire.connect({ token: lost.token, shape: stage.shape }).then(
          async (socket) => (await socket.closed).code,
          (error: unknown) => (error instanceof UpgradeRefused ? error.reply.outcome : String(error)),
        ),
      );
      await stage.world.revoke(lost);
      for (const end of await Promise.all(opening))
        check.ok(
          'TOKEN-15',
          end === 4403 || end === '403 device_revoked',
          'a socket opened meanwhile is closed with 4403 or refused',
          end,
        );
    }
  },
};

const upgrades: Case = {
  ids: ['TOKEN-16', 'TOKEN-17', 'TOKEN-22'],
  async run(stage, check) {
    const { shape, first } = stage;
    check.same('TOKEN-16', await stage.upgrade({ token: first.token, shape }), 'open', 'a token in the query');
    check.same('TOKEN-16', await stage.upgrade({ authorization: first.token, shape }), 'open', 'a token in the header');
    const both = { authorization: first.token, token: 'nonsense', shape };
    check.same('TOKEN-17', await stage.upgrade(both), 'open', 'a good header beside a bad query');
    const wrong = { authorization: 'nonsense', token: first.token, shape };
    check.same('TOKEN-17', await stage.upgrade(wrong), CODES.badToken[shape], 'a bad header beside a good query');
    check.same('TOKEN-22', await stage.upgrade({ shape }), CODES.noToken[shape], 'no token');
    for (const token of ['nonsense', `${first.token}x`])
      check.same('TOKEN-22', await stage.upgrade({ token, shape }), CODES.badToken[shape], 'a bad token');
  },
};

const tickets: Case = {
  ids: ['TOKEN-18', 'TOKEN-19'],
  async run(stage, check) {
    const { wire, shape, first } = stage;
    const expires = shape === 'a' ? 'expiresAt' : 'expires_at';
    const reply = await wire.post('/ws-ticket', {}, stage.as());
    const ticket = reply.text('ticket');
    const left = Number(reply.at(expires)) - Date.now();
    check.of(
      'TOKEN-18',
      reply,
      reply.status === 200 && left > 30_000 && left < 90_000,
      `{ticket, ${expires}}, about 60 s ahead`,
    );
    const socket = await stage.connect({ ticket, shape });
    await socket.hello(await stage.head());
    const mine = (await wire.get('/devices', stage.as('a'))).list('devices').find(({ id }) => id === first.id);
    check.same('TOKEN-18', mine?.['online'], true, '`online` of the device in /devices while the socket is open');
    check.same('TOKEN-19', await stage.upgrade({ ticket, shape }), CODES.badToken[shape], 'a second use of the ticket');
    const raced = (await wire.post('/ws-ticket', {}, stage.as())).text('ticket');
    const uses = await Promise.all([1, 2, 3, 4].map(async () => stage.upgrade({ ticket: raced, shape })));
    check.same(
      'TOKEN-19',
      uses.filter((use) => use === 'open').length,
      1,
      'number of sockets that four concurrent uses of one ticket open',
    );
    check.same(
      'TOKEN-18',
      await stage.upgrade({ ticket: first.token, shape }),
      CODES.badToken[shape],
      'a token used as a ticket',
    );
  },
};

const lateTicket: Case = {
  ids: ['TOKEN-20'],
  needs: 'slow',
  async run(stage, check) {
    const ticket = (await stage.wire.post('/ws-ticket', {}, stage.as('a'))).text('ticket');
    await stage.world.pause(61_000);
    check.same(
      'TOKEN-20',
      await stage.upgrade({ ticket, shape: stage.shape }),
      CODES.badToken[stage.shape],
      'a ticket used after 61 s',
    );
  },
};

const admin: Case = {
  ids: ['TOKEN-24'],
  async run(stage, check) {
    const { wire, shape, first } = stage;
    for (const token of ['wrong', 'null', first.token])
      check.outcome('TOKEN-24', await wire.post('/devices/bootstrap/restart', {}, { token, shape }), '403 forbidden');
    check.outcome('TOKEN-24', await wire.get('/me', stage.as()), '200', 'and nothing was wiped');
  },
};

export const tokens: readonly Case[] = [missing, altered, revoked, race, upgrades, tickets, lateTicket, admin];
