/** Errors. */
import { randomBytes } from 'node:crypto';
import { CATALOGUE, codeOf, statusOf, type ErrorName } from '../../../src/protocol/errors.js';
import { claimBody, newCode, newId, writeBody } from '../../support/devices.js';
import { spelled, UpgradeRefused, type Ask, type Shape } from '../../support/wire.js';
import { CODES, type Case, type Stage } from '../stage.js';

/** '<status> <code>' of every refusal of the catalogue, in a shape. */
const known = (shape: Shape): Set<string> =>
  new Set((Object.keys(CATALOGUE) as ErrorName[]).map((name) => `${statusOf(name, shape)} ${codeOf(name, shape)}`));

interface Probe {
  readonly method: string;
  readonly path: string;
  readonly body?: unknown;
  readonly ask?: Ask;
}

function probes(stage: Stage): Probe[] {
  const token = { token: stage.first.token };
  return [
    { method: 'GET', path: '/me' },
    { method: 'GET', path: '/me', ask: { token: 'x' } },
    { method: 'GET', path: '/nothing' },
    { method: 'PUT', path: '/items', ask: token },
    { method: 'POST', path: '/items', body: '{', ask: token },
    { method: 'POST', path: '/items', body: 'x'.repeat(300_000), ask: token },
    { method: 'POST', path: '/items', body: '[]', ask: token },
    { method: 'DELETE', path: `/items/${newId()}`, ask: token },
    { method: 'PATCH', path: '/bins/nowhere', body: '{}', ask: token },
    { method: 'POST', path: '/bins', body: `{"id":"${newId()}","slug":"inbox"}`, ask: token },
    { method: 'DELETE', path: '/bins/inbox', ask: token },
    { method: 'PATCH', path: `/devices/${newId()}`, body: '{"name":"x"}', ask: token },
    { method: 'POST', path: '/devices/bootstrap', body: claimBody({ claimToken: stage.world.options.claimToken }) },
    { method: 'POST', path: '/devices/bootstrap/restart', ask: { token: 'x' } },
    { method: 'POST', path: '/devices/pair-fetch-epk', body: { code: newCode() } },
    { method: 'POST', path: '/password/set', body: '{"password":7}', ask: token },
    {
      method: 'POST',
      path: `/items/${newId()}/reconcile`,
      body: { binId: 'x1', version: 99, sig: randomBytes(32) },
      ask: token,
    },
  ];
}

const refusals: Case = {
  ids: ['ERR-01', 'ERR-02', 'ERR-03'],
  async run(stage, check) {
    const { wire, shape } = stage;
    const catalogue = known(shape);
    const seen = new Set<string>();
    for (const { method, path, body, ask } of probes(stage)) {
      const reply = await wire.ask(method, path, { ...ask, shape, body });
      const [code, message] = [reply.at('error.code'), reply.at('error.message')];
      const json = /^application\/json/.test(reply.headers['content-type'] ?? '');
      const whole = json && typeof code === 'string' && typeof message === 'string' && reply.status >= 400;
      check.of('ERR-01', reply, whole, 'a refusal in JSON with the texts error.code and error.message');
      check.of('ERR-03', reply, catalogue.has(reply.outcome), `status and code of the catalogue, in ${shape}`);
      const hint = shape === 'b' ? `/docs/errors#${String(code)}` : undefined;
      check.of('ERR-02', reply, reply.at('error.hint') === hint, `hint ${hint ?? 'absent'}`);
      seen.add(reply.outcome);
    }
    check.ok('ERR-03', seen.size >= 12, 'twelve refusals that differ', [...seen].join(', '));
  },
};

const NOT_JSON: readonly (string | Buffer)[] = [
  '',
  '{',
  '{}}',
  'undefined',
  "{'a':1}",
  '{"a":1,}',
  '\uFEFF{}',
  '{"a":NaN}',
  Buffer.from([0x7b, 0x22, 0xff, 0x22, 0x3a, 0x31, 0x7d]),
];
const NO_OBJECT: readonly string[] = ['[]', 'null', '"x"', '7', 'true', '{}'];
const TYPES = [
  'text/plain',
  'application/x-www-form-urlencoded',
  'multipart/form-data; boundary=x',
  'application/jsonp',
  'application/json; charset=latin1',
  '',
];

const bodies: Case = {
  ids: ['ERR-04', 'ERR-05', 'ERR-06', 'ERR-07'],
  async run(stage, check) {
    const { wire, shape } = stage;
    const invalid = CODES.validation[shape];
    for (const body of NOT_JSON)
      check.outcome('ERR-06', await wire.post('/items', body, stage.as()), invalid, 'a body that is no JSON');
    for (const body of NO_OBJECT)
      check.outcome('ERR-04', await wire.post('/items', body, stage.as()), invalid, 'a body that is no item');
    const good = (): string => JSON.stringify(spelled(shape, writeBody(shape, stage.item())));
    for (const type of TYPES) {
      const reply = await wire.post('/items', good(), { ...stage.as(), headers: { 'content-type': type } });
      check.outcome('ERR-07', reply, invalid, `content type '${type}'`);
    }
    for (const type of ['application/json', 'application/json; charset=utf-8', 'Application/JSON;charset=UTF-8']) {
      const reply = await wire.post('/items', good(), { ...stage.as(), headers: { 'content-type': type } });
      check.outcome('ERR-07', reply, '200', `content type '${type}' is JSON`);
    }
    const fields =
      shape === 'a'
        ? ['id', 'binId', 'type', 'ts', 'payloadEnc']
        : ['id', 'bin_id', 'type', 'ts', 'nonce', 'ct', 'wrapped'];
    for (const field of fields) {
      const bad = JSON.stringify({ ...(JSON.parse(good()) as object), [field]: undefined });
      const reply = await wire.post('/items', bad, stage.as());
      check.outcome('ERR-04', reply, invalid, `a write without ${field}`);
      const { path, rule } = (reply.at('error.details') ?? {}) as { path?: unknown; rule?: unknown };
      const told =
        String(path).startsWith(field) && typeof rule === 'string' && String(reply.at('error.message')).includes(field);
      check.of('ERR-05', reply, told, `the message names ${field}; details.path does, and details.rule is a text`);
    }
  },
};

const order: Case = {
  ids: ['ERR-08', 'ERR-09', 'ERR-10'],
  async run(stage, check) {
    const { wire, shape } = stage;
    const refused = await wire.connect({ token: 'x', shape }).then(
      () => undefined,
      (error: unknown) => (error instanceof UpgradeRefused ? error.reply : undefined),
    );
    if (refused === undefined) check.ok('ERR-08', false, 'an upgrade with a bad token is refused by a reply', 'none');
    else {
      const { code, message, hint } = (refused.at('error') ?? {}) as Record<string, unknown>;
      const hinted = shape === 'a' || hint === `/docs/errors#${String(code)}`;
      check.of(
        'ERR-08',
        refused,
        typeof code === 'string' && typeof message === 'string' && hinted,
        'the error body of any refusal',
      );
    }
    for (const path of ['/nowhere', '/items/a/b'])
      check.outcome('ERR-10', await wire.get(path, { shape }), '404 not_found', 'an unknown path without a token');
    const bad = `POST /nowhere HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n`;
    const text = await wire.raw(bad);
    check.ok('ERR-09', /^HTTP\/1\.1 400/.test(text), `400 to ${JSON.stringify(bad)}`, text.slice(0, 300));
  },
};

export const errors: readonly Case[] = [refusals, bodies, order];
