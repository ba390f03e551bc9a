/** The server as a process: its own PostgreSQL, its secrets, its configuration, its end (contract 4 and 14). */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdir, stat } from 'node:fs/promises';
import { join as joinPath } from 'node:path';
import { fileURLToPath } from 'node:url';
import t from 'tap';
import { claim, mustWrite, newItem } from './support/devices.js';
import { runSql, spawnServer } from './support/server.js';
import { temporaryFolder } from './support/postgres.js';

t.test(
  'CFG-03 CFG-05 CFG-06 EPOCH-06 DUR-01: without a database it starts its own, and keeps its secrets',
  async (t) => {
    const dataDir = joinPath(await temporaryFolder(t), 'data');
    const env = { TOKEN_SECRET: '', ADMIN_TOKEN: '' };
    const one = await spawnServer(t, { embedded: true, dataDir, env });
    const device = await claim(one.wire);
    t.equal(await mustWrite(one.wire, device, newItem([device.id])), 1);
    const epoch = (await one.wire.get('/service/status')).text('epoch');
    one.wire.close();
    t.equal(await one.end('SIGTERM'), 0, 'it ends when told to');
    t.match(one.output.join('\n'), /unclaimed/, 'it said that nobody owned it yet');
    const folder = joinPath(dataDir, 'secrets');
    t.equal((await stat(folder)).mode & 0o777, 0o700);
    const names = await readdir(folder);
    t.ok(names.includes('token-secret'));
    for (const name of names) t.equal((await stat(joinPath(folder, name))).mode & 0o777, 0o600, name);

    const two = await spawnServer(t, { embedded: true, dataDir, env });
    t.match((await two.wire.get('/service/status')).body, { claimed: true, epoch });
    t.equal((await two.wire.get('/me', { token: device.token })).at('server.headVersion'), 1, 'the token still counts');
    t.equal(
      (await two.wire.post('/devices/bootstrap/restart', {}, { token: 'null' })).outcome,
      '403 forbidden',
      'no admin token is ever made up',
    );
    two.wire.close();
    t.equal(await two.end('SIGTERM'), 0);
  },
);

t.test('CFG-04 CFG-07 WS-20: with a database it uses that one, and says what must be set', async (t) => {
  const server = await spawnServer(t, { env: { TOKEN_SECRET: '' } });
  const device = await claim(server.wire);
  await mustWrite(server.wire, device, newItem([device.id]));
  t.match(await runSql(server.databaseUrl, 'SELECT head FROM tenants'), [{ head: 1 }]);
  t.notOk(
    (await readdir(server.dataDir)).some((name) => /^(postgres|pg|database)/.test(name)),
    'none of its own',
  );
  t.match(server.output.join('\n'), /TOKEN_SECRET/);
  const socket = await server.wire.connect({ token: device.token });
  await socket.hello();
  const ended = server.end('SIGTERM');
  t.equal((await socket.closed).code, 1012, 'its sockets are told that it restarts');
  t.equal(await ended, 0);
});

t.test('CFG-02: a bad value stops the start', async (t) => {
  const main = fileURLToPath(new URL('../src/main.js', import.meta.url));
  const bad = {
    PORT: '70000',
    WIRE_SHAPE: 'c',
    RATE_READ_PER_S: '-1',
    TOKEN_SECRET: 'short',
    DATABASE_URL: 'mysql://x',
    PUBLIC_URL: 'ftp://x',
  };
  const child = spawn(process.execPath, [main], {
    env: { PATH: process.env['PATH'], ...bad },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk: Buffer) => (output += chunk.toString()));
  const [code] = (await once(child, 'close')) as [number];
  t.not(code, 0);
  for (const name of Object.keys(bad)) t.match(output, new RegExp(`${name}.*got.*takes`), name);
  t.notMatch(output, /short|    at /, 'no secret, no stack');
});
