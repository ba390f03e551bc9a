/** Internal failures: the database is down, a statement fails, too much is under way; and what the log holds. */
import { randomBytes } from 'node:crypto';
import { connect, type Socket } from 'node:net';
import t from 'tap';
import { edited, newCode, newId, npkBody, waitForRequest, wrapBody, write, writeBody } from './support/devices.js';
import { until } from './support/events.js';
import { Scene } from './support/scene.js';
import { ADMIN_TOKEN, databaseDown, type LogLine } from './support/server.js';
import { SHAPES, spelled, type Json, type Reply } from './support/wire.js';

t.test('ERR-14 STAT-02 STAT-05 STAT-03 LOG-04 DUR-05: calls are 503 while the database is down', async (t) => {
  const scene = await Scene.start(t);
  const { wire, first, server } = scene;
  const status = await wire.get('/service/status');
  t.match(status.body, {
    ok: true,
    mode: 'single',
    claimed: true,
    tenantId: server.tenantId,
    database: 'up',
    version: String,
    epoch: String,
  });
  const item = await scene.written();
  const health = await wire.get('/health');
  const up = await databaseDown(server.databaseUrl);
  try {
    const same = await wire.get('/health');
    t.same([same.status, same.body], [health.status, health.body]);
    const calls: readonly (readonly [string, string, unknown?])[] = [
      ['GET', '/items?since=0'],
      ['GET', '/bins'],
      ['GET', '/devices'],
      ['GET', '/me'],
      ['POST', '/bins', { id: 'x' }],
      ['POST', '/devices/pair-init', { code: newCode(), epk: randomBytes(32) }],
      ['POST', `/devices/${scene.second.id}/revoke`, {}],
      ['POST', '/password/set', { password: 'x' }],
      ['POST', '/devices/pair-fetch-epk', { code: newCode() }],
      ['GET', '/password/exists'],
      ['POST', '/devices/recover/challenge', {}],
      ['DELETE', `/items/${item.id}`],
      ['POST', `/items/${item.id}/reconcile`, { binId: 'inbox', version: 1, sig: randomBytes(32) }],
      ['POST', '/devices/reauth/challenge', { deviceId: first.id }],
      ['GET', `/blobs/${newId()}.bin/url`],
    ];
    for (const shape of SHAPES) {
      const writes: typeof calls = [
        ['POST', '/items', writeBody(shape, scene.item())],
        ['POST', '/blobs/upload-url', shape === 'a' ? { contentLength: 1 } : { size: 1 }],
      ];
      for (const [method, path, body] of [...calls, ...writes]) {
        const reply = await wire.ask(method, path, { ...scene.as(shape), body });
        t.equal(reply.outcome, '503 unavailable', `${method} ${path}`);
        t.match(reply.headers['retry-after'], /^[1-9]\d*$/);
        const id = reply.headers['x-request-id'];
        t.ok(
          id !== undefined && server.logs.some((line) => line['requestId'] === id && Number(line['level']) >= 40),
          'the cause is in the log',
        );
        t.notMatch(reply.raw, /postgres|ECONN|sql|pg_|:\d{4,5}/i, 'the cause is not in the reply');
      }
      const batch = await wire.post('/items/batch', { items: [writeBody(shape, scene.item())] }, scene.as(shape));
      t.match(batch.body, { results: [{ error: { code: 'unavailable' } }] }, 'judged alone');
      const down = await wire.get('/service/status', { shape });
      t.equal(down.status, 503);
      t.equal(down.at('error.code'), 'unavailable');
      t.ok(down.headers['retry-after'] && down.headers['x-request-id']);
    }
    t.equal((await wire.get('/nothing')).status, 404, 'a call that needs no database is answered');
    t.equal((await wire.get('/me', { token: 'x' })).status, 401);
  } finally {
    await up();
  }
  const again = edited(item);
  for (const end = Date.now() + 30_000; ;) {
    const reply = await write(wire, first, again);
    if (reply.status === 200) break;
    t.equal(reply.status, 503);
    if (Date.now() > end) throw new Error('it did not come back');
  }
  t.equal((await wire.get('/service/status')).at('database'), 'up');
  t.match(await scene.row(item.id), { version: item.version + 1 });
});

t.test('ERR-13 LOG-04: an unexpected fault is 500, with its cause in the log only', async (t) => {
  const scene = await Scene.start(t);
  await scene.server.sql('ALTER TABLE bins RENAME COLUMN slug TO secretcolumn');
  for (const shape of SHAPES) {
    const reply = await scene.wire.get('/bins', scene.as(shape));
    t.equal(reply.outcome, '500 internal');
    const id = reply.headers['x-request-id'];
    t.ok(id);
    t.notMatch(reply.raw, /slug|column|secretcolumn|SELECT|42703|stack|\.ts/i, 'the reply reveals no internals');
    t.equal(reply.at('error.hint'), shape === 'b' ? '/docs/errors#internal' : undefined);
    const line = scene.server.logs.find((entry) => entry['requestId'] === id && Number(entry['level']) >= 50);
    t.match(JSON.stringify(line), /slug/, 'the log has the cause');
  }
  await scene.server.sql('ALTER TABLE bins RENAME COLUMN secretcolumn TO slug');
  t.equal((await scene.wire.get('/bins', scene.as('a'))).status, 200, 'the server continues');
});

t.test(
  'FAIR-11 HTTP-14: half-sent bodies beyond the share of their address are refused, and no other call',
  async (t) => {
    const scene = await Scene.start(t);
    const half = `POST /api/devices/bootstrap HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nfe00\r\n${'x'.repeat(64_000)}`;
    let refused = '';
    let ends = 0;
    const open = (): Socket => {
      const socket = connect(scene.server.port, '127.0.0.1', () => void socket.write(half));
      socket.on('error', () => undefined);
      socket.on('data', (chunk: Buffer) => (refused = chunk.toString('latin1')));
      socket.on('close', () => ends++);
      return socket;
    };
    const outcomes = new Set<string>();
    const sockets: Socket[] = [];
    // 80 at once: with the 32 that are held they stay below the 125 calls under way of an address, which is another share.
    for (let wave = 1; wave <= 8; wave++) {
      sockets.push(...Array.from({ length: 80 }, open));
      await until(`refusals of wave ${wave}`, async () => {
        outcomes.add((await scene.wire.get('/password/exists')).outcome);
        return ends >= sockets.length - 40;
      });
    }
    t.same([...outcomes], ['200'], 'other calls from the same address are answered');
    t.match(refused, /^HTTP\/1\.1 429 [^]*retry-after: [1-9]\d*\r/i);
    t.equal((await scene.me()).status, 200, 'devices are served');
    t.equal((await write(scene.wire, scene.first, scene.item())).status, 200);
    for (const socket of sockets) socket.destroy();
  },
);

t.test('LOG-01 LOG-02 LOG-03: each request has one log line, and no line holds a secret', async (t) => {
  const scene = await Scene.start(t);
  const { wire, server, first } = scene;
  const secrets = new Set<string>([first.token, scene.second.token, ADMIN_TOKEN]);
  const keep = (...values: readonly unknown[]): void => {
    for (const value of values) {
      if (typeof value === 'string' && value.length > 7) secrets.add(value);
      else if (Buffer.isBuffer(value))
        for (const encoding of ['base64', 'base64url', 'hex'] as const) secrets.add(value.toString(encoding));
      else if (Array.isArray(value)) keep(...(value as unknown[]));
      else if (value !== null && typeof value === 'object') keep(...(Object.values(value) as unknown[]));
    }
  };
  const from = server.logs.length;
  let asked = 0;
  const ask = async (
    method: string,
    path: string,
    body?: Json,
    token: string | undefined = first.token,
  ): Promise<Reply> => {
    asked++;
    return wire.ask(method, path, { shape: 'a', body, ...(token === '' ? {} : { token }) });
  };
  const item = scene.item();
  keep({ ...item, id: '', binId: '', type: '' });
  await ask(
    'POST',
    '/items',
    spelled('a', {
      id: item.id,
      binId: 'inbox',
      type: 'text',
      ts: item.ts,
      payloadEnc: { ct: item.ct, nonce: item.nonce, keys: item.keys, sig: item.sig },
    }) as Json,
  );
  await ask('POST', '/items', { id: item.id, payloadEnc: { ct: 'plaintext-by-mistake' } });
  await ask('GET', '/items?since=0&limit=77');
  await ask('GET', '/nothing/secret-in-path?secret=in-query', undefined, '');
  const meta = randomBytes(40);
  await ask('POST', '/bins', { id: 'logged', meta });
  await ask('POST', '/password/set', { password: 'correct horse battery' });
  const verified = await ask('POST', '/password/verify', { password: 'correct horse battery' }, '');
  await ask('POST', '/password/verify', { password: 'wrong horse battery' }, '');
  const [code, epk] = [newCode(), randomBytes(32)];
  await ask('POST', '/devices/pair-init', { code, epk });
  await ask('POST', '/devices/pair-fetch-epk', { code }, '');
  const npk = npkBody(code, { passwordTicket: verified.text('ticket') });
  const held = ask('POST', '/devices/pair-fetch-npk', npk, '');
  await waitForRequest(wire, first);
  const release = wrapBody(code);
  await ask('POST', '/devices/pair-wrap', release);
  const paired = await held;
  const challenge = await ask('POST', '/devices/reauth/challenge', { deviceId: first.id }, '');
  await ask(
    'POST',
    '/devices/reauth',
    { deviceId: first.id, challengeId: challenge.text('challengeId'), answer: randomBytes(32) },
    '',
  );
  const ticket = (await ask('POST', '/ws-ticket', {})).text('ticket');
  await ask('DELETE', `/items/${item.id}`, { sig: item.sig });
  await (await wire.connect({ ticket })).close();
  await wire.connect({ token: 'broken-token-in-a-query' }).catch(() => undefined);
  await ask('POST', '/devices/bootstrap/restart', {}, ADMIN_TOKEN);
  keep(
    meta,
    'correct horse battery',
    'wrong horse battery',
    'plaintext-by-mistake',
    'secret-in-path',
    'in-query',
    code,
    epk,
    ticket,
    verified.text('ticket'),
    challenge.text('challenge'),
  );
  keep(
    npk['pubkey'],
    npk['attestation'],
    release,
    paired.text('token'),
    'broken-token-in-a-query',
    'limit=77',
    'since=0',
  );

  const lines: LogLine[] = server.logs.slice(from);
  const requests = lines.filter((line) => line['msg'] === 'request' && line['level'] === 20);
  const ids = new Set(requests.map((line) => line['requestId']));
  t.equal(ids.size, requests.length, 'each line has a request id of its own');
  t.ok(requests.length >= asked, `${requests.length} lines for ${asked} requests and more`);
  const posted = requests.filter((line) => line['path'] === '/api/items' && line['method'] === 'POST');
  t.same(
    posted.map((line) => [line['status'], line['tenantId'], line['deviceId']]),
    [
      [200, server.tenantId, first.id],
      [400, server.tenantId, first.id],
    ],
  );
  t.ok(ids.has(paired.headers['x-request-id']), 'a line has the id of the reply');
  const text = server.logs.map((line) => JSON.stringify(line)).join('\n');
  for (const secret of secrets) t.notOk(text.includes(secret), `${secret.slice(0, 12)}... is in no line`);
  t.notMatch(text, /[?&](since|token|ticket|shape|secret)=/, 'no line holds a query string');
  t.ok(secrets.size > 40);
});
