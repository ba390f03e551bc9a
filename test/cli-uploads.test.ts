/** Interrupted uploads at the command line: listed, resumed, given up. */
import { randomBytes } from 'node:crypto';
import { closeSync, openSync, readFileSync, renameSync, statSync, utimesSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import t, { type Test } from 'tap';
import type { Device } from '../src/sdk/device.js';
import { EXIT } from '../src/terminal/terminal.js';
import { joinedDesk, type Json, type Machine } from './support/cli.js';

const BYTES = randomBytes(12 * 1024 * 1024);

interface Scene {
  readonly desk: Machine;
  readonly path: string;
  /** Another device. */
  readonly first: Device;
  /** Begins to put the file, and is interrupted. */
  away(args?: readonly string[]): Promise<void>;
}

async function scene(t: Test): Promise<Scene> {
  const { desk, first } = await joinedDesk(t);
  const path = join(desk.home, 'film.mp4');
  writeFileSync(path, BYTES);
  const truth = desk.tap.blobs;
  const away = async (args: readonly string[] = []): Promise<void> => {
    let parts = 0;
    desk.tap.blobs = (url, init) =>
      ++parts > 1 ? Promise.resolve(new Response('', { status: 418 })) : truth(url, init);
    const { code, notes } = await desk.call(['put', '--file', path, ...args]);
    t.equal(code, EXIT.refused, notes);
    t.match(notes, /41 % is on the server.*same command continues/s);
    desk.tap.blobs = truth;
  };
  return { desk, path, away, first: first.device };
}

t.test('CBLOB-49: an interrupted upload is listed, and the same command resumes it', async (t) => {
  const { desk, path, away } = await scene(t);
  t.match(await desk.call(['uploads']), { out: /No interrupted upload is left/ });
  await away();
  const [left] = (await desk.json(['uploads']))['uploads'] as Json[];
  t.match(left, { type: 'video', file: path, size: BYTES.length });
  t.match((await desk.call(['uploads'])).out, /41 % +12\.6 MB +just now +.*film\.mp4/);
  const put = await desk.json(['put', '--file', path, '--set', 'title=Film']);
  t.equal(put['id'], left?.['id']);
  t.match(await desk.json(['uploads']), { uploads: [] });
  t.ok((await desk.call(['get', String(put['id'])])).bytes.equals(BYTES));
  const again = await desk.json(['put', '--file', path]);
  t.not(again['id'], put['id'], 'afterwards the same command makes a new item');
});

t.test('CBLOB-49: an interruption says how much of the file is kept and what continues it', async (t) => {
  const { desk, path } = await scene(t);
  const truth = desk.tap.blobs;
  const running = desk.start(['put', '--file', path]);
  let parts = 0;
  desk.tap.blobs = (url, init) => {
    if (++parts > 1) running.interrupt();
    return truth(url, init);
  };
  const { code, notes } = await running.result;
  t.equal(code, EXIT.interrupted, notes);
  t.match(notes, /41 % is on the server.*same command continues.*uploads.*\nInterrupted\./s);
  desk.tap.blobs = truth;
  const [left] = (await desk.json(['uploads']))['uploads'] as Json[];
  t.equal((await desk.json(['put', '--file', path]))['id'], left?.['id']);
});

t.test('CBLOB-49 CLI-42: an interruption of several files says which are written', async (t) => {
  const { desk, path } = await scene(t);
  const truth = desk.tap.blobs;
  const small = join(desk.home, 'small.txt');
  writeFileSync(small, 'small');
  const running = desk.start(['put', '--json', '--file', small, path]);
  desk.tap.blobs = (url, init) => {
    running.interrupt();
    return truth(url, init);
  };
  const { code, notes, data } = await running.result;
  t.equal(code, EXIT.interrupted, notes);
  t.match(notes, /is on the server.*Written before this: 1 file\./s);
  t.match(data, [{ items: [{ file: small }], failed: [] }]);
});

t.test('CBLOB-49: an upload is given up by its path, and a file that changed is sent anew', async (t) => {
  const { desk, path, away } = await scene(t);
  await away();
  t.match(await desk.call(['uploads', 'rm', 'other']), { code: EXIT.notFound });
  t.match(await desk.call(['uploads', 'rm']), { code: EXIT.usage });
  t.match(await desk.json(['uploads', 'rm', path]), { uploads: { length: 1 } });
  t.match(await desk.json(['uploads']), { uploads: [] });
  await away();
  const [left] = (await desk.json(['uploads']))['uploads'] as Json[];
  utimesSync(path, 5, 5);
  const put = await desk.json(['put', '--file', path]);
  t.not(put['id'], left?.['id']);
  t.ok((await desk.call(['get', String(put['id'])])).bytes.equals(BYTES));
  t.match(await desk.json(['uploads', 'rm', '--all']), { uploads: { length: 1 } });
});

t.test(
  'CBLOB-54: put resumes an upload whose item does not exist, not one over an existing or a deleted item',
  async (t) => {
    const { desk, path, away, first } = await scene(t);
    const left = async (): Promise<Json[]> => (await desk.json(['uploads']))['uploads'] as Json[];
    writeFileSync(join(desk.home, 'other.mp4'), 'a film');
    const { id } = await desk.json(['put', '--type', 'video', '--file', join(desk.home, 'other.mp4')]);
    await away(['--id', String(id)]);
    await away();
    const [over, fresh] = await left();
    t.equal(over?.['id'], id);
    t.equal((await desk.json(['put', '--file', path]))['id'], fresh?.['id']);
    t.match(await left(), [{ id }]);
    await away();
    const gone = String((await left())[1]?.['id']);
    await first.put({ id: gone, binId: 'inbox', type: 'text', payload: { text: 'mine' } });
    await first.delete(gone);
    const put = await desk.json(['put', '--file', path]);
    t.not(put['id'], gone);
    t.match(await left(), [{ id }]);
  },
);

t.test('CBLOB-64: a file that changes while it is sent is not written, whatever its timestamps say', async (t) => {
  const { desk, path } = await scene(t);
  const [truth, { atime, mtime }] = [desk.tap.blobs, statSync(path)];
  const meanwhile = (harm: () => void): void => {
    let parts = 0;
    desk.tap.blobs = (url, init) => {
      if (++parts === 2) harm();
      return truth(url, init);
    };
  };
  meanwhile(() => {
    const file = openSync(path, 'r+');
    writeSync(file, 'changed', 5);
    closeSync(file);
    utimesSync(path, atime, mtime);
  });
  const { code, notes } = await desk.call(['put', '--file', path]);
  t.equal(code, EXIT.failure, notes);
  t.match(notes, /was changed meanwhile.*nothing is writing to the file/s);
  t.match(await desk.json(['uploads']), { uploads: [] }, 'the upload is given up');
  t.match(await desk.json(['list']), { items: [] });
  meanwhile(() => renameSync(path, `${path}.moved`));
  const put = await desk.json(['put', '--file', path]);
  desk.tap.blobs = truth;
  t.ok(
    (await desk.call(['get', String(put['id'])])).bytes.equals(readFileSync(`${path}.moved`)),
    'a file that is moved is written',
  );
});

t.test(
  'CBLOB-49: the same command makes no second item where it was interrupted as the first was written',
  async (t) => {
    const { desk, path, first } = await scene(t);
    const { call } = desk;
    // The item is stored, and the user interrupts before the answer comes.
    const running = desk.start(['put', '--json', '--file', path]);
    desk.tap.alterReply = ({ method, path: of }) => {
      if (method === 'POST' && of === '/items') running.interrupt();
      return undefined;
    };
    t.match(await running.result, { code: EXIT.interrupted });
    desk.tap.alterReply = () => undefined;
    t.match((await call(['uploads'])).out, /No interrupted upload is left/);
    const put = await desk.json(['put', '--file', path]);
    t.match(put, { queued: false, type: 'video', size: BYTES.length });
    await first.pull();
    t.same(
      (await first.list()).map(({ id }) => id),
      [put['id']],
    );
    t.ok((await call(['get', String(put['id'])])).bytes.equals(BYTES));
    const again = await desk.json(['put', '--file', path]);
    t.not(again['id'], put['id'], 'it was told once: afterwards the same command makes a new item');
  },
);
