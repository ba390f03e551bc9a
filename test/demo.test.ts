/** The demo's output, and how it waits for events. */
import t from 'tap';
import { next } from '../src/demo/expecting.js';
import { CheckFailed, Narrator } from '../src/demo/narrator.js';
import { paletteOf } from '../src/terminal/output.js';
import { Emitter } from '../src/sdk/events.js';

const plain = paletteOf({ colours: false });

t.test('a line is printed at once, under the title of its step', async (t) => {
  let shown = '';
  const narrator = new Narrator((text) => {
    shown += text;
  }, plain);
  const result = await narrator.play('A step', async () => {
    t.match(shown, /1 {2}A step\n$/, 'the title first');
    narrator.say('something is under way');
    t.match(shown, /something is under way\n$/, 'at once, not when the step is over');
    await Promise.resolve();
    narrator.check(true, 'it holds');
    t.match(shown, /✓ it holds\n$/);
    narrator.measured('it took', 12);
    return 7;
  });
  t.equal(result, 7);
  t.match(shown, /this step took +\d/);
  t.equal(narrator.checked, 1);
});

t.test('a failed check is printed, and ends its step', async (t) => {
  let shown = '';
  const narrator = new Narrator((text) => {
    shown += text;
  }, plain);
  const step = narrator.play('A step', () => {
    narrator.check(false, 'it holds');
    return Promise.resolve();
  });
  await t.rejects(step, CheckFailed);
  t.match(shown, /✗ it holds\n.*failed\n$/);
  t.equal(narrator.checked, 0);
});

t.test('waiting for an event gives the event, or rejects for the caller that awaits it', async (t) => {
  const emitter = new Emitter(() => undefined);
  const seen = next(emitter, 'delete', ({ id }) => id === 'b');
  emitter.emit('delete', { id: 'a', version: 1, live: true });
  emitter.emit('delete', { id: 'b', version: 2, live: true });
  t.match(await seen, { id: 'b', version: 2 });

  const unhandled: unknown[] = [];
  const note = (reason: unknown): void => void unhandled.push(reason);
  process.on('unhandledRejection', note);
  t.teardown(() => process.off('unhandledRejection', note));
  let never = Promise.reject<unknown>(new Error('not asked yet'));
  never.catch(() => undefined);
  // `next` stops listening in the turn in which it gives up; an unhandled rejection is reported after that turn.
  await new Promise<void>((givenUp) => {
    never = next({ on: () => givenUp }, 'revoked', () => true, 1);
  });
  await new Promise((resolve) => setImmediate(resolve));
  t.same(unhandled, [], 'nothing awaits it yet');
  await t.rejects(never, { message: 'no "revoked" came within 0.001 s' });
});
