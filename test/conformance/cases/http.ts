/** HTTP. */
import { newId } from '../../support/devices.js';
import { BODIES, PATH_IDS, QUERIES, RAW, tokens } from '../../support/hostile.js';
import type { Ask, Reply } from '../../support/wire.js';
import type { Case } from '../stage.js';

const statusOf = (text: string): number => Number(/^HTTP\/1\.1 (\d{3})/.exec(text)?.[1] ?? 0);

const FRAMINGS: readonly (readonly ['HTTP-01' | 'HTTP-02', readonly string[], string])[] = [
  ['HTTP-01', ['Transfer-Encoding: gzip'], '0\r\n\r\n'],
  ['HTTP-01', ['Transfer-Encoding: gzip, chunked'], '0\r\n\r\n'],
  ['HTTP-01', ['Transfer-Encoding: xchunked'], '0\r\n\r\n'],
  ['HTTP-01', ['Transfer-Encoding: chunked', 'Transfer-Encoding: identity'], '0\r\n\r\n'],
  ['HTTP-02', ['Transfer-Encoding: chunked', 'Content-Length: 5'], '0\r\n\r\n'],
  ['HTTP-02', ['Content-Length: 5', 'Transfer-Encoding: chunked'], '0\r\n\r\n'],
  ['HTTP-02', ['Transfer-Encoding: identity', 'Content-Length: 2'], '{}'],
];

const framing: Case = {
  ids: ['HTTP-01', 'HTTP-02'],
  once: true,
  async run(stage, check) {
    const host = new URL(stage.world.options.url).host;
    for (const [id, headers, body] of FRAMINGS) {
      for (const path of ['/api/health', '/api/items']) {
        const text = await stage.wire.raw(
          `POST ${path} HTTP/1.1\r\nHost: ${host}\r\n${headers.join('\r\n')}\r\n\r\n${body}`,
        );
        const status = statusOf(text);
        const what = `one answer from 400 to 499, then the end, to POST ${path} with ${headers.join(', ')}`;
        check.ok(id, status >= 400 && status < 500 && text.split('HTTP/1.1 ').length === 2, what, text.slice(0, 200));
      }
    }
  },
};

const UNKNOWN = [
  '/',
  '/item',
  '/items/',
  '/items/a/b',
  '/items/x/y/z',
  '/devices/x/y',
  '/bins/x/y',
  '/devices/bootstrap/x',
  '/ws',
  '/blobs/x',
  '/..',
  '/%2e%2e/health',
  '/HEALTH',
];
const MULTI: readonly (readonly [string, string])[] = [
  ['POST', '/signup'],
  ['GET', '/tls-check?domain=x.test'],
  ['POST', '/billing/webhook'],
  ['GET', '/billing/portal'],
  ['POST', '/admin/test-tenants'],
  ['GET', '/admin/test-tenants'],
  ['DELETE', '/admin/test-tenants/x'],
];
const METHODS: readonly (readonly [string, string, readonly string[]])[] = [
  ['/items', 'PUT', ['GET', 'POST']],
  ['/items', 'PATCH', ['GET', 'POST']],
  [`/items/${newId()}`, 'GET', ['DELETE']],
  ['/health', 'POST', ['GET']],
  ['/me', 'DELETE', ['GET']],
  ['/bins/x', 'POST', ['PATCH', 'DELETE']],
  ['/devices/bootstrap', 'GET', ['POST']],
  ['/items/batch', 'GET', ['POST']],
];

const routes: Case = {
  ids: ['HTTP-03', 'HTTP-04', 'HTTP-15'],
  async run(stage, check) {
    const { wire, shape, first, world } = stage;
    const { adminToken } = world.options;
    const callers = [undefined, 'nonsense', first.token, adminToken].map((token) => ({
      shape,
      ...(token && { token }),
    }));
    for (const ask of callers)
      for (const path of [...UNKNOWN, '//nothing'])
        check.outcome('HTTP-03', await wire.get(path, ask), '404 not_found', path);
    for (const [path, method, allowed] of METHODS) {
      const reply = await wire.ask(method, path, { shape });
      check.outcome('HTTP-04', reply, '405 method_not_allowed');
      const allow = (reply.headers.allow ?? '').split(/, */);
      check.of(
        'HTTP-04',
        reply,
        allowed.every((one) => allow.includes(one)),
        `Allow with ${allowed.join(', ')}, not '${allow.join(', ')}'`,
      );
    }
    const status = await wire.get('/service/status', { shape });
    if (status.at('mode') !== 'single') return check.skip('HTTP-15', 'the server runs in multi mode');
    for (const ask of callers)
      for (const [method, path] of MULTI)
        check.outcome('HTTP-15', await wire.ask(method, path, ask), '404 not_found', path);
  },
};

const sizes: Case = {
  ids: ['HTTP-05', 'HTTP-06', 'BATCH-03', 'FAIR-12'],
  once: true,
  async run(stage, check) {
    const token = { token: stage.first.token };
    const table: readonly (readonly [string, string, string, number, Ask])[] = [
      ['HTTP-05', 'POST', '/items', 256 * 1024, token],
      ['BATCH-03', 'POST', '/items/batch', 1024 * 1024, token],
      ['HTTP-06', 'POST', '/bins', 64 * 1024, token],
      ['HTTP-06', 'PATCH', '/bins/x', 64 * 1024, token],
      ['HTTP-06', 'DELETE', `/items/${newId()}`, 64 * 1024, token],
      ['HTTP-06', 'POST', `/items/${newId()}/reconcile`, 64 * 1024, token],
      ['HTTP-06', 'POST', '/devices/pair-init', 64 * 1024, token],
      ['HTTP-06', 'POST', '/devices/bootstrap', 64 * 1024, {}],
      ['FAIR-12', 'POST', '/devices/reauth', 8 * 1024, {}],
      ['FAIR-12', 'POST', '/devices/pair-fetch-npk', 8 * 1024, {}],
      ['FAIR-12', 'POST', '/password/verify', 8 * 1024, {}],
    ];
    const host = new URL(stage.world.options.url).host;
    for (const [id, method, path, size, ask] of table) {
      const body = (bytes: number): string => `{"x":"${'x'.repeat(bytes - 8)}"}`;
      const fits = await stage.wire.ask(method, path, { ...ask, body: body(size) });
      check.of(id, fits, fits.status !== 413 && fits.status < 500, `${size} bytes are read`);
      for (const over of [size + 1, size * 3])
        check.outcome(id, await stage.wire.ask(method, path, { ...ask, body: body(over) }), '413 payload_too_large');
      const head = [`${method} /api${path} HTTP/1.1`, `Host: ${host}`, 'Content-Type: application/json'];
      if (ask.token !== undefined) head.push(`Authorization: Bearer ${ask.token}`);
      head.push('Transfer-Encoding: chunked', '', `${(size + 1).toString(16)}\r\n${'x'.repeat(size + 1)}\r\n0\r\n\r\n`);
      const text = await stage.wire.raw(head.join('\r\n'), (got) => got.includes('\r\n\r\n{'));
      check.ok(id, /413 [^]*payload_too_large/.test(text), `413 to ${size + 1} bytes in chunks`, text.slice(0, 200));
    }
  },
};

const allowed = (reply: Reply): unknown => reply.headers['access-control-allow-origin'];
const preflight = (origin: string): Ask => ({
  headers: {
    origin,
    'access-control-request-method': 'POST',
    'access-control-request-headers': 'authorization,content-type',
  },
});

const strangers: Case = {
  ids: ['HTTP-07'],
  once: true,
  async run(stage, check) {
    const origin = 'https://stranger.example';
    const replies = [
      await stage.wire.ask('OPTIONS', '/items', preflight(origin)),
      await stage.wire.get('/health', { headers: { origin } }),
      await stage.wire.get('/me', { headers: { origin } }),
    ];
    for (const reply of replies) check.of('HTTP-07', reply, allowed(reply) === undefined, `${origin} is not allowed`);
  },
};

const origins: Case = {
  ids: ['HTTP-08'],
  needs: 'cors',
  once: true,
  async run(stage, check) {
    const origin = String(stage.world.options.corsOrigin);
    const yes = await stage.wire.ask('OPTIONS', '/items', preflight(origin));
    const names = (yes.headers['access-control-allow-headers'] ?? '').toLowerCase();
    const good = yes.status >= 200 && yes.status < 300 && allowed(yes) === origin;
    check.of(
      'HTTP-08',
      yes,
      good && /POST/.test(yes.headers['access-control-allow-methods'] ?? ''),
      `${origin} may POST`,
    );
    check.of(
      'HTTP-08',
      yes,
      ['authorization', 'content-type'].every((name) => names.includes(name)),
      'with its headers',
    );
    const refusal = await stage.wire.get('/me', { headers: { origin } });
    check.of('HTTP-08', refusal, allowed(refusal) === origin, `${origin} may read a refusal`);
    for (const other of ['https://evil.example', `${origin}.evil.test`, 'null']) {
      const no = await stage.wire.ask('OPTIONS', '/items', preflight(other));
      check.of('HTTP-08', no, allowed(no) === undefined, `${other} is not allowed`);
    }
  },
};

const hostile: Case = {
  ids: ['HTTP-13', 'HTTP-14'],
  once: true,
  async run(stage, check) {
    const { wire, first } = stage;
    const token = { token: first.token };
    const bad = (reply: Reply, what: string): void => {
      check.of('HTTP-13', reply, reply.status >= 400 && reply.status < 500, `400 to 499 for ${what}`);
    };
    const calls: (() => Promise<void>)[] = [
      ...Object.entries(BODIES).map(
        ([name, body]) =>
          async () =>
            bad(await wire.post('/items', body, token), name),
      ),
      ...Object.entries(BODIES).map(
        ([name, body]) =>
          async () =>
            bad(await wire.post('/devices/pair-init', body, token), name),
      ),
      ...PATH_IDS.map(
        (id) => async () => bad(await wire.post(`/items/${id}/reconcile`, {}, token), `the id ${id.slice(0, 20)}`),
      ),
      ...tokens(first.token)
        .filter((one) => /^[\x20-\x7e]*$/.test(one))
        .map((one) => async () => bad(await wire.get('/me', { token: one }), 'a broken token')),
      ...QUERIES.map((query) => async () => {
        const reply = await wire.get(`/items?${query}`, token);
        check.of('HTTP-13', reply, reply.status < 500, `below 500 for the query ${query.slice(0, 30)}`);
      }),
    ];
    for (const call of calls) await call();
    for (const [name, bytes] of Object.entries(RAW)) {
      // Reads up to the end of the headers, because an answer may leave the connection open; no answer times out.
      const text = await wire.raw(bytes, (got) => /^HTTP\/1\.1 \d{3}[^]*\r\n\r\n/.test(got), 10_000).catch(() => '');
      const status = statusOf(text);
      check.ok(
        'HTTP-13',
        status === 0 || (status >= 400 && status < 500),
        `400 to 499 for ${name}`,
        text.slice(0, 120),
      );
      check.ok('HTTP-14', text !== '', `an answer to ${name}`, 'none');
    }
    const alive = await stage.me();
    check.outcome('HTTP-14', alive, '200', 'the server lives on');
  },
};

export const http: readonly Case[] = [framing, routes, sizes, strangers, origins, hostile];
