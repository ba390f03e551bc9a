/**
 * What a new user meets first: the output of a starting server, `npm run device`, the program without a command, the demo.
 */
import { execFile } from 'node:child_process';
import { copyFile, mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import t from 'tap';
import { ApiError } from '../src/sdk/errors.js';
import { storeError } from '../src/sdk/store/error.js';
import { checkVault } from '../src/cli/doctor/vault.js';
import type { DoctorContext } from '../src/cli/doctor/finding.js';
import { sizeText } from '../src/cli/transfer.js';
import { failureOf } from '../src/cli/failure.js';
import { repairNote } from '../src/cli/open-device.js';
import { programOf, runProgram } from '../src/cli/program.js';
import { failureFrom } from '../src/terminal/failure.js';
import { EXIT, type Terminal } from '../src/terminal/terminal.js';
import { PROJECT_ROOT } from '../src/root.js';
import { next } from '../src/demo/expecting.js';
import { CheckFailed, Narrator } from '../src/demo/narrator.js';
import { paletteOf } from '../src/terminal/output.js';
import { Emitter } from '../src/sdk/events.js';
import { until } from './support/events.js';
import { temporaryFolder } from './support/postgres.js';
import { spawnServer } from './support/server.js';

const execute = promisify(execFile);

t.test('CLI-31: an unclaimed server prints the command that claims it, and the address of its pages', async (t) => {
  const { output, port } = await spawnServer(t);
  // The server checks whether it is claimed after it listens: the lines come a little later than the port.
  await until('where its pages are', () => output.join().includes('/docs'));
  const said = output.join('\n');
  t.match(said, `npm run --silent device -- claim http://localhost:${port}`);
  t.match(said, `http://localhost:${port}/docs`);
});

t.test('CLI-32: from a checkout the program starts without a build where there is one', async (t) => {
  const folder = await temporaryFolder(t);
  const main = join(folder, 'build/src/cli/main.js');
  await mkdir(dirname(main), { recursive: true });
  await copyFile(join(PROJECT_ROOT, 'package.json'), join(folder, 'package.json'));
  await writeFile(main, 'console.log(JSON.stringify(process.argv.slice(2)))');
  // There is no compiler in this folder: a build would fail.
  const device = () => execute('npm', ['run', '--silent', 'device', '--', 'put', 'milk, bread'], { cwd: folder });
  await t.rejects(device(), 'a build that was interrupted is made whole first');
  await writeFile(join(folder, 'build/commit.json'), '{}'); // a build's last step
  const { stdout } = await device();
  t.same(JSON.parse(stdout), ['put', 'milk, bread']);
});

t.test(
  'CLI-33: the program alone prints its help with examples; help wraps only at the width of the terminal',
  async (t) => {
    const printed: string[] = [];
    const { signal } = new AbortController();
    const terminal = { interrupted: signal, progress: () => undefined } as unknown as Terminal;
    const write = (text: string): void => void printed.push(text);
    const call = {
      env: {},
      platform: {} as never,
      version: '1',
      commit: 'unknown',
      terminal: () => terminal,
      fail: () => undefined,
      write,
    };
    t.equal(await runProgram({ ...call, argv: [] }), EXIT.usage);
    t.match(printed.join(''), /Examples:\n {2}\$ service-device claim/);
    for (const command of programOf(() => async () => undefined).commands)
      t.notMatch(command.description(), /\n/, command.name());
  },
);

t.test('CLI-34 DOCTOR-19: a full disk is reported as such, with what to do, also by doctor', async (t) => {
  const full = Object.assign(new Error('ENOSPC: no space left on device, write'), { code: 'ENOSPC' });
  t.match(failureOf(full), { message: 'the disk is full', hint: /Make room.*`service-device status`/ });
  t.match(failureOf(storeError('full')), {
    code: 'store_full',
    message: /no room left.*works again when there is room/,
  });
  t.notMatch(failureFrom(full, () => undefined).hint, /service-device/, 'the other programs do not have this command');
  for (const [error, what, advice] of [
    [full, /the disk is full/, /Make room/],
    [storeError('full'), /no room left/, /Fix that/],
  ] as const) {
    const context = { withDevice: () => Promise.reject(error) };
    const [finding, ...more] = await checkVault(context as unknown as DoctorContext, undefined);
    t.match(finding, { check: 'store', status: 'problem', what, do: advice });
    t.notMatch(`${finding?.what ?? ''} ${finding?.do ?? ''}`, /damaged|rebuilt/);
    t.same(more, []);
  }
});

t.test('CLI-36: a file that is too large and a full account are reported with what to do', (t) => {
  const api = (code: string, message: string) =>
    failureOf(new ApiError({ code, status: 413, message, retryAfter: null }));
  const large = api('blob_too_large', 'A blob has at most 1048576 bytes.');
  t.match(large, { exitCode: EXIT.refused, message: /at most 1048576 bytes/, hint: /MAX_BLOB_SIZE_MB.*split/ });
  t.match(api('storage_cap_exceeded', 'no'), { exitCode: EXIT.refused, message: /is full/, hint: /rm.*operator/ });
  t.end();
});

t.test('CLI-35: the cost of a damaged local copy is reported in plain text, sizes in a suitable unit', async (t) => {
  t.match(repairNote({ carried: 0, lost: 0 }), /read again from the server\. Nothing was lost\.$/);
  t.match(repairNote({ carried: 1, lost: 0 }), /1 change that waited to be sent was kept\.$/);
  t.match(repairNote({ carried: 0, lost: 2 }), /2 changes that waited to be sent are lost: make them again\.$/);
  t.match(repairNote({ carried: 3, lost: null }), /were kept\. Changes that waited to be sent may be lost\.$/);
  t.same([0, 1_500, 3_500_000].map(sizeText), ['0 bytes', '1.5 kB', '3.5 MB']);
});

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
