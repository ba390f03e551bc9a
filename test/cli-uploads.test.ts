/** Files of the terminal that were interrupted: listed, gone on with, given up. */
import { randomBytes } from 'node:crypto';
import { utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import t, { type Test } from 'tap';
import { EXIT } from '../src/terminal/terminal.js';
import { machine, type Json, type Machine } from './support/cli.js';
import { next, world } from './support/client-world.js';

const BYTES = randomBytes(12 * 1024 * 1024);

async function scene(t: Test): Promise<{ readonly desk: Machine; readonly path: string; away: () => Promise<void> }> {
  const made = await world(t);
  const desk = await machine(t);
  const rewrapped = next(made.first, 'rewrapped');
  const offer = await made.first.device.offerPairing(() => true);
  const joining = desk.json(['join', made.url, ...offer.words.split(' '), '--name', 'Desk']);
  await Promise.all([joining, offer.joined, rewrapped]);
  const path = join(desk.home, 'film.mp4');
  writeFileSync(path, BYTES);
  const truth = desk.tap.blobs;
  const away = async (): Promise<void> => {
    let parts = 0;
    desk.tap.blobs = (url, init) =>
      ++parts > 1 ? Promise.resolve(new Response('', { status: 418 })) : truth(url, init);
    const { code, notes } = await desk.call(['put', '--file', path]);
    t.equal(code, EXIT.refused, notes);
    t.match(notes, /41 % is with the server.*same command goes on/s);
    desk.tap.blobs = truth;
  };
  return { desk, path, away };
}

t.test('CBLOB-49: an upload that was interrupted is listed, and the same command goes on with it', async (t) => {
  const { desk, path, away } = await scene(t);
  t.match(await desk.call(['uploads']), { out: /Nothing was left/ });
  await away();
  const [left] = (await desk.json(['uploads']))['uploads'] as Json[];
  t.match(left, { type: 'video', file: path, size: BYTES.length });
  t.match((await desk.call(['uploads'])).out, /41 % +12\.6 MB +just now +.*film\.mp4/);
  const put = await desk.json(['put', '--file', path, '--set', 'title=Film']);
  t.equal(put['id'], left?.['id']);
  t.match(await desk.json(['uploads']), { uploads: [] });
  t.ok((await desk.call(['get', String(put['id'])])).bytes.equals(BYTES));
  const again = await desk.json(['put', '--file', path]);
  t.not(again['id'], put['id'], 'afterwards it is a new item');
});

t.test('CBLOB-49: an upload is given up by its path, and a file that changed begins anew', async (t) => {
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
