/** Several servers in one DATABASE_URL, and which of them is used. */
import t from 'tap';
import { databaseAddress } from '../src/protocol/database-url.js';
import { isConnectionLoss, openClient } from '../src/server/storage/database.js';
import { freePort } from './support/free-port.js';
import { testDatabase } from './support/postgres.js';

t.test('FAIL-06: a list of hosts is read as by libpq, and any other text is refused', (t) => {
  const servers = (url: string): readonly string[] | undefined => databaseAddress(url)?.servers;
  t.strictSame(databaseAddress('postgres://u:p@h:5432/d'), { servers: ['postgres://u:p@h:5432/d'], writable: false });
  t.strictSame(databaseAddress('postgresql://u:p@one:1,two:2/d?sslmode=require'), {
    servers: ['postgresql://u:p@one:1/d?sslmode=require', 'postgresql://u:p@two:2/d?sslmode=require'],
    writable: true,
  });
  t.strictSame(servers('postgres://one,two:2,[::1]:3/d'), [
    'postgres://one/d',
    'postgres://two:2/d',
    'postgres://[::1]:3/d',
  ]);
  t.strictSame(servers('postgres://u:a%40b%2Cc@one,two/d'), [
    'postgres://u:a%40b%2Cc@one/d',
    'postgres://u:a%40b%2Cc@two/d',
  ]);
  t.strictSame(databaseAddress('postgres://u@h/d?target_session_attrs=read-write'), {
    servers: ['postgres://u@h/d'],
    writable: true,
  });
  t.strictSame(servers('postgres://one,two/d?target_session_attrs=primary&sslmode=disable'), [
    'postgres://one/d?sslmode=disable',
    'postgres://two/d?sslmode=disable',
  ]);
  t.strictSame(servers('postgres:///d?host=/run/postgresql'), ['postgres:///d?host=/run/postgresql']);
  const nine = Array.from({ length: 9 }, (_, n) => `h${n}`).join(',');
  for (const wrong of [
    'postgres://one,/d',
    'postgres://,/d',
    'postgres://one,two',
    'postgres://one,two/',
    'postgres://one:x,two/d',
    'postgres://one:70000,two/d',
    `postgres://${nine}/d`,
    'postgres://one,two/d?target_session_attrs=standby',
    'postgres://one/d?target_session_attrs=any',
    'postgres:///d?host=/a,/b',
    'mysql://one,two/d',
    'one,two',
    '',
  ])
    t.equal(databaseAddress(wrong), undefined, wrong);
  t.end();
});

t.test('FAIL-06: the host that answers is used, and where none does the error names each', async (t) => {
  const { url } = await testDatabase(t);
  const { host } = new URL(url);
  const away = `127.0.0.1:${await freePort()}`;
  const listed = (...hosts: readonly string[]): string => url.replace(host, hosts.join(','));
  for (const list of [listed(away, host), listed(host, away)]) {
    const client = await openClient({ url: list, name: 'tests', onLost: () => undefined });
    t.equal(`${client.host}:${client.port}`, host);
    await client.end();
  }
  const nobody = await openClient({ url: listed(away, away), name: 'tests', onLost: () => undefined }).catch(
    (error: unknown) => error,
  );
  t.ok(isConnectionLoss(nobody), 'a connection loss, since another attempt may find one');
  t.match(String(nobody), new RegExp(`${away} does not answer \\(ECONNREFUSED\\), ${away}`));
  t.notMatch(String(nobody), new URL(url).password);
});
