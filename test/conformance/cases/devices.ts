/** Devices. */
import { randomBytes } from 'node:crypto';
import { newCode, newId, publicKeyOf } from '../../support/devices.js';
import { spelled, type Json, type Reply } from '../../support/wire.js';
import { CODES, type Case, type Stage, fields } from '../stage.js';

const listed = async (stage: Stage, device = stage.first): Promise<Map<unknown, Json>> =>
  new Map(
    (await stage.wire.get('/devices', stage.as(stage.shape, device)))
      .list('devices')
      .map((entry) => [entry['id'], fields(entry)]),
  );

const FIELDS = ['cert', 'current', 'glyph', 'id', 'lastSeenAt', 'name', 'online', 'pairedAt', 'pubkey', 'revokedAt'];

const list: Case = {
  ids: ['DEV-01', 'DEV-02', 'DEV-03', 'STAT-10'],
  async run(stage, check) {
    const { first, second, shape } = stage;
    const online = async (): Promise<number> => Number(fields((await stage.me()).at('server'))['devicesOnline']);
    const third = await stage.join();
    const all = await listed(stage);
    const mine = all.get(first.id) ?? {};
    check.same('DEV-01', Object.keys(mine).sort(), FIELDS, 'fields of a device');
    check.same(
      'DEV-01',
      [mine['pubkey'], mine['revokedAt'], Number.isInteger(mine['pairedAt'])],
      [spelled(shape, publicKeyOf(first)), null, true],
      'pubkey, revokedAt, and whether pairedAt is an integer',
    );
    check.same(
      'DEV-02',
      [...all].filter(([, { current }]) => current === true).map(([id]) => id),
      [first.id],
      'ids of the devices with `current` true',
    );
    check.same(
      'DEV-02',
      (await listed(stage, second)).get(second.id)?.['current'],
      true,
      '`current` of the second device in its own list',
    );
    check.same('DEV-03', all.get(third.id)?.['online'], false, '`online` without a socket');
    const before = await online();
    const socket = await stage.watch(third);
    const shown = await stage.until(async () => (await listed(stage)).get(third.id)?.['online'] === true);
    check.ok('DEV-03', shown, '`online` is true while a socket is open');
    check.same('STAT-10', await online(), before + 1, 'devicesOnline with one more socket');
    await socket.close();
    const gone = await stage.until(async () => (await listed(stage)).get(third.id)?.['online'] === false);
    check.ok('DEV-03', gone, '`online` is false after the socket closed');
    check.same('STAT-10', await online(), before, 'devicesOnline after the socket closed');
  },
};

const change: Case = {
  ids: ['DEV-04', 'DEV-08', 'DEV-09', 'DEV-10'],
  async run(stage, check) {
    const { wire, shape } = stage;
    const { id } = await stage.join();
    const patch = async (body: Json): Promise<Reply> => wire.patch(`/devices/${id}`, body, stage.as());
    const cert = randomBytes(32);
    for (const [body, field] of [
      [{ name: 'new name' }, 'name'],
      [{ glyph: 'globe' }, 'glyph'],
      [{ cert }, 'cert'],
    ] as const) {
      const reply = await patch(body);
      const want = spelled(shape, (body as Json)[field]);
      check.of(
        'DEV-04',
        reply,
        reply.status === 200 && reply.at(`device.${field}`) === want,
        `device.${field} = ${String(want)}`,
      );
      check.same('DEV-04', (await listed(stage)).get(id)?.[field], want, `${field} in the list`);
    }
    for (const name of ['x', 'x'.repeat(64), 'Zoë 📱', '名前']) {
      const reply = await patch({ name });
      check.of('DEV-09', reply, reply.at('device.name') === name, `the name ${name}`);
    }
    for (const name of [
      '',
      'x'.repeat(65),
      'a\u0000b',
      'a\nb',
      'a\u202Eb',
      'a\u2066b',
      'a\u007Fb',
      'a\u0085b',
      7,
      null,
    ])
      check.outcome('DEV-09', await patch({ name }), CODES.validation[shape], JSON.stringify(name));
    for (const glyph of ['', 'tv', 'Laptop', 7, null])
      check.outcome('DEV-10', await patch({ glyph }), CODES.validation[shape], JSON.stringify(glyph));
    check.outcome('DEV-08', await wire.patch(`/devices/${newId()}`, { name: 'x' }, stage.as()), '404 device_not_found');
    check.outcome('DEV-08', await wire.post(`/devices/${newId()}/revoke`, {}, stage.as()), '404 device_not_found');
  },
};

const pairingFields: Case = {
  ids: ['DEV-09', 'DEV-10', 'DEV-11'],
  async run(stage, check) {
    const { wire, shape, world } = stage;
    const code = newCode();
    await wire.post('/devices/pair-init', { code, epk: randomBytes(32) }, stage.as('a'));
    const bad: readonly (readonly [string, string, readonly unknown[]])[] = [
      ['DEV-09', 'name', ['', 'x'.repeat(65), 'a\u202Eb']],
      ['DEV-10', 'glyph', ['', 'tv', 7]],
      ['DEV-11', 'deviceId', ['x', newId().toLowerCase(), `8${newId().slice(1)}`, newId().slice(1), 7]],
    ];
    for (const [id, field, values] of bad)
      for (const value of values) {
        const reply = await wire.post('/devices/pair-fetch-npk', await world.npkBody(code, { [field]: value }), {
          shape,
        });
        check.outcome(id, reply, CODES.validation[shape], `${field} = ${JSON.stringify(value)}`);
      }
  },
};

const revoke: Case = {
  ids: ['DEV-05', 'DEV-06', 'DEV-13'],
  async run(stage, check) {
    const { wire, shape } = stage;
    const [one, other] = [await stage.join(), await stage.join()];
    const socket = await stage.watch();
    const reply = await stage.wire.post(`/devices/${one.id}/revoke`, {}, stage.as());
    stage.world.devices.delete(one.id);
    const { id, revokedAt } = fields(reply.at('device'));
    check.of(
      'DEV-05',
      reply,
      reply.status === 200 && id === one.id && Number.isInteger(revokedAt),
      '{device} with revokedAt',
    );
    check.same(
      'DEV-05',
      Number.isInteger((await listed(stage)).get(one.id)?.['revokedAt']),
      true,
      'whether revokedAt is set in the list',
    );
    check.same('DEV-13', (await socket.next('device_revoked'))['id'], one.id, 'id of device_revoked');
    const self = await wire.post(`/devices/${other.id}/revoke`, {}, stage.as(shape, other));
    stage.world.devices.delete(other.id);
    check.outcome('DEV-06', self, '200', 'a device revokes itself');
    check.outcome('DEV-06', await wire.get('/me', stage.as(shape, other)), '403 device_revoked', 'and is revoked');
  },
};

const last: Case = {
  ids: ['DEV-07'],
  needs: 'admin',
  once: true,
  async run(stage, check) {
    const { world, wire, first, second } = stage;
    const [mine, theirs] = await Promise.all([
      wire.post(`/devices/${second.id}/revoke`, {}, stage.as('a', first)),
      wire.post(`/devices/${first.id}/revoke`, {}, stage.as('a', second)),
    ]);
    const alive = [];
    for (const device of [first, second])
      if ((await wire.get('/me', stage.as('a', device))).status === 200) alive.push(device);
    check.same('DEV-07', alive.length, 1, 'devices left of two that revoke each other concurrently');
    check.ok(
      'DEV-07',
      [mine, theirs].some(({ status }) => status >= 400),
      'one of the two is refused',
      [mine.outcome, theirs.outcome],
    );
    const [left] = alive;
    if (left !== undefined)
      check.outcome(
        'DEV-07',
        await wire.post(`/devices/${left.id}/revoke`, {}, stage.as('a', left)),
        '409 last_device',
        'the last one',
      );
    await world.wipe();
    await world.claim();
  },
};

export const devices: readonly Case[] = [list, change, pairingFields, revoke, last];
