/** Pairing. */
import { randomBytes } from 'node:crypto';
import { nodeSodium } from '../../../src/crypto/sodium-node.js';
import { newCode, newId, waitForRequest, wrapBody } from '../../support/devices.js';
import { changesOf, untilVersion } from '../../support/stream.js';
import { camel, spelled, type Json, type Reply } from '../../support/wire.js';
import { CODES, type Case, type Stage, fields } from '../stage.js';

const epk = (): Buffer => Buffer.from(nodeSodium.boxKeyPair().publicKey);

/** Starts a session as the first device; returns its code. */
async function start(stage: Stage): Promise<string> {
  const code = newCode();
  const reply = await stage.wire.post('/devices/pair-init', { code, epk: epk() }, stage.as('a'));
  if (reply.status !== 200) throw new Error(`POST /api/devices/pair-init answers ${reply.status} ${reply.raw}`);
  return code;
}

const fetchEpk = async (stage: Stage, code: string): Promise<Reply> =>
  stage.wire.post('/devices/pair-fetch-epk', { code }, { shape: stage.shape });
const fetchNpk = async (stage: Stage, body: Json, signal?: AbortSignal): Promise<Reply> =>
  stage.wire.post('/devices/pair-fetch-npk', body, { shape: stage.shape, signal });
const wrap = async (stage: Stage, body: Json, device = stage.first): Promise<Reply> =>
  stage.wire.post('/devices/pair-wrap', body, stage.as(stage.shape, device));
const requests = async (stage: Stage, device = stage.first): Promise<Json[]> =>
  (await stage.wire.get('/devices/pair-requests', stage.as(stage.shape, device))).list('requests').map(camel);
const isDevice = async (stage: Stage, id: unknown): Promise<boolean> =>
  (await stage.wire.get('/devices', stage.as('a'))).list('devices').some((device) => device['id'] === id);

/** Fields of `wanted` whose value in `found` differs. */
const others = (found: Json, wanted: Json): string[] =>
  Object.entries(wanted)
    .filter(([key, value]) => JSON.stringify(found[key]) !== JSON.stringify(value))
    .map(([key, value]) => `${key} is ${JSON.stringify(found[key])}, not ${JSON.stringify(value)}`);

/** The same, and the fields of `found` that `wanted` lacks. */
const exactly = (found: Json, wanted: Json): string[] => [
  ...others(found, wanted),
  ...Object.keys(found).filter((key) => !(key in wanted)),
];

const steps: Case = {
  ids: ['PAIR-01', 'PAIR-04', 'PAIR-08', 'PAIR-11', 'PAIR-12', 'PAIR-14', 'PAIR-15', 'PAIR-17', 'DEV-12'],
  async run(stage, check) {
    const { wire, shape, first, second, world } = stage;
    const [mine, theirs] = [await stage.watch(first), await stage.watch(second)];
    const [code, ephemeral] = [newCode(), epk()];
    const spell = (bytes: unknown): unknown => spelled(shape, bytes);
    const reply = await wire.post('/devices/pair-init', { code, epk: ephemeral }, stage.as());
    const { lookupId, expiresAt, code: given } = fields(reply.body);
    const lasts = Math.abs(Number(expiresAt) - Date.now() - 300_000) < 60_000;
    check.of(
      'PAIR-01',
      reply,
      reply.status === 200 && typeof lookupId === 'string' && given === code && lasts,
      '{lookupId, code, expiresAt}, five minutes ahead',
    );
    const fetched = await fetchEpk(stage, code);
    check.same(
      'PAIR-04',
      exactly(fields(fetched.body), { epk: spell(ephemeral), expiresAt, tenantId: world.tenantId }),
      [],
      'fields that differ',
    );
    const body = await world.npkBody(code, { name: 'Phone', glyph: 'tablet', host: 'sync.example.org' });
    const held = fetchNpk(stage, body);
    const { deviceId, host, name, glyph } = body;
    const request = {
      lookupId,
      code,
      deviceId,
      host,
      pubkey: spell(body['pubkey']),
      name,
      glyph,
      attestation: spell(body['attestation']),
      expiresAt,
    };
    check.same(
      'PAIR-11',
      others(fields(await mine.next('pair_request')), request),
      [],
      'fields of the frame that differ',
    );
    const open = await requests(stage);
    check.same(
      'PAIR-14',
      [open.length, exactly(open[0] ?? {}, request)],
      [1, []],
      'number of requests, and fields that differ',
    );
    check.same('PAIR-14', await requests(stage, second), [], 'requests listed for another device');
    check.same('PAIR-17', await isDevice(stage, deviceId), false, 'whether the new device is listed before the wrap');
    const release = wrapBody(code);
    const wrapped = await wire.post('/devices/pair-wrap', release, stage.as());
    check.of('PAIR-15', wrapped, wrapped.status === 200 && wrapped.at('ok') === true, '{ok: true}');
    const paired = await held;
    check.outcome('PAIR-08', paired, '200');
    const got = fields(paired.body);
    const { wrappedMasterKey, deviceCert, confirmation } = release;
    check.same(
      'PAIR-08',
      exactly(got, {
        device: got['device'],
        token: got['token'],
        wrappedMasterKey: spell(wrappedMasterKey),
        deviceCert: spell(deviceCert),
        confirmation: spell(confirmation),
      }),
      [],
      'fields that differ',
    );
    check.same(
      'PAIR-08',
      others(fields(got['device']), { id: deviceId, name, glyph, pubkey: spell(body['pubkey']) }),
      [],
      'fields of `device` that differ',
    );
    const device = stage.adopt({ ...first, id: String(deviceId), token: String(got['token']) });
    check.same(
      'PAIR-08',
      (await wire.get('/me', { token: device.token })).at('device.id'),
      deviceId,
      'device id in /me with the new token',
    );
    for (const socket of [mine, theirs])
      check.same(
        'DEV-12',
        fields((await socket.next('device_joined'))['device'])['id'],
        deviceId,
        'device id in device_joined',
      );
    check.same('PAIR-12', theirs.of('pair_request').length, 0, 'number of pair_request frames to another device');
    check.same('PAIR-14', await requests(stage), [], 'requests after the wrap');
  },
};

const codes: Case = {
  ids: ['PAIR-02', 'PAIR-03', 'PAIR-05'],
  async run(stage, check) {
    const { wire, second } = stage;
    const code = await start(stage);
    const taken = await wire.post('/devices/pair-init', { code, epk: epk() }, stage.as(stage.shape, second));
    check.outcome('PAIR-02', taken, '409 conflict', 'a code in use');
    const upper = { code: code.toUpperCase(), epk: epk() };
    const spelt = await wire.post('/devices/pair-init', upper, stage.as(stage.shape, second));
    check.outcome('PAIR-02', spelt, '409 conflict', 'a code in use, in upper case');
    const next = await start(stage);
    check.outcome('PAIR-03', await fetchEpk(stage, code), '400 pair_invalid', 'the old code after a new session');
    for (const one of [next, ` ${next.toUpperCase().replaceAll(' ', '-')}  `])
      check.outcome('PAIR-03', await fetchEpk(stage, one), '200', 'the new code, in any spelling');
    for (const unknown of [newCode(), 'one two three', 'x']) {
      check.outcome('PAIR-05', await fetchEpk(stage, unknown), '400 pair_invalid', 'an unknown code');
      const asked = await fetchNpk(stage, await stage.world.npkBody(unknown));
      check.outcome('PAIR-05', asked, '400 pair_invalid', 'an unknown code');
      check.outcome('PAIR-05', await wrap(stage, wrapBody(unknown)), '400 pair_invalid', 'an unknown code');
    }
    for (const bad of [{}, { code: 7 }, { code: '' }, { code: null }, { code: 'x'.repeat(5_000) }]) {
      const reply = await wire.post('/devices/pair-fetch-epk', bad, { shape: stage.shape });
      check.outcome('PAIR-05', reply, CODES.validation[stage.shape], 'a body without a code');
    }
  },
};

const late: Case = {
  ids: ['PAIR-06', 'PAIR-28'],
  needs: 'slow',
  once: true,
  async run(stage, check) {
    const code = await start(stage);
    await stage.world.pause(301_000);
    check.outcome('PAIR-06', await fetchEpk(stage, code), '400 pair_expired', 'after 301 s');
    const body = await stage.world.npkBody(code);
    check.outcome('PAIR-06', await fetchNpk(stage, body), '400 pair_expired', 'after 301 s');
    check.outcome('PAIR-28', await fetchNpk(stage, { ...body, withdraw: true }), '400 pair_expired', 'after 301 s');
    check.outcome('PAIR-06', await wrap(stage, wrapBody(code)), '400 pair_expired', 'after 301 s');
  },
};

/** Allowance for a busy machine. */
const GRACE_MS = 10_000;

const pending: Case = {
  ids: ['PAIR-07'],
  needs: 'slow',
  once: true,
  async run(stage, check) {
    const code = await start(stage);
    const held = fetchNpk(stage, await stage.world.npkBody(code));
    await waitForRequest(stage.wire, stage.first);
    await stage.world.pause(27_000);
    const late = new Promise<undefined>((resolve) => setTimeout(resolve, GRACE_MS));
    const reply = await Promise.race([held, late]);
    if (reply === undefined) check.ok('PAIR-07', false, 'an answer after 25 s', 'none');
    else
      check.of('PAIR-07', reply, reply.status === 202 && reply.at('status') === 'pending', '202 {status: "pending"}');
    await wrap(stage, { code, reject: true });
  },
};

const holding: Case = {
  ids: ['PAIR-09', 'PAIR-10', 'PAIR-24'],
  async run(stage, check) {
    const code = await start(stage);
    const body = await stage.world.npkBody(code);
    for (let round = 0; round < 5; round++) {
      const gone = new AbortController();
      const lost = fetchNpk(stage, body, gone.signal).catch(() => undefined);
      await waitForRequest(stage.wire, stage.first);
      const other = await fetchNpk(stage, { ...body, pubkey: epk() });
      const refusals = ['400 pair_invalid', '403 password_required'];
      check.outcome('PAIR-10', other, refusals, 'another pubkey on a taken session');
      gone.abort();
      check.ok('PAIR-24', (await lost) === undefined, 'no answer to a call whose client has gone');
    }
    const older = fetchNpk(stage, body);
    await new Promise((resolve) => setTimeout(resolve, 200));
    const newer = fetchNpk(stage, body);
    const ended = await Promise.race([older, newer]);
    check.outcome('PAIR-24', ended, '202', 'one of two held calls of a device ends at once');
    check.outcome('PAIR-09', await wrap(stage, wrapBody(code)), '200', 'the wrap');
    const replies = await Promise.all([older, newer]);
    const won = replies.find(({ status }) => status === 200);
    check.same(
      'PAIR-24',
      replies.map(({ status }) => status).sort(),
      [200, 202],
      'statuses of two held calls of one device',
    );
    if (won === undefined)
      return (
        check.ok(
          'PAIR-09',
          false,
          'the call that went on waiting gets the result',
          replies.map(({ outcome }) => outcome),
        ),
        undefined
      );
    stage.adopt({ ...stage.first, id: won.text('device.id'), token: won.text('token') });
    check.same('PAIR-09', won.at('device.id'), body['deviceId'], 'device id in the result');
    const again = await fetchNpk(stage, body);
    check.of('PAIR-09', again, again.at('device.id') === body['deviceId'], 'the result again, to the same pubkey');
  },
};

const resent: Case = {
  ids: ['PAIR-13'],
  async run(stage, check) {
    const code = await start(stage);
    const held = fetchNpk(stage, await stage.world.npkBody(code));
    await waitForRequest(stage.wire, stage.first);
    const socket = await stage.watch(stage.first);
    check.same('PAIR-13', (await socket.next('pair_request'))['code'], code, 'code of the frame after caught_up');
    await wrap(stage, { code, reject: true });
    await held;
    const later = await stage.watch(stage.first);
    const marker = await stage.written({}, stage.second);
    await untilVersion(later, marker.version);
    check.same(
      'PAIR-13',
      later.of('pair_request').length,
      0,
      'number of pair_request frames after the session was rejected',
    );
    check.ok('PAIR-13', changesOf(later.frames).length === 1, 'the socket is live');
  },
};

const reject: Case = {
  ids: ['PAIR-16', 'PAIR-18', 'PAIR-19'],
  async run(stage, check) {
    const code = await start(stage);
    check.refused('PAIR-16', await wrap(stage, wrapBody(code)), 'a wrap before a new device has called');
    const body = await stage.world.npkBody(code);
    const held = fetchNpk(stage, body);
    await waitForRequest(stage.wire, stage.first);
    const strange = await wrap(stage, wrapBody(code), stage.second);
    check.outcome('PAIR-16', strange, '400 pair_invalid', 'a wrap by a device that did not start it');
    check.refused('PAIR-16', await wrap(stage, { code, reject: true }, stage.second), 'a reject by that device');
    const answer = await wrap(stage, { code, reject: true });
    check.of('PAIR-18', answer, answer.status === 200 && answer.at('ok') === true, '{ok: true}');
    check.outcome('PAIR-18', await held, '400 pair_invalid', 'what the new device gets');
    check.outcome('PAIR-19', await fetchEpk(stage, code), '400 pair_invalid', 'after the reject');
    check.outcome('PAIR-19', await fetchNpk(stage, body), '400 pair_invalid', 'after the reject');
    check.refused('PAIR-19', await wrap(stage, wrapBody(code)), 'a wrap after the reject');
    check.same('PAIR-19', await isDevice(stage, body['deviceId']), false, 'whether the rejected device is listed');
    for (const bad of [
      {},
      { wrappedMasterKey: 'x' },
      { wrappedMasterKey: randomBytes(80), deviceCert: randomBytes(31) },
      { reject: 'yes' },
    ]) {
      const reply = await wrap(stage, { code: newCode(), ...bad });
      check.of('PAIR-18', reply, reply.status === 400, 'a body that neither releases a key nor rejects is refused');
    }
  },
};

const withdrawal: Case = {
  ids: ['PAIR-27'],
  async run(stage, check) {
    const withdraw = async (body: Json, what: string): Promise<boolean> =>
      check.outcome('PAIR-27', await fetchNpk(stage, { ...body, withdraw: true }), '400 pair_invalid', what);
    const code = await start(stage);
    const body = await stage.world.npkBody(code);
    await withdraw(body, 'before the request');
    const held = fetchNpk(stage, body);
    await waitForRequest(stage.wire, stage.first);
    await withdraw({ ...body, pubkey: epk() }, 'by another key');
    check.same('PAIR-27', (await requests(stage)).length, 1, 'requests after both');
    await withdraw(body, 'by the key that has requested');
    check.outcome('PAIR-27', await held, '400 pair_invalid', 'the call that is held');
    check.same('PAIR-27', await requests(stage), [], 'requests after it');
    check.outcome('PAIR-27', await wrap(stage, wrapBody(code)), '400 pair_invalid', 'a wrap after it');

    const admitted = await start(stage);
    const other = await stage.world.npkBody(admitted);
    const waiting = fetchNpk(stage, other);
    await waitForRequest(stage.wire, stage.first);
    await wrap(stage, wrapBody(admitted));
    const paired = await waiting;
    stage.adopt({ ...stage.first, id: paired.text('device.id'), token: paired.text('token') });
    await withdraw(other, 'after the wrap');
    check.outcome('PAIR-27', await fetchNpk(stage, other), '200', 'the result again');
  },
};

const plain: Case = {
  ids: ['PAIR-20', 'DEV-14'],
  async run(stage, check) {
    const code = await start(stage);
    const held = fetchNpk(stage, await stage.world.npkBody(code, { deviceId: undefined, host: undefined }));
    const request = await waitForRequest(stage.wire, stage.first);
    check.ok(
      'PAIR-20',
      /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/.test(String(request['deviceId'])),
      'a ULID drawn by the server',
      request,
    );
    const wrapped = await wrap(stage, { code, wrappedMasterKey: randomBytes(80) });
    check.outcome('PAIR-20', wrapped, '200', 'a wrap without certificate and confirmation');
    const paired = await held;
    check.outcome('PAIR-20', paired, '200', 'the new device');
    const device = stage.adopt({ ...stage.first, id: paired.text('device.id'), token: paired.text('token') });
    check.same('PAIR-20', device.id, request['deviceId'], 'id of the registered device');
    check.outcome('PAIR-20', await stage.wire.get('/me', { token: device.token }), '200', 'its token');
    const list = (await stage.wire.get('/devices', stage.as('a'))).list('devices');
    check.same('DEV-14', list.find(({ id }) => id === device.id)?.['cert'], null, 'cert of a device without one');
    check.outcome(
      'DEV-14',
      await stage.wire.patch(`/devices/${device.id}`, { cert: randomBytes(32) }, stage.as()),
      '200',
      'a cert of random bytes',
    );
  },
};

const known: Case = {
  ids: ['PAIR-21'],
  async run(stage, check) {
    const code = await start(stage);
    const reply = await fetchNpk(stage, await stage.world.npkBody(code, { deviceId: stage.second.id }));
    check.outcome('PAIR-21', reply, '409 device_exists');
    const lost = await stage.join({ deviceId: newId() });
    await stage.world.revoke(lost);
    const again = await fetchNpk(stage, await stage.world.npkBody(await start(stage), { deviceId: lost.id }));
    check.outcome('PAIR-21', again, '409 device_exists', 'the id of a revoked device');
  },
};

const MOST_TRIED = 120;

const most: Case = {
  ids: ['PAIR-22'],
  needs: 'slow',
  once: true,
  async run(stage, check) {
    for (let count = 0; count < MOST_TRIED; count++) {
      const code = await start(stage);
      const held = fetchNpk(stage, await stage.world.npkBody(code));
      const first = await Promise.race([held, waitForRequest(stage.wire, stage.first).then(() => undefined)]);
      if (first !== undefined) {
        check.outcome('PAIR-22', first, '409 device_limit', `a device beyond ${stage.world.ids.length}`);
        return;
      }
      await wrap(stage, wrapBody(code));
      const paired = await held;
      stage.adopt({ ...stage.first, id: paired.text('device.id'), token: paired.text('token') });
    }
    check.skip('PAIR-22', `no limit was met by ${MOST_TRIED} devices`);
  },
};

export const pairing: readonly Case[] = [
  steps,
  codes,
  late,
  pending,
  holding,
  resent,
  reject,
  withdrawal,
  plain,
  known,
  most,
];
