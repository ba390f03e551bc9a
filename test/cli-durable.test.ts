/** What the command line keeps across its processes: queued changes, also of a process that was killed. */
import t from 'tap';
import { EXIT } from '../src/terminal/terminal.js';
import { runHere, spawnCli, type Ended, type Json } from './support/cli.js';
import { HttpProxy } from './support/doctor.js';
import { temporaryFolder } from './support/postgres.js';
import { runServer } from './support/server.js';

t.test('CLI-19: a queued write is sent by the next command, once, also where the process was killed', async (t) => {
  const { port } = await runServer(t);
  const proxy = await HttpProxy.before(t, port);
  /** What the proxy does with item writes: it passes them on, cuts them off, or holds them while the test acts. */
  let writes: 'pass' | 'cut' | (() => void) = 'pass';
  proxy.answer = ({ method, url, socket }) => {
    if (writes === 'pass' || method === 'GET' || url?.startsWith('/api/items') !== true) return false;
    if (writes === 'cut') socket.destroy();
    else writes();
    return true;
  };
  const home = await temporaryFolder(t);
  // Each call opens the files anew, as a process does.
  const run = (...argv: string[]): Promise<Ended> => runHere(home, ['--json', ...argv]);
  const titles = async (): Promise<unknown> => {
    const ended = await run('list');
    if (ended.code !== 0) throw new Error(ended.stderr);
    return (JSON.parse(ended.stdout) as { items: Json[] }).items.map(({ title, pending }) => [title, pending]);
  };
  t.equal((await run('claim', proxy.url, '--show-phrase')).code, EXIT.ok);

  writes = 'cut';
  // Nothing but the files connects this one to the next.
  const queued = await spawnCli(t, ['--json', 'put', 'kept'], { home }).ended;
  t.match(queued, { code: EXIT.ok, stderr: /queued/ });
  t.match(JSON.parse(queued.stdout), { queued: true });
  t.match(JSON.parse((await run('list', '--local')).stdout), { items: [{ title: 'kept', pending: true }] });
  writes = 'pass';
  t.same(await titles(), [['kept', false]], 'the write is sent before the command shows anything');

  const put = spawnCli(t, ['put', 'killed in the middle'], { home });
  writes = () => put.kill('SIGKILL');
  t.equal((await put.ended).signal, 'SIGKILL');
  writes = 'pass';
  t.same(await titles(), [
    ['killed in the middle', false],
    ['kept', false],
  ]);
  const local = await run('list', '--local');
  t.match(JSON.parse(local.stdout), { items: { length: 2 } }, 'all items are on this machine, without the server');
});
