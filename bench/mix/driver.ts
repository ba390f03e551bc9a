/**
 * The writers of MIX: connections that each run one action after the other (see person.ts).
 *
 *   driver port=N plan=FILE tenants=N connections=N seconds=S [warmup=S] out=FILE
 *
 * Prints {"event":"window"}, {"event":"end"}, {"event":"result", ...}. An answer other than 200 ends it; wrong
 * answers are reported with the result.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { randomBytes } from 'node:crypto';
import { option, say } from '../reference/say.js';
import { percentile } from '../stats.js';
import { Connection } from './connection.js';
import { KINDS, type Kind, type KindResult } from './kinds.js';
import { Person, Wrong, type Known, type Planned } from './person.js';

/** Tenants per connection: few enough that it has items of its own in them; several connections share each tenant. */
const TENANTS_EACH = 8;

const port = Number(option('port'));
const tenants = Number(option('tenants'));
const connections = Number(option('connections'));
const warmup = Number(option('warmup', '1')) * 1_000;
const window = Number(option('seconds')) * 1_000;

const keysOf = (devices: string): string => {
  const entries = devices.split(',').map((device) => `"${device}":"${randomBytes(80).toString('base64url')}"`);
  return `{${entries.join(',')}}`;
};

const plan: Planned[] = readFileSync(option('plan'), 'utf8')
  .trim()
  .split('\n')
  .map((line, who) => {
    const [token = '', host = '', , devices = ''] = line.split(' ');
    return { who, token, host, keys: keysOf(devices) };
  });

const known = (tenant: number): Known => ({
  devices: plan.filter(({ who }) => who % tenants === tenant),
  items: [],
  versions: new Map(),
  newest: 0,
});

const log: string[] = [];
const wrong: string[] = [];
const took: Record<Kind, number[]> = Object.fromEntries(KINDS.map((kind) => [kind, [] as number[]])) as never;
const begun = performance.now();
const [from, to] = [begun + warmup, begun + warmup + window];

async function work(number: number): Promise<void> {
  const own = Array.from({ length: Math.min(TENANTS_EACH, tenants) }, (_, n) => known((number * 3 + n) % tenants));
  const connection = new Connection(port);
  const person = new Person(connection, own, (acked) => log.push(JSON.stringify(acked)));
  try {
    for (let at = performance.now(); at < to;) {
      const kind = await person.act();
      const after = performance.now();
      if (after >= from && after < to) took[kind].push(after - at);
      at = after;
    }
  } catch (error) {
    if (!(error instanceof Wrong)) throw error;
    wrong.push(error.message);
  }
  connection.close();
}

setTimeout(() => say({ event: 'window' }), warmup);
setTimeout(() => say({ event: 'end' }), warmup + window);
await Promise.all(Array.from({ length: connections }, async (_, number) => work(number)));
writeFileSync(option('out'), log.map((line) => `${line}\n`).join(''));
const kinds = KINDS.map((kind): KindResult => {
  const all = took[kind];
  return { kind, count: all.length, p50: percentile(all, 0.5), p99: percentile(all, 0.99) };
});
say({ event: 'result', kinds, changes: log.length, wrong });
