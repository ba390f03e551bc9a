/** Recovery. */
import { randomBytes } from 'node:crypto';
import { nodeSodium } from '../../../src/crypto/sodium-node.js';
import { lp, newId } from '../../support/devices.js';
import { spelled, type Json, type Reply } from '../../support/wire.js';
import { type Case, type Stage, fields } from '../stage.js';

const PARTS = ['host', 'tenantId', 'challengeId', 'challenge', 'deviceId', 'pubkey', 'deviceCert'] as const;

interface Attempt {
  readonly reply: Reply;
  readonly keys: ReturnType<typeof nodeSodium.boxKeyPair>;
  /** The body; its signature covers the body's values with `changes` applied, which the body itself does not have. */
  readonly body: (changes?: Readonly<Record<string, string | Buffer>>, secretKey?: Uint8Array) => Json;
}

/** A challenge, and a body that answers it. */
async function attempt(stage: Stage, more: Json = {}): Promise<Attempt> {
  const { world, wire, shape } = stage;
  const reply = await wire.post('/devices/recover/challenge', {}, { shape });
  if (reply.status !== 200) throw new Error(`POST /api/devices/recover/challenge answers ${reply.status} ${reply.raw}`);
  const { challengeId, challenge } = fields(reply.body);
  const keys = nodeSodium.boxKeyPair();
  const pubkey = Buffer.from(keys.publicKey);
  const passwordTicket = await world.ticket(pubkey);
  const plain = {
    challengeId: String(challengeId),
    host: new URL(world.options.url).hostname.toLowerCase(),
    deviceId: newId(),
    pubkey,
    deviceCert: randomBytes(32),
    name: 'back',
    glyph: 'laptop',
    ...(passwordTicket === undefined ? {} : { passwordTicket }),
    ...more,
  };
  return {
    reply,
    keys,
    body: (changes = {}, secretKey = world.recoveryKey) => {
      const all: Record<string, unknown> = {
        ...plain,
        challenge: Buffer.from(String(challenge), 'base64'),
        tenantId: world.tenantId,
        ...changes,
      };
      const text = lp('service-recover-v1', ...PARTS.map((name) => all[name] as string | Buffer));
      return { ...plain, signature: Buffer.from(nodeSodium.sign(text, secretKey)) };
    },
  };
}

const recover = async (stage: Stage, body: Json): Promise<Reply> =>
  stage.wire.post('/devices/recover', body, { shape: stage.shape });
const noToken = (reply: Reply): boolean => reply.status >= 400 && reply.status < 500 && reply.at('token') === undefined;

const right: Case = {
  ids: ['RECOV-01', 'RECOV-02', 'RECOV-05', 'RECOV-08', 'RECOV-09', 'RECOV-10'],
  async run(stage, check) {
    const { world, wire, shape } = stage;
    const item = await stage.written();
    const socket = await stage.watch();
    const one = await attempt(stage);
    const { challengeId, challenge, tenantId } = fields(one.reply.body);
    check.of(
      'RECOV-01',
      one.reply,
      typeof challengeId === 'string' && typeof challenge === 'string' && tenantId === world.tenantId,
      '{challengeId, challenge, tenantId}',
    );
    const body = one.body();
    const reply = await recover(stage, body);
    check.outcome('RECOV-02', reply, '200', 'a right signature');
    check.outcome('RECOV-10', reply, '200', 'for the host that was dialled');
    const device = stage.adopt({
      id: reply.text('device.id'),
      token: reply.text('token'),
      keys: one.keys,
      name: 'back',
    });
    check.same(
      'RECOV-02',
      (await wire.get('/me', { token: device.token })).at('device.id'),
      body['deviceId'],
      'device id in /me with the new token',
    );
    check.same(
      'RECOV-08',
      fields((await socket.next('device_joined'))['device'])['id'],
      body['deviceId'],
      'device id in device_joined',
    );
    const again = await recover(stage, { ...body, deviceId: newId() });
    check.of('RECOV-05', again, noToken(again), 'no token from a second use');
    const list = await wire.get(`/items?since=${item.version - 1}&limit=1`, { token: device.token, shape });
    const row = fields(list.list('items')[0]);
    const master = shape === 'a' ? fields(row['payloadEnc'])['master'] : row['master'];
    check.same('RECOV-09', master, spelled(shape, item.master), 'the master wrap, as the new device reads it');
  },
};

const wrong: Case = {
  ids: ['RECOV-03', 'RECOV-04', 'RECOV-10'],
  async run(stage, check) {
    const { world } = stage;
    const stranger = nodeSodium.signKeyPair(randomBytes(32)).secretKey;
    const byOther = await recover(stage, (await attempt(stage)).body({}, stranger));
    check.of('RECOV-03', byOther, noToken(byOther), 'no token for a signature by another key');
    const changes: Readonly<Record<(typeof PARTS)[number], string | Buffer>> = {
      host: 'evil.test',
      tenantId: newId(),
      challengeId: newId(),
      challenge: randomBytes(32),
      deviceId: newId(),
      pubkey: randomBytes(32),
      deviceCert: randomBytes(32),
    };
    for (const [field, value] of Object.entries(changes)) {
      const reply = await recover(stage, (await attempt(stage)).body({ [field]: value }));
      check.of('RECOV-04', reply, noToken(reply), `no token for a signature over another ${field}`);
    }
    const relayed = await recover(stage, (await attempt(stage, { host: 'evil.test' })).body());
    check.of('RECOV-10', relayed, noToken(relayed), 'no token for a signature for another host');
    check.ok('RECOV-03', world.recoveryKey.length === 64, 'the kit has a recovery key of 64 bytes');
  },
};

const late: Case = {
  ids: ['RECOV-06'],
  needs: 'slow',
  once: true,
  async run(stage, check) {
    const one = await attempt(stage);
    await stage.world.pause(121_000);
    const reply = await recover(stage, one.body());
    check.of('RECOV-06', reply, noToken(reply), 'no token after 121 s');
  },
};

const protectedToo: Case = {
  ids: ['PASS-11'],
  async run(stage, check) {
    await stage.world.protect();
    const one = await attempt(stage);
    const { passwordTicket, ...body } = one.body();
    check.outcome('PASS-11', await recover(stage, body), '403 password_required', 'without a ticket');
    const reply = await recover(stage, { ...body, passwordTicket });
    check.outcome('PASS-11', reply, '200', 'with a ticket');
    if (reply.status === 200)
      stage.adopt({ id: reply.text('device.id'), token: reply.text('token'), keys: one.keys, name: 'back' });
  },
};

export const recovery: readonly Case[] = [right, wrong, late, protectedToo];
