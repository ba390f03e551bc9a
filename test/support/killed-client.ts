/**
 * A device to be killed: it works offline and online, with a store in a folder, and prints each step before the next one,
 * so that the parent process (`killing.ts`) can kill it between any two.
 *
 *   node killed-client.js FOLDER IDENTITY.json SEED work|finish
 */
import { readFileSync, writeSync } from 'node:fs';
import { Device } from '../../src/sdk/device.js';
import { NetworkError, QueuedError } from '../../src/sdk/errors.js';
import { SavableIdentity } from '../../src/sdk/identity.js';
import { nodePlatform } from '../../src/sdk/node-platform.js';
import { openNodeStore } from '../../src/sdk/store/node-store.js';
import type { Platform } from '../../src/sdk/platform.js';
import type { Batch, Entry, Pending, Store } from '../../src/sdk/store/store.js';
import { ulid } from '../../src/sdk/ulid.js';
import type { Clock } from '../../src/protocol/clock.js';
import { next } from '../../src/demo/expecting.js';
import { until } from './events.js';

const OPERATIONS = 24;
const AT_ONCE = 3;
const [, , folder = '', identityFile = '', seedText = '0', task = 'work'] = process.argv;

/**
 * `work` divides all timers by this: only their order matters. A busy machine may then exceed the limits on waiting for
 * the server; `finish` must succeed, so it has the real timers and is always online.
 */
const SPEED_UP = task === 'finish' ? 1 : 50;

function say(word: string, ...more: (string | number)[]): void {
  writeSync(1, `${[word, ...more].join(' ')}\n`);
}

let state = Number(seedText) >>> 0;
/** A pseudo-random integer from 0 to below `below`; the same sequence for the same seed. */
function draw(below: number): number {
  state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
  return Math.floor((state / 2 ** 32) * below);
}

let online = true;

const real = await nodePlatform();

function platform(): Platform {
  const clock: Clock = { now: () => real.clock.now(), setTimer: (ms, fn) => real.clock.setTimer(ms / SPEED_UP, fn) };
  return {
    ...real,
    clock,
    fetch: async (url, init) => {
      if (!online) throw new TypeError('offline');
      say('asks');
      // Without the signal of the time-out, which is shortened: a request that was sent is always answered.
      const response = await fetch(url, { ...init, signal: null });
      say('answered');
      return response;
    },
    sockets: {
      open: (url, events) => {
        if (online) return real.sockets.open(url, events);
        setImmediate(() => events.closed(1006, 'offline'));
        return { send: () => undefined, close: () => undefined };
      },
    },
  };
}

/** Prints a step before and after each batch is stored. */
class PrintingStore implements Store {
  constructor(private readonly store: Store) {}
  cursor = () => this.store.cursor();
  get = (id: string): Promise<Entry | undefined> => this.store.get(id);
  entries = () => this.store.entries();
  pending = (): Promise<readonly Pending[]> => this.store.pending();
  uploads = () => this.store.uploads();
  held = () => this.store.held();
  apply = async (batch: Batch): Promise<void> => {
    say('stores');
    await this.store.apply(batch);
    say('stored');
  };
}

const identity = SavableIdentity.parse(readFileSync(identityFile, 'utf8'));
const { store, repair } = await openNodeStore(folder, identity);
if (repair !== null) say('repaired', repair.reason);
const device = await Device.open({
  platform: platform(),
  identity,
  store: new PrintingStore(store),
  onProblem: (error) => {
    if (!(error instanceof NetworkError)) say('problem', error.message);
  },
});
device.on('rejected', ({ id, error }) => say('rejected', id, error.message));
device.on('caught_up', ({ complete }) => say('caught-up', String(complete)));

function change(kind: 'new' | 'edit' | 'delete', id: string, text: string): Promise<void> {
  say('tries', kind, id, text);
  const done =
    kind === 'delete' ? device.delete(id) : device.put({ id, binId: 'inbox', type: 'text', payload: { text } });
  return done.then(
    ({ version }) => say('acknowledged', id, text, version),
    (error: unknown) => {
      if (error instanceof QueuedError) say('kept', id, text);
      else say('failed', id, text, error instanceof Error ? error.message : String(error));
    },
  );
}

async function work(): Promise<void> {
  const known = (await device.list()).map(({ id }) => id);
  device.connect().catch(() => undefined);
  const underWay = new Set<Promise<void>>();
  for (let n = 0; n < OPERATIONS; n++) {
    if (draw(6) === 0) {
      online = !online;
      say(online ? 'online' : 'offline');
    }
    const roll = draw(100);
    const old = known[draw(known.length)];
    const kind = roll < 45 || old === undefined ? 'new' : roll < 88 ? 'edit' : 'delete';
    const id =
      kind === 'new' || old === undefined ? ulid(Date.now(), (length) => platform().sodium.random(length)) : old;
    if (kind === 'new') known.push(id);
    if (kind === 'delete') known.splice(known.indexOf(id), 1);
    const one: Promise<void> = change(kind, id, `${seedText}-${n}`).finally(() => underWay.delete(one));
    underWay.add(one);
    if (underWay.size >= AT_ONCE) await Promise.race(underWay);
  }
  await Promise.all(underWay);
}

/** Sends all waiting changes, compares with the server, and prints the items. */
async function finish(): Promise<void> {
  await device.connect();
  await until('nothing waits', async () => (await store.pending()).length === 0);
  const again = next(device, 'caught_up');
  device.disconnect();
  device.connect().catch(() => undefined);
  say('complete', String((await again).complete));
  for (const { id, payload } of await device.list()) say('holds', id, String(payload?.['text']));
}

await (task === 'finish' ? finish() : work());
device.close();
await store.close();
say('done');
process.exit(0);
