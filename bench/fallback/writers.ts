/** The writers in Node, for machines without a compiler: as native/writers.c, at a fraction of its speed. */
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { Agent, request } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { ulid } from 'ulid';
import { option, say } from '../reference/say.js';
import { Log, stampText } from './records.js';

const port = Number(option('port'));
const connections = Number(option('connections'));
const seconds = Number(option('seconds'));
const warmup = Number(option('warmup', '1'));
const rate = Number(option('rate', '0'));
const retry = option('retry', '0') === '1';
const CT_BYTES = 768;
const path = option('path', '/api/items');
const plan = readFileSync(option('plan'), 'utf8').trim().split('\n');
/** As in native/writers.c: does not reuse a connection that the server is about to close as idle. */
const IDLE_MOST_MS = 6_000;
const agent = new Agent({ keepAlive: true, maxSockets: connections, timeout: IDLE_MOST_MS });
const log = new Log();
const now = (): bigint => process.hrtime.bigint();
const nanoseconds = (s: number): bigint => BigInt(Math.round(s * 1e9));
const begin = now();
const from = begin + nanoseconds(warmup);
const to = from + nanoseconds(seconds);
const RETRY_MS = 50;
let refused = 0;
let failed = 0;

function bodyOf(keys: readonly string[], id: string, stamp: bigint): string {
  const text = (bytes: number): string => randomBytes(bytes).toString('base64url');
  return JSON.stringify({
    id,
    binId: 'inbox',
    type: 'text',
    ts: Date.now(),
    payloadEnc: {
      ct: stampText(stamp) + text(CT_BYTES - 12),
      nonce: text(24),
      keys: Object.fromEntries(keys.map((device) => [device, text(80)])),
      master: { nonce: text(24), ct: text(48) },
      sig: text(32),
    },
  });
}

interface Credential {
  readonly token: string;
  readonly host: string;
}

async function post(who: Credential, body: string): Promise<{ status: number; text: string }> {
  return await new Promise((resolve, reject) => {
    const headers = {
      host: who.host,
      authorization: `Bearer ${who.token}`,
      'content-type': 'application/json',
      'content-length': body.length,
    };
    const call = request({ host: '127.0.0.1', port, path, method: 'POST', agent, headers }, (answer) => {
      let text = '';
      answer.setEncoding('latin1').on('data', (part: string) => (text += part));
      answer.on('end', () => resolve({ status: answer.statusCode ?? 0, text }));
      answer.on('error', reject);
    });
    call.on('error', reject);
    call.end(body);
  });
}

/** Posts one body until it is answered with 200, or only once without `retry`. */
async function answered(who: Credential, body: string): Promise<number | undefined> {
  for (;;) {
    try {
      const { status, text } = await post(who, body);
      const version = /"version":(\d+)/.exec(text)?.[1];
      if (status === 200 && version !== undefined) return Number(version);
      if (++refused === 1) process.stderr.write(`writers: ${status} ${text.slice(0, 300)}\n`);
    } catch {
      // The server was killed: counted, then retried or given up below.
    }
    failed++;
    if (!retry) return undefined;
    await sleep(RETRY_MS);
  }
}

async function write(who: number, stamp: bigint): Promise<void> {
  const [token = '', host = '', , keys = ''] = (plan[who] ?? '').split(' ');
  const id = ulid();
  const body = bodyOf(keys.split(','), id, stamp);
  const version = await answered({ token, host }, body);
  if (version !== undefined) log.entries.push({ stamp, latencyNs: Number(now() - stamp), who, version, flags: 0, id });
}

/** Arrivals by a Poisson schedule, shared by all connections. */
let scheduled = begin;
function nextArrival(): bigint {
  const at = scheduled;
  scheduled += BigInt(Math.round((-Math.log(1 - Math.random()) * 1e9) / rate));
  return at;
}

async function connection(number: number): Promise<void> {
  for (let who = number; ; who = who + connections < plan.length ? who + connections : number) {
    const stamp = rate > 0 ? nextArrival() : now();
    if (stamp >= to) return;
    // A timer has a resolution of 1 ms and may fire that much early: a write must not precede its schedule.
    for (let early = stamp - now(); early > 0n; early = stamp - now()) await sleep(Math.ceil(Number(early) / 1e6));
    await write(who, stamp);
  }
}

setTimeout(() => say({ event: 'window' }), warmup * 1000);
setTimeout(() => say({ event: 'end' }), (warmup + seconds) * 1000);
await Promise.all(Array.from({ length: connections }, async (_, number) => connection(number)));
await sleep(Math.max(0, Number(to - now()) / 1e6 + 5));
log.write(option('out'));
const inWindow = log.entries.filter(({ stamp, latencyNs }) => {
  const at = stamp + BigInt(latencyNs);
  return at >= from && at < to;
}).length;
agent.destroy();
say({
  event: 'result',
  from: String(from),
  to: String(to),
  acked: log.entries.length,
  inWindow,
  perSecond: inWindow / seconds,
  refused,
  failed,
  ...log.latency(from, to),
});
