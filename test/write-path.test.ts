/** One write followed through the server: which files it passes on its way to the other device's socket. */
import { Session } from 'node:inspector/promises';
import t from 'tap';
import { mustWrite, newItem } from './support/devices.js';
import { TestClock } from './support/clock.js';
import { world } from './support/two-devices.js';

/** Files of the server: those of the client and the test, in the same process, are elsewhere. */
const SERVER = /\/src\/(server|protocol|crypto)\/(.+)\.js$/;

t.test('ARCH-14: a write passes at most 16 files', async (t) => {
  const { wire, first, second, all, live } = await world(t, { clock: new TestClock() });
  const socket = await live(second);
  const write = async (): Promise<void> => {
    const item = newItem(all);
    await mustWrite(wire, first, item);
    await socket.next('item');
  };
  // The first writes load, verify and compile what the later ones find.
  for (let i = 0; i < 5; i++) await write();
  const session = new Session();
  session.connect();
  await session.post('Profiler.enable');
  await session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false });
  await session.post('Profiler.takePreciseCoverage');
  // What a timer did meanwhile is in one of the three, the files of the write are in each.
  const passed: string[][] = [];
  for (let i = 0; i < 3; i++) {
    await write();
    const { result } = await session.post('Profiler.takePreciseCoverage');
    passed.push(
      result
        .filter(({ url, functions }) => SERVER.test(url) && functions.some(({ ranges }) => (ranges[0]?.count ?? 0) > 0))
        .map(({ url }) => url.replace(/^.*\/src\//, '')),
    );
  }
  session.disconnect();
  const files = (passed[0] ?? []).filter((file) => passed.every((one) => one.includes(file)));
  t.comment(files.join('\n'));
  t.ok(files.length > 8, 'the files were found');
  t.ok(files.length <= 16, `${files.length} files`);
});
