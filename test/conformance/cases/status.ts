/** Status and identity. */
import { type Json } from '../../support/wire.js';
import { type Case, type Stage, fields } from '../stage.js';

const status: Case = {
  ids: ['STAT-01', 'STAT-03', 'STAT-04'],
  async run(stage, check) {
    const { wire, shape, world } = stage;
    const health = await wire.get('/health', { shape });
    check.of(
      'STAT-01',
      health,
      health.status === 200 && health.at('ok') === true && typeof health.at('version') === 'string',
      '{ok: true, version}',
    );
    const reply = await wire.get('/service/status', { shape });
    const { ok, version, mode, claimed, tenantId, epoch, database } = fields(reply.body);
    const whole =
      ok === true && typeof version === 'string' && ['single', 'multi'].includes(String(mode)) && database === 'up';
    check.of(
      'STAT-03',
      reply,
      reply.status === 200 && whole,
      '{ok, version, mode, claimed, tenantId, epoch, database}',
    );
    check.of('STAT-03', reply, tenantId === world.tenantId && typeof epoch === 'string', 'tenantId and epoch');
    check.of('STAT-04', reply, claimed === true, 'claimed: true');
  },
};

const server = async (stage: Stage): Promise<Json> => fields((await stage.me(stage.shape)).at('server'));
const NUMBERS = ['storageUsedBytes', 'storageCapBytes', 'itemCount', 'deviceCount', 'devicesOnline'];

const me: Case = {
  ids: ['STAT-06', 'STAT-07', 'STAT-08', 'STAT-09', 'STAT-11', 'STAT-12'],
  async run(stage, check) {
    const { first, world } = stage;
    const reply = await stage.me(stage.shape);
    const device = fields(reply.at('device'));
    check.of(
      'STAT-06',
      reply,
      device['id'] === first.id &&
        typeof device['name'] === 'string' &&
        device['glyph'] === 'laptop' &&
        Number.isInteger(device['pairedAt']),
      'device {id, name, glyph, pairedAt}',
    );
    const before = await server(stage);
    check.of(
      'STAT-07',
      reply,
      ['version', 'region'].every((field) => typeof before[field] === 'string'),
      'texts version and region',
    );
    check.of(
      'STAT-07',
      reply,
      NUMBERS.every((field) => Number.isInteger(before[field])),
      `integers ${NUMBERS.join(', ')}`,
    );
    check.of(
      'STAT-11',
      reply,
      Number.isInteger(before['headVersion']) && Number.isInteger(before['versionSum']),
      'integers headVersion and versionSum',
    );
    check.of(
      'STAT-11',
      reply,
      before['tenantId'] === world.tenantId && typeof before['epoch'] === 'string',
      'tenantId and epoch',
    );
    check.same('STAT-09', before['deviceCount'], world.ids.length, 'deviceCount');
    const [one, two] = [await stage.written(), await stage.written()];
    const full = await server(stage);
    const plus = (field: string): number => Number(full[field]) - Number(before[field]);
    check.same('STAT-08', plus('itemCount'), 2, 'increase of itemCount after two writes');
    check.same(
      'STAT-11',
      [full['headVersion'], plus('versionSum')],
      [two.version, one.version + two.version],
      'headVersion, and the increase of versionSum',
    );
    check.ok(
      'STAT-12',
      plus('storageUsedBytes') >= 2 * (48 + 2 * 80),
      'storageUsedBytes rises by ciphertext and keys',
      plus('storageUsedBytes'),
    );
    await stage.remove(one.id);
    const after = await server(stage);
    check.same(
      'STAT-08',
      Number(full['itemCount']) - Number(after['itemCount']),
      1,
      'decrease of itemCount after a delete',
    );
    check.same(
      'STAT-11',
      [after['headVersion'], Number(full['versionSum']) - Number(after['versionSum'])],
      [two.version + 1, one.version],
      'headVersion, and the decrease of versionSum',
    );
    check.ok(
      'STAT-12',
      Number(after['storageUsedBytes']) < Number(full['storageUsedBytes']),
      'storageUsedBytes falls with a delete',
      after['storageUsedBytes'],
    );
    const third = await stage.join();
    check.same('STAT-09', (await server(stage))['deviceCount'], world.ids.length, 'deviceCount with one more device');
    await world.revoke(third);
    check.same(
      'STAT-09',
      (await server(stage))['deviceCount'],
      world.ids.length,
      'deviceCount after that device was revoked',
    );
  },
};

export const statuses: readonly Case[] = [status, me];
