/** HTTP details: replies without a body, requests that the HTTP library refuses by itself, queries, methods. */
import t, { type Test } from 'tap';
import { ROWS } from '../src/server/app/route-table.js';
import { ask, frontOf, tokenOf, type FrontSetup } from './support/front.js';
import { raw, type Raw } from './support/front-sockets.js';

const ORIGIN = 'https://app.example';
const PAGE = { type: 'text/html', hash: 'one', cache: 'no-cache', bytes: Buffer.from('<p>page</p>') };
const SETUP: FrontSetup = { config: { corsOrigins: [ORIGIN] }, services: { docs: () => PAGE } };

const request = (line: string, ...headers: string[]): string =>
  [`${line} HTTP/1.1`, 'Host: x', ...headers, '', ''].join('\r\n');
const PREFLIGHT = ['OPTIONS /api/items', `Origin: ${ORIGIN}`, 'Access-Control-Request-Method: POST'] as const;
const KEPT_PAGE = ['GET /docs', 'If-None-Match: "one"'] as const;
const POST = `${request('POST /api/ws-ticket', `Authorization: Bearer ${tokenOf()}`, 'Content-Type: application/json', 'Content-Length: 2')}{}`;
const CHUNKED = 'Transfer-Encoding: chunked';

const statuses = ({ got }: Raw): string[] =>
  [...got.matchAll(/HTTP\/1\.1 (\d{3}) /g)].map(([, status]) => status ?? '');

/** The heads of the replies that have no body. */
const emptyHeads = ({ got }: Raw): string[] =>
  got
    .split(/(?=HTTP\/1\.1 )/)
    .filter((reply) => /^HTTP\/1\.1 (204|304) /.test(reply))
    .map((reply) => reply.slice(0, reply.indexOf('\r\n\r\n')));

/** Sends `pair` thirty times on one connection: all at once, then each after the reply to the one before. */
async function thirtyTimes(t: Test, pair: readonly string[], expected: readonly string[]): Promise<void> {
  const { port } = await frontOf(t, SETUP);
  const all = Array.from({ length: 30 }, () => pair).flat();
  const wanted = Array.from({ length: 30 }, () => expected).flat();
  const atOnce = await raw(t, port, all.join(''));
  await atOnce.until(() => atOnce.closed || statuses(atOnce).length === wanted.length);
  t.same(statuses(atOnce), wanted, 'sent without waiting');
  const inTurn = await raw(t, port, '');
  for (const [n, text] of all.entries()) {
    inTurn.socket.write(text);
    await inTurn.until(() => inTurn.closed || statuses(inTurn).length > n);
  }
  t.same(statuses(inTurn), wanted, 'sent one after the other');
  const empty = emptyHeads(inTurn);
  t.same(
    empty.filter((head) => /\r\n(content-length|transfer-encoding|connection):/i.test(head)),
    [],
  );
}

t.test('HTTP-16: a preflight is 204 without a length, and its connection takes the next request', async (t) => {
  await thirtyTimes(t, [request(...PREFLIGHT), POST], ['204', '200']);
});

t.test('HTTP-16: a page that the client already has is 304, and its connection takes the next request', async (t) => {
  await thirtyTimes(t, [request(...KEPT_PAGE), POST], ['304', '200']);
  await thirtyTimes(t, [request('HEAD /docs', 'If-None-Match: "one"'), POST], ['304', '200']);
});

t.test('HTTP-16: HEAD has the length of GET, and its connection takes the next request', async (t) => {
  const { port } = await frontOf(t, SETUP);
  for (const path of ['/docs', '/api/health', '/api/me', '/api/nothing']) {
    const got = await ask(port, path);
    const head = await ask(port, path, { method: 'HEAD' });
    t.same([head.status, head.headers['content-length'], head.text], [got.status, got.headers['content-length'], '']);
  }
  await thirtyTimes(t, [request('HEAD /docs'), request('GET /docs')], ['200', '200']);
});

t.test('HTTP-16: where the client requests `Connection: close`, an empty reply closes the connection', async (t) => {
  const { port } = await frontOf(t, SETUP);
  for (const [line, ...headers] of [PREFLIGHT, KEPT_PAGE]) {
    const connection = await raw(t, port, request(line, ...headers, 'Connection: close'));
    await connection.until(() => connection.closed);
    t.match(connection.got, /^HTTP\/1\.1 (204|304) /);
    t.notMatch(connection.got, /\r\ncontent-length:/i);
  }
});

t.test(
  'HTTP-16: where the connection is cut after the reply, there is a body, and what follows is not run',
  async (t) => {
    const { port, actor } = await frontOf(t, SETUP);
    const smuggled = request('DELETE /api/items/01ARZ3NDEKTSV4RRFFQ69G5FAV', `Authorization: Bearer ${tokenOf()}`);
    for (const [line, ...headers] of [PREFLIGHT, KEPT_PAGE]) {
      const alone = await raw(t, port, `${request(line, ...headers, CHUNKED)}0\r\n\r\n`);
      await alone.until(() => alone.closed);
      t.match(alone.got, /^HTTP\/1\.1 200 /);
      t.match(alone.got, /\r\ncontent-length: \d{1,3}\r\n/i);
      const more = await raw(t, port, `${request(line, ...headers, CHUNKED)}0\r\n\r\n${smuggled}`);
      await more.until(() => more.closed);
      t.ok(statuses(more).length <= 1, 'at most one reply');
    }
    t.equal(actor.version, 0, 'nothing was written');
  },
);

t.test('HTTP-16: while the server stops, an empty reply carries `Connection: close`', async (t) => {
  const { port, front } = await frontOf(t, { ...SETUP, loaded: false });
  const [preflight, page] = [await raw(t, port, ''), await raw(t, port, '')];
  await ask(port, '/api/health');
  const stopped = front.close(5_000);
  // The connections are already open, and none is cut before the calls under way are answered.
  preflight.socket.write(request(...PREFLIGHT));
  page.socket.write(request(...KEPT_PAGE));
  await preflight.until(() => preflight.closed);
  await page.until(() => page.closed);
  for (const { got } of [preflight, page])
    if (got !== '') t.match(got, /^HTTP\/1\.1 (204|304) [^]*\r\nconnection: close\r\n/i);
  await stopped;
});

/** What one connection gets for these bytes. */
async function answerTo(t: Test, port: number, bytes: string): Promise<Raw> {
  const connection = await raw(t, port, bytes);
  await connection.until(() => connection.closed || statuses(connection).length > 0);
  return connection;
}

t.test('HTTP-18 ERR-01: the HTTP library itself refuses what it cannot read, in HTML', async (t) => {
  const { port, lines } = await frontOf(t);
  const html = async (name: string, bytes: string, status: string): Promise<void> => {
    const connection = await answerTo(t, port, bytes);
    await connection.until(() => connection.closed);
    t.match(connection.got, new RegExp(`^HTTP/1\\.1 ${status} [^]*\r\nConnection: close\r\n\r\n<h1>`), name);
  };
  const get = 'GET /api/health HTTP/1.1\r\nHost: x\r\n';
  await html('no Host', 'GET /api/health HTTP/1.1\r\nX: y\r\n\r\n', '400');
  await html('a length that is no number', `${get}Content-Length: x\r\n\r\n`, '400');
  await html('a length of twenty digits', `${get}Content-Length: 99999999999999999999\r\n\r\n`, '400');
  await html('a length beside an encoding', `${get}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n`, '400');
  for (const version of ['HTTP/1.0', 'HTTP/2.0', 'HTTP/1.2'])
    await html(version, `GET /api/health ${version}\r\nHost: x\r\n\r\n`, '505');
  await html('another server', 'GET http://x/api/health HTTP/1.1\r\nHost: x\r\n\r\n', '505');
  await html('a star', 'OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n', '505');
  await html('half a head of 5,000 bytes', `${get}X: ${'x'.repeat(5_000)}`, '431');
  t.same(lines, [], 'none of it reaches our code');
});

t.test('HTTP-02 HTTP-18 ERR-01: bad framing that reaches our code is refused in JSON', async (t) => {
  const { port } = await frontOf(t);
  for (const headers of ['Host: y', 'Content-Length: 2\r\nContent-Length: 2', 'Transfer-Encoding: gzip']) {
    const { got } = await answerTo(t, port, `GET /api/health HTTP/1.1\r\nHost: x\r\n${headers}\r\n\r\n`);
    t.match(got, /^HTTP\/1\.1 400 [^]*"code":"validation"/, headers);
  }
  const expected = await raw(t, port, request('POST /api/ws-ticket', 'Expect: 100-continue', 'Content-Length: 2'));
  await expected.until(() => expected.got.includes('"unauthorized"'));
  t.match(expected.got, /^HTTP\/1\.1 (100 Continue\r\n\r\nHTTP\/1\.1 )?401 /, 'a client that expects 100 Continue');
});

t.test('HTTP-19: a query of more than 4,096 characters is refused, however it is written', async (t) => {
  const { port } = await frontOf(t);
  const outcome = async (query: string): Promise<unknown> => {
    const { status, error } = await ask(port, `/api/items?${query}`);
    return status === 200 ? 200 : error['message'];
  };
  t.equal(await outcome(`x=${'a'.repeat(4_094)}`), 200);
  t.equal(await outcome('&'.repeat(4_096)), 200);
  for (const long of [`x=${'a'.repeat(4_095)}`, '&'.repeat(14_000), 'shape=b&'.repeat(1_000), '%'.repeat(9_000)])
    t.equal(await outcome(long), 'query: must be at most 4096 characters', long.slice(0, 8));
});

t.test('HTTP-20 HTTP-04: every path answers every method, on one connection', async (t) => {
  const { port } = await frontOf(t, SETUP);
  const connection = await raw(t, port, '');
  let asked = 0;
  for (const path of new Set(ROWS.map((row) => row.path))) {
    const own: string[] = ROWS.filter((row) => row.path === path).map(({ method }) => method);
    if (own.includes('GET')) own.push('HEAD');
    let ofGet = '';
    for (const method of ['GET', 'HEAD', 'OPTIONS', 'TRACE', 'PATCH', 'PROPFIND', 'get']) {
      connection.got = '';
      connection.socket.write(request(`${method} ${path.replaceAll(/:[a-z]+/g, 'x')}`, `X-N: ${asked}`));
      await connection.until(() => connection.closed || /\r\n\r\n/.test(connection.got));
      const [, status = ''] = /^HTTP\/1\.1 (\d{3})/.exec(connection.got) ?? [];
      t.match(status, own.includes(method.toUpperCase()) ? /^(200|40[014])$/ : /^405$/, `${method} ${path}`);
      const [, length = ''] = /\r\ncontent-length: (\d+)/i.exec(connection.got) ?? [];
      const body = (): string => connection.got.slice(connection.got.indexOf('\r\n\r\n') + 4);
      if (method === 'HEAD') t.equal(body(), '');
      else await connection.until(() => connection.closed || body().length >= Number(length));
      if (method === 'GET') ofGet = status;
      if (method === 'HEAD') t.equal(status, ofGet, `HEAD ${path} as GET`);
      const [, allow = ''] = /\r\nallow: (.+)\r\n/i.exec(connection.got) ?? [];
      t.same(allow.split(', ').sort(), status === '405' ? own.toSorted() : [''], `${method} ${path}: Allow`);
      asked++;
    }
  }
  t.notOk(connection.closed, `${asked} requests on one connection`);
});
