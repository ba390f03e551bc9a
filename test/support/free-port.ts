/**
 * Ports that belong to one test process for as long as it lives, also while nothing listens on them: below those that
 * the system hands out by itself, and in a block that no other test process takes.
 */
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer, type Server } from 'node:net';
import { errorCode } from '../../src/protocol/error-code.js';

const LOWEST = 10_000;
const BLOCK = 200;
/** Fewer leave no room; a system that hands out nearly all ports by itself has none that are safe. */
const BLOCKS_MIN = 25;

/** The first port that connections of this system may get for themselves. */
function systemsFirst(): number {
  const [first = ''] = readFileSync('/proc/sys/net/ipv4/ip_local_port_range', 'utf8').split(/\s+/);
  return Number(first);
}

/** Listens on the port; undefined where something does already. */
async function taken(port: number): Promise<Server | undefined> {
  const server = createServer().listen(port, '127.0.0.1');
  try {
    await once(server, 'listening');
    return server;
  } catch (error) {
    if (errorCode(error) === 'EADDRINUSE') return undefined;
    throw error;
  }
}

/** A block whose first port this process keeps bound until it ends: so no other one takes the block. */
async function ownBlock(): Promise<number> {
  const blocks = Math.max(BLOCKS_MIN, Math.floor((systemsFirst() - LOWEST) / BLOCK));
  for (;;) {
    const first = LOWEST + BLOCK * randomInt(blocks);
    const guard = await taken(first);
    if (guard === undefined) continue;
    guard.unref();
    return first;
  }
}

let block: Promise<number> | undefined;
let given = 0;

/** A port that nothing listens on and that this process was not given before; the ones beside it are given to nobody. */
export async function freePort(): Promise<number> {
  const first = await (block ??= ownBlock());
  for (;;) {
    given += 2;
    if (given >= BLOCK) throw new Error(`a test process has ${BLOCK / 2 - 1} ports`);
    const port = first + given;
    const probe = await taken(port);
    if (probe === undefined) continue;
    probe.close();
    await once(probe, 'close');
    return port;
  }
}
