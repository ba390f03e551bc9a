/**
 * `npm test`: the linter and the formatter's check read sources only, so that they run on the processor that the compiler
 * leaves; then the tests run (test/run.ts). Plain JavaScript: nothing is built yet.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));

/** Starts one of the project's scripts, which ends with this process at the latest. */
function start(name) {
  const begun = performance.now();
  const child = spawn('npm', ['run', '--silent', name], { cwd: root, stdio: ['ignore', 'pipe', 'pipe'] });
  process.once('exit', () => child.kill());
  let text = '';
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (part) => (text += part));
  const ended = once(child, 'close').then(
    ([code, signal]) =>
      code === 0 ? { passed: true, text } : { passed: false, text: `${text}${name} ended with ${signal ?? code}\n` },
    (error) => ({ passed: false, text: `${name}: ${error}\n` }),
  );
  return { name, begun, ended };
}

const checks = ['lint', 'format:check'].map(start);
const { passed, text } = await start('build').ended;
if (!passed) {
  process.stdout.write(text);
  process.exit(1);
}
const { main } = await import('../build/test/run.js');
await main(process.argv.slice(2), checks);
process.exit(); // an interrupted run leaves its checks
