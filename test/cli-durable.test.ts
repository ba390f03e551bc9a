/** What the command line keeps across its processes: queued changes, also of a process that was killed. */
import { once } from 'node:events';
import { createServer, request, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import t from 'tap';
import { EXIT } from '../src/terminal/terminal.js';
import { runHere, spawnCli, type Ended, type Json } from './support/cli.js';
import { temporaryFolder, type WithTeardown } from './support/postgres.js';
import { runServer } from './support/server.js';

/** What the proxy does with item writes: it passes them on, cuts them off, or holds them while the test acts. */
type Fate = 'pass' | 'cut' | (() => void);

/** An HTTP proxy that decides on item writes. */
async function front(t: WithTeardown, port: number): Promise<{ readonly url: string; writes: Fate }> {
  const state: { url: string; writes: Fate } = { url: '', writes: 'pass' };
  const handle = (incoming: IncomingMessage, reply: ServerResponse): void => {
    const write = incoming.method !== 'GET' && incoming.url?.startsWith('/api/items') === true;
    if (write && state.writes === 'cut') incoming.socket.destroy();
    else if (write && typeof state.writes === 'function') state.writes();
    else {
      const { method, headers, url: path } = incoming;
      const onward = request({ host: '127.0.0.1', port, method, headers, path }, (answer) => {
        reply.writeHead(answer.statusCode ?? 502, answer.headers);
        answer.pipe(reply);
      });
      onward.on('error', () => incoming.socket.destroy());
      incoming.pipe(onward);
    }
  };
  const server = createServer(handle).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => {
    server.close();
    server.closeAllConnections();
  });
  state.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return state;
}

t.test('CLI-19: a queued write is sent by the next command, once, also where the process was killed', async (t) => {
  const { port } = await runServer(t);
  const proxy = await front(t, port);
  const home = await temporaryFolder(t);
  // Each call opens the files anew, as a process does.
  const run = (...argv: string[]): Promise<Ended> => runHere(home, ['--json', ...argv]);
  const titles = async (): Promise<unknown> => {
    const ended = await run('list');
    if (ended.code !== 0) throw new Error(ended.stderr);
    return (JSON.parse(ended.stdout) as { items: Json[] }).items.map(({ title, pending }) => [title, pending]);
  };
  t.equal((await run('claim', proxy.url, '--show-phrase')).code, EXIT.ok);

  proxy.writes = 'cut';
  const queued = await run('put', 'kept');
  t.match(queued, { code: EXIT.ok, stderr: /queued/ });
  t.match(JSON.parse(queued.stdout), { queued: true });
  t.match(JSON.parse((await run('list', '--local')).stdout), { items: [{ title: 'kept', pending: true }] });
  proxy.writes = 'pass';
  t.same(await titles(), [['kept', false]], 'the write is sent before the command shows anything');

  const put = spawnCli(t, ['put', 'killed in the middle'], { home });
  proxy.writes = () => put.kill('SIGKILL');
  t.equal((await put.ended).signal, 'SIGKILL');
  proxy.writes = 'pass';
  t.same(await titles(), [
    ['killed in the middle', false],
    ['kept', false],
  ]);
  const local = await run('list', '--local');
  t.match(JSON.parse(local.stdout), { items: { length: 2 } }, 'all items are on this machine, without the server');
});
