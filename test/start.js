/**
 * `npm test`: the formatter's check reads sources only, so that it runs while the project is built, on the processor that
 * the compiler leaves; then the tests run beside it and the linter (test/run.ts). Plain JavaScript: nothing is built yet.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));

/** Starts a development tool, which ends with this process at the latest. */
function start(name, ...args) {
  const begun = performance.now();
  const child = spawn(process.execPath, args, { cwd: root, stdio: ['ignore', 'pipe', 'pipe', 'ipc'] });
  process.once('exit', () => child.kill());
  let text = '';
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (part) => (text += part));
  const ended = once(child, 'close').then(
    ([code, signal]) =>
      code === 0 ? { passed: true, text } : { passed: false, text: `${text}${name} ended with ${signal ?? code}\n` },
    (error) => ({ passed: false, text: `${name}: ${error}\n` }),
  );
  return { name, begun, ended, child };
}

// A file that was right is right as long as it, the formatter and its settings are the same: node_modules/.cache knows.
const kept = ['--cache', '--cache-strategy', 'content', '--cache-location', 'node_modules/.cache/prettier-of-tests'];
const prettier = start('prettier', 'node_modules/.bin/prettier', '--check', '--log-level', 'warn', ...kept, '.');
// Most of what they allocate is garbage at once: with more room for it, and a collector that needs no second processor,
// they take a twentieth less.
const lint = start('build and eslint', '--max-semi-space-size=128', '--single-threaded-gc', 'test/compile.js');
const built = await Promise.race([once(lint.child, 'message').then(() => undefined), lint.ended]);
if (built !== undefined) {
  process.stdout.write(built.text);
  process.exit(1);
}
const { main } = await import('../build/test/run.js');
await main(process.argv.slice(2), [lint, prettier]);
process.exit(); // an interrupted run leaves its checks
