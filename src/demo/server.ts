/** The demo's server: a process on a free port, with its data in a temporary folder. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { chmod, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const MAIN = fileURLToPath(new URL('../server/main.js', import.meta.url));
/** Time for creating a PostgreSQL cluster on a slow disk. */
const READY_WITHIN_MS = 60_000;
const STOP_WITHIN_MS = 15_000;
/** Length of the log that is kept for error messages. */
const LOG_CHARS = 4_000;
/** Under root, PostgreSQL runs as another user, which must be able to enter the folder; mkdtemp makes it 0700. */
const FOLDER_MODE = 0o755;
/** Variables that the server inherits. DATABASE_URL is not among them: the demo must not use an existing database. */
const PASSED_ON = ['PATH', 'HOME', 'USER', 'LOGNAME', 'LANG', 'LC_ALL', 'TZ', 'TMPDIR'];

/** A running server of the demo. */
export interface DemoServer {
  /** `http://127.0.0.1:<port>`. */
  readonly url: string;
  /** The end of what the server logged. */
  log(): string;
  /** Stops the server and removes its folder. */
  stop(): Promise<void>;
}

/**
 * Starts the built server and waits until it listens. `env`: variables in addition to the demo's own. Rejects with the
 * end of the log if it does not listen in time.
 */
export async function startDemoServer(env: Readonly<Record<string, string>> = {}): Promise<DemoServer> {
  const folder = await mkdtemp(join(tmpdir(), 'service-demo-'));
  await chmod(folder, FOLDER_MODE);
  const own = {
    PORT: '0',
    HOST: '127.0.0.1',
    DATA_DIR: join(folder, 'data'),
    LOG_LEVEL: 'warn',
    RATE_WRITE_PER_S: '100',
  };
  const child = spawn(process.execPath, ['--enable-source-maps', MAIN], {
    env: { ...Object.fromEntries(PASSED_ON.map((name) => [name, process.env[name]])), ...own, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let log = '';
  const keep = (chunk: Buffer): void => {
    log = `${log}${chunk.toString('utf8')}`.slice(-LOG_CHARS);
  };
  child.stdout.on('data', keep);
  child.stderr.on('data', keep);
  // The server must not outlive the demo, however the demo ends.
  const orphaned = (): void => void child.kill('SIGTERM');
  process.once('exit', orphaned);
  const stop = async (): Promise<void> => {
    process.off('exit', orphaned);
    await ended(child);
    await rm(folder, { recursive: true, force: true, maxRetries: 5 });
  };
  try {
    const port = await listening(child, () => log);
    return { url: `http://127.0.0.1:${port}`, log: () => log, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** The port in the server's start message. */
function listening(child: ChildProcess, log: () => string): Promise<number> {
  return new Promise((resolve, reject) => {
    const fail = (what: string): void => {
      clearTimeout(timer);
      reject(new Error(`the server ${what}\n${log()}`));
    };
    const timer = setTimeout(() => fail(`was not ready within ${READY_WITHIN_MS / 1000} s`), READY_WITHIN_MS);
    child.once('error', (error) => fail(`could not be started: ${error.message}`));
    child.once('exit', (code, signal) => fail(`ended while starting (${signal ?? `exit code ${String(code)}`})`));
    child.stdout?.on('data', () => {
      const port = /listening on http:\/\/[^\s:]+:(\d+)/.exec(log())?.[1];
      if (port === undefined) return;
      clearTimeout(timer);
      resolve(Number(port));
    });
  });
}

/** SIGTERM, then SIGKILL after a time-out; resolves when the process has exited. */
async function ended(child: ChildProcess): Promise<void> {
  if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return;
  const gone = once(child, 'exit');
  child.kill('SIGTERM');
  const insist = setTimeout(() => child.kill('SIGKILL'), STOP_WITHIN_MS);
  await gone;
  clearTimeout(insist);
}
