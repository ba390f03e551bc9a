/** Bootstrap. The replies to the kit's own claim are kept by the world. */
import { randomBytes } from 'node:crypto';
import { nodeSodium } from '../../../src/crypto/sodium-node.js';
import { claimBody, newCode, newId, sealedFor } from '../../support/devices.js';
import { spelled } from '../../support/wire.js';
import { CODES, type Case, fields } from '../stage.js';

const ULID = /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/;

const claimed: Case = {
  ids: ['BOOT-01', 'BOOT-03', 'BOOT-04', 'BOOT-05', 'BOOT-06', 'STAT-04'],
  once: true,
  async run(stage, check) {
    const { world, wire, shape } = stage;
    const { before, after, strangers, replies, wrappedMasterKey } = world.lastClaim;
    const winners = replies.filter(({ status }) => status === 200);
    check.same('BOOT-03', winners.length, 1, `successes among ${replies.length} concurrent claims`);
    for (const reply of replies.filter(({ status }) => status !== 200))
      check.outcome('BOOT-03', reply, CODES.claimed[shape], 'a call that lost');
    const [won] = winners;
    if (won === undefined) throw new Error('no claim went through');
    const body = fields(won.body);
    const device = fields(body['device']);
    check.of(
      'BOOT-01',
      won,
      body['wrappedMasterKey'] === spelled(shape, wrappedMasterKey),
      'wrappedMasterKey, as it was given',
    );
    check.of('BOOT-01', won, device['glyph'] === 'laptop' && typeof body['token'] === 'string', '{device, token}');
    const me = await wire.get('/me', stage.as());
    check.of('BOOT-01', me, fields(me.at('device'))['id'] === world.first.id, '/me with the token of the claim');
    check.of('BOOT-04', won, ULID.test(String(device['id'])), 'a ULID, drawn by the server');
    check.of('STAT-04', before, before.at('claimed') === false, 'claimed: false before');
    check.of('STAT-04', after, after.at('claimed') === true, 'claimed: true after');
    for (const reply of strangers) check.refused('BOOT-05', reply, 'a claim without the right token');
    if (strangers.length > 0) check.of('BOOT-05', before, before.at('claimed') === false, 'still unclaimed after that');
    check.skip('BOOT-05', 'no --claim-token was given');
    if (strangers.length > 0) check.skip('BOOT-06', 'the server wants a claim token');
    else check.ok('BOOT-06', winners.length > 0, 'a claim without a token succeeds');
  },
};

const again: Case = {
  ids: ['BOOT-02'],
  async run(stage, check) {
    const { claimToken } = stage.world.options;
    for (const more of [{}, { claimToken }]) {
      const reply = await stage.wire.post('/devices/bootstrap', claimBody(more), { shape: stage.shape });
      check.outcome('BOOT-02', reply, CODES.claimed[stage.shape], 'a claimed server');
    }
  },
};

const restart: Case = {
  ids: ['BOOT-07', 'BOOT-08', 'BOOT-09', 'BOOT-10', 'BOOT-11', 'TOKEN-03', 'BOOT-01', 'BOOT-03', 'RECOV-07'],
  needs: 'admin',
  once: true,
  async run(stage, check) {
    const { world, wire, shape } = stage;
    const [first, second] = [world.first, world.second];
    const item = await stage.written();
    await world.protect();
    const code = newCode();
    await wire.post('/devices/pair-init', { code, epk: randomBytes(32) }, stage.as('a'));
    const sockets = [await stage.watch(first), await stage.connect({ token: second.token, shape })];
    const reply = await world.wipe();
    check.of('BOOT-07', reply, reply.status === 200 && reply.at('ok') === true, '{ok: true}');
    for (const socket of sockets) check.ok('BOOT-11', (await socket.closed).code >= 1000, 'the socket is closed');
    const status = await wire.get('/service/status', { shape });
    check.of('BOOT-07', status, status.at('claimed') === false, 'claimed: false');
    for (const { token } of [first, second]) {
      const dead = await wire.get('/me', { token, shape });
      check.of('BOOT-08', dead, dead.status === 401 || dead.status === 403, '401 or 403 for a token from before');
      check.of(
        'TOKEN-03',
        dead,
        dead.outcome === CODES.badToken[shape],
        `${CODES.badToken[shape]} for a device that is unknown now`,
      );
    }
    const exists = await wire.get('/password/exists', { shape });
    check.of('BOOT-09', exists, exists.at('exists') === false, 'exists: false');
    check.outcome(
      'BOOT-09',
      await wire.post('/devices/pair-fetch-epk', { code }, { shape }),
      '400 pair_invalid',
      'a pair session from before',
    );
    const { replies } = await world.claim();
    check.same(
      'BOOT-03',
      replies.filter(({ status: one }) => one === 200).length,
      1,
      'successes among concurrent claims',
    );
    check.of(
      'BOOT-01',
      replies[0] ?? reply,
      replies.some(({ status: one }) => one === 200),
      'a claim of the unclaimed server',
    );
    const row = await stage.row(item.id, 'b');
    check.same(
      'BOOT-10',
      [row['version'], row['ct']],
      [item.version, spelled('b', item.ct)],
      'version and ct of an item written before the restart',
    );
    const edit = stage.edit(item, { keys: sealedFor(...world.ids) });
    check.outcome('BOOT-10', await stage.write(edit), '200', 'and it can be written');
    const late = await wire.get('/me', { token: first.token, shape });
    check.of(
      'BOOT-08',
      late,
      late.status === 401 || late.status === 403,
      '401 or 403 for a token from before, also after the next claim',
    );
    await noRecovery(stage, check);
  },
};

/** Restarts once more and claims without a recovery key. */
const noRecovery: (...args: Parameters<Case['run']>) => Promise<void> = async (stage, check) => {
  const { world, wire, shape } = stage;
  await world.wipe();
  const keys = nodeSodium.boxKeyPair();
  const bare = {
    name: 'bare',
    glyph: 'globe',
    pubkey: Buffer.from(keys.publicKey),
    claimToken: world.options.claimToken,
  };
  const claim = await wire.post('/devices/bootstrap', bare, { shape });
  check.outcome('BOOT-01', claim, '200', 'a claim without recovery key');
  const challenge = await wire.post('/devices/recover/challenge', {}, { shape: 'a' });
  const body = {
    challengeId: challenge.at('challengeId') ?? newId(),
    signature: randomBytes(64),
    deviceId: newId(),
    host: new URL(world.options.url).hostname,
    pubkey: randomBytes(32),
    deviceCert: randomBytes(32),
    name: 'back',
    glyph: 'laptop',
  };
  const refused = await wire.post('/devices/recover', body, { shape });
  check.refused('RECOV-07', refused, 'a recovery without a registered key');
  check.of('RECOV-07', refused, refused.at('token') === undefined, 'no token');
  await world.wipe();
  await world.claim();
};

export const bootstrap: readonly Case[] = [claimed, again, restart];
