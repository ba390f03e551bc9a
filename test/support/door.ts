/** A server at whose address something else may stand for a while, and what a command line then keeps. */
import { connect, createServer, type Socket } from 'node:net';
import type { Test } from 'tap';
import { EXIT } from '../../src/terminal/terminal.js';
import { spawnCli, type Ended, type Json, runHere } from './cli.js';
import { openFor } from './loopback-server.js';
import { temporaryFolder, type WithTeardown } from './postgres.js';
import { runServer } from './server.js';

/** How whoever calls is treated. */
export type Manners = (socket: Socket) => void;

/** A server behind a door: what stands at its address can be exchanged. */
export interface Door {
  readonly url: string;
  /** What treats whoever calls from now on; undefined: the server again. */
  becomes(manners: Manners | undefined): void;
}

/** Starts the server; at first it is what stands at the address. */
export async function door(t: WithTeardown): Promise<Door> {
  const server = await runServer(t);
  const sockets = new Set<Socket>();
  const through: Manners = (socket) => {
    const inner = connect(server.port, '127.0.0.1');
    inner.on('error', () => socket.destroy());
    inner.on('close', () => socket.destroy());
    socket.on('close', () => inner.destroy());
    socket.pipe(inner).pipe(socket);
  };
  let manners = through;
  const listening = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => undefined);
    socket.on('close', () => sockets.delete(socket));
    manners(socket);
  });
  const dropAll = (): void => {
    for (const socket of sockets) socket.destroy();
  };
  t.teardown(dropAll);
  return {
    url: `http://127.0.0.1:${await openFor(t, listening)}`,
    becomes: (other) => {
      manners = other ?? through;
      dropAll();
    },
  };
}

/** Of a list, sorted. */
export const titlesOf = ({ items }: Json): string[] => (items as Json[]).map(({ title }) => String(title)).sort();

/** So many texts for an address that closes at once are all kept, and arrive. */
export async function textsKept(t: Test, count: number): Promise<void> {
  const { url, becomes } = await door(t);
  const home = await temporaryFolder(t);
  const run = (...argv: string[]): Promise<Ended> => runHere(home, [...argv, '--json']);
  t.equal((await run('claim', url, '--show-phrase')).code, EXIT.ok);
  becomes((socket) => void socket.destroy());
  const texts = Array.from({ length: count }, (_, at) => `text ${String(at).padStart(2, '0')}`);
  // Each is a process of its own: what a process does at its first request is what went wrong.
  for (const text of texts) {
    const { code, stdout, stderr } = await spawnCli(t, ['put', text, '--json'], { home }).ended;
    t.equal(code, EXIT.ok, `${text}: ${stderr}`);
    t.match(JSON.parse(stdout), { queued: true }, text);
  }
  const listed = await run('list');
  t.match(listed, { code: EXIT.ok, stderr: /Not up to date/ });
  becomes(undefined);
  t.equal((await run('sync')).code, EXIT.ok);
  t.same(titlesOf(JSON.parse((await run('list')).stdout) as Json), texts);
}
