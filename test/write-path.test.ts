/** One write followed through the server: which files it passes on its way to the other device's socket. */
import { Session } from 'node:inspector/promises';
import t from 'tap';
import { mustWrite, newItem } from './support/devices.js';
import { TestClock } from './support/clock.js';
import { world } from './support/two-devices.js';

/** The house of the server: what the client or the test does in this process is elsewhere. */
const SERVER = /\/src\/(server|protocol|crypto)\/(.+)\.js$/;

t.test('ARCH-14: a write passes at most 16 files', async (t) => {
  const { wire, first, second, all, live } = await world(t, { clock: new TestClock() });
  const socket = await live(second);
  const write = async (): Promise<void> => {
    const item = newItem(all);
    await mustWrite(wire, first, item);
    await socket.next('item');
  };
  // The first ones load, verify and compile what the later ones find.
  for (let i = 0; i < 5; i++) await write();
  const session = new Session();
  session.connect();
  await session.post('Profiler.enable');
  await session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false });
  await session.post('Profiler.takePreciseCoverage');
  await write();
  const { result } = await session.post('Profiler.takePreciseCoverage');
  session.disconnect();
  const files = result
    .filter(({ url, functions }) => SERVER.test(url) && functions.some(({ ranges }) => (ranges[0]?.count ?? 0) > 0))
    .map(({ url, functions }) => {
      const called = functions.filter(({ ranges, functionName }) => functionName !== '' && (ranges[0]?.count ?? 0) > 0);
      return `${url.replace(/^.*\/src\//, '')}: ${called.map(({ functionName, ranges }) => `${functionName} ${ranges[0]?.count}`).join(', ')}`;
    });
  t.comment(files.join('\n'));
  t.ok(files.length > 8, 'they were found');
  t.ok(files.length <= 16, `${files.length} files`);
});
