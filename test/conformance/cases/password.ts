/** The account password. It cannot be removed: the tenant has one from here on. */
import { randomBytes } from 'node:crypto';
import { nodeSodium } from '../../../src/crypto/sodium-node.js';
import { newCode, newId, npkBody, waitForRequest, wrapBody } from '../../support/devices.js';
import { type Reply } from '../../support/wire.js';
import { CODES, type Case, type Stage, fields } from '../stage.js';

const verify = async (stage: Stage, password: unknown): Promise<Reply> =>
  stage.wire.post('/password/verify', { password }, { shape: stage.shape });

const first: Case = {
  ids: ['PASS-01', 'PASS-02', 'PASS-05'],
  once: true,
  async run(stage, check) {
    const { before, verified, set, after } = await stage.world.protect();
    check.of('PASS-01', before, before.at('exists') === false, 'exists: false before');
    check.of('PASS-01', after, after.at('exists') === true, 'exists: true after');
    check.of('PASS-02', set, set.status === 200 && set.at('ok') === true, '{ok: true} without currentPassword');
    check.outcome('PASS-05', verified, '403 password_invalid', 'none is set');
  },
};

const change: Case = {
  ids: ['PASS-03', 'PASS-04', 'PASS-05'],
  async run(stage, check) {
    const { wire, world, shape } = stage;
    await world.protect();
    const old = String(world.password);
    const next = `pw ${newId()}`;
    const set = async (currentPassword: unknown): Promise<Reply> =>
      wire.post('/password/set', { password: next, currentPassword }, stage.as());
    for (const wrong of [undefined, null, '', `${old}x`, old.toUpperCase()])
      check.outcome('PASS-03', await set(wrong), '403 password_invalid', 'a missing or wrong currentPassword');
    const changed = await set(old);
    check.outcome('PASS-03', changed, '200', 'the right currentPassword');
    if (changed.status === 200) world.password = next;
    const good = await verify(stage, world.password);
    const { ok, ticket, expiresAt } = fields(good.body);
    const lasts = Math.abs(Number(expiresAt) - Date.now() - 600_000) < 60_000;
    check.of(
      'PASS-04',
      good,
      good.status === 200 && ok === true && typeof ticket === 'string' && lasts,
      '{ok, ticket, expiresAt}, ten minutes ahead',
    );
    check.outcome('PASS-05', await verify(stage, old), '403 password_invalid', 'the old password');
    check.outcome('PASS-05', await verify(stage, 'wrong'), '403 password_invalid', 'a wrong password');
    for (const password of ['', 7, null, 'x'.repeat(1_025)])
      check.outcome(
        'PASS-05',
        await verify(stage, password),
        CODES.validation[shape],
        'no text of 1 to 1,024 characters',
      );
  },
};

const tickets: Case = {
  ids: ['PASS-06', 'PASS-08', 'PASS-09', 'PASS-10'],
  async run(stage, check) {
    const { wire, world } = stage;
    await world.protect();
    const keys = nodeSodium.boxKeyPair();
    const pubkey = Buffer.from(keys.publicKey);
    const attempt = async (code: string, passwordTicket: unknown): Promise<Reply> =>
      wire.post('/devices/pair-fetch-npk', npkBody(code, { pubkey, passwordTicket }), { shape: stage.shape });
    const code = newCode();
    await wire.post('/devices/pair-init', { code, epk: randomBytes(32) }, stage.as('a'));
    for (const none of [undefined, 'nonsense', stage.first.token])
      check.outcome('PASS-09', await attempt(code, none), '403 password_required', 'no ticket');
    check.outcome(
      'PASS-08',
      await attempt(code, await world.ticket(randomBytes(32))),
      '403 password_required',
      'a ticket for another pubkey',
    );
    const ticket = await world.ticket(pubkey);
    const held = attempt(code, ticket);
    const early = await Promise.race([held, waitForRequest(wire, stage.first).then(() => undefined)]);
    if (early !== undefined) {
      check.outcome('PASS-10', early, '200', 'the refusals spent no session');
      return;
    }
    await wire.post('/devices/pair-wrap', wrapBody(code), stage.as('a'));
    const paired = await held;
    check.outcome('PASS-10', paired, '200', 'the refusals spent no session');
    stage.adopt({ id: paired.text('device.id'), token: paired.text('token'), keys, name: 'joined' });
    const another = newCode();
    await wire.post('/devices/pair-init', { code: another, epk: randomBytes(32) }, stage.as('a'));
    check.outcome('PASS-06', await attempt(another, ticket), '403 password_required', 'a second use');
  },
};

const late: Case = {
  ids: ['PASS-07'],
  needs: 'slow',
  once: true,
  async run(stage, check) {
    const { wire, world } = stage;
    await world.protect();
    const pubkey = randomBytes(32);
    const ticket = await world.ticket(pubkey);
    await world.pause(601_000);
    const code = newCode();
    await wire.post('/devices/pair-init', { code, epk: randomBytes(32) }, stage.as('a'));
    const body = npkBody(code, { pubkey, passwordTicket: ticket });
    check.outcome(
      'PASS-07',
      await wire.post('/devices/pair-fetch-npk', body, { shape: stage.shape }),
      '403 password_required',
      'after 601 s',
    );
  },
};

const CHECKS = 48;

const load: Case = {
  ids: ['PASS-13', 'PASS-14', 'ERR-15'],
  once: true,
  async run(stage, check) {
    await stage.world.protect();
    let answered = 0;
    const checks = Array.from({ length: CHECKS }, async () => {
      const reply = await stage.wire.once('POST', '/password/verify', {
        shape: stage.shape,
        body: { password: 'guess' },
      });
      answered++;
      return reply;
    });
    let meanwhile = 0;
    for (let calls = 0; calls < 10; calls++) {
      const reply = await stage.me();
      check.outcome('PASS-13', reply, '200', 'another call');
      if (answered < CHECKS) meanwhile++;
    }
    const replies = await Promise.all(checks);
    const skip = (reason: string): void => check.ids.forEach((id) => check.skip(id, reason));
    if (replies.some(({ status }) => status === 429)) return skip('the rate of checks keeps the queue empty');
    check.ok('PASS-13', meanwhile > 0, `calls that are answered while ${CHECKS} checks are under way`, 'none');
    const shed = replies.filter(({ status }) => status === 503);
    if (shed.length === 0) return skip(`${CHECKS} checks at once were all made`);
    for (const reply of shed) {
      check.outcome('PASS-14', reply, '503 unavailable');
      check.of(
        'ERR-15',
        reply,
        reply.outcome === '503 unavailable' && Number(reply.headers['retry-after']) >= 1,
        '503 unavailable with Retry-After',
      );
    }
  },
};

export const passwords: readonly Case[] = [first, change, tickets, late, load];
