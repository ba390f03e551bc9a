/**
 * `npm run demo`: the whole story in a terminal, against a server of its own. Two real clients and the real server; each
 * claim in the text is checked before it is printed, and the exit code is 0 only if all of them held.
 */
import { nodeSodium } from '../crypto/sodium-node.js';
import { Device } from '../sdk/device.js';
import { prepareClaim } from '../sdk/enrol.js';
import { ApiError } from '../sdk/errors.js';
import type { Identity } from '../sdk/identity.js';
import { nodeSockets } from '../sdk/node-platform.js';
import { join } from '../sdk/pairing.js';
import type { Platform, SocketPort } from '../sdk/platform.js';
import { CLOSE } from '../protocol/close-codes.js';
import { systemClock } from '../protocol/clock.js';
import { startDemoServer, type DemoServer } from './server.js';
import { next } from './expecting.js';
import { paletteFor } from '../terminal/palette.js';
import { elapsed, Narrator, type Told } from './narrator.js';

const SECRET_TEXT = 'the spare key is under the third flower pot';
const INBOX = 'inbox';
const MORE_PUSHES = 25;

const colour = paletteFor(process.stdout, process.env);
const narrator = new Narrator((text) => void process.stdout.write(text), colour);
const problems: Error[] = [];

/** A device as the demo follows it: with the close codes of its sockets, and the token it was last given. */
interface Actor {
  readonly device: Device;
  readonly identity: () => Identity;
  readonly closes: readonly number[];
}

function watched(sockets: SocketPort, closes: number[]): SocketPort {
  return {
    open: (url, events) =>
      sockets.open(url, {
        ...events,
        opened: () => events.opened(),
        message: (text) => events.message(text),
        closed: (code, reason) => {
          closes.push(code);
          events.closed(code, reason);
        },
      }),
  };
}

const platform = (sockets: SocketPort = nodeSockets): Platform => ({
  sodium: nodeSodium,
  fetch: (url, init) => fetch(url, init),
  sockets,
  clock: systemClock,
  random: Math.random,
});

async function actor(identity: Identity): Promise<Actor> {
  const closes: number[] = [];
  let current = identity;
  const device = await Device.open({
    platform: platform(watched(nodeSockets, closes)),
    identity,
    onIdentity: (next) => {
      current = next;
    },
    onProblem: (error) => problems.push(error),
  });
  return { device, identity: () => current, closes };
}

/** What the server answers to a bare request with this token: the very bytes that it stores and hands out. */
async function bare(identity: Identity, path: string): Promise<{ status: number; body: string }> {
  const response = await fetch(`${identity.serverUrl}/api${path}`, {
    headers: { authorization: `Bearer ${identity.token.text}`, 'x-wire-shape': 'a' },
  });
  return { status: response.status, body: await response.text() };
}

async function startServer(told: Told): Promise<DemoServer> {
  const server = await startDemoServer();
  told.say(`${server.url}, with a PostgreSQL of its own; its folder is temporary.`);
  const status = (await (await fetch(`${server.url}/api/service/status`)).json()) as { claimed?: unknown };
  told.check(status.claimed === false, 'it is up, and nobody has claimed it yet');
  return server;
}

async function claimServer(told: Told, url: string): Promise<Actor> {
  const claim = await prepareClaim({ platform: platform(), serverUrl: url, name: 'Laptop', glyph: 'laptop' });
  const identity = await claim.register();
  const { phrase } = claim;
  told.say(`Its twelve words, shown once, kept nowhere: ${colour.accent(phrase.split(' ').slice(0, 3).join(' '))} ...`);
  told.check(phrase.split(' ').length === 12, 'the master key came from the words, not from the server');
  const second = prepareClaim({ platform: platform(), serverUrl: url, name: 'Stranger', glyph: 'phone' });
  const refused = await second.then(
    () => 'nothing',
    (error: unknown) => (error instanceof ApiError ? error.code : String(error)),
  );
  told.check(refused === 'bootstrap_already_done', 'a second claim is refused');
  const laptop = await actor(identity);
  await laptop.device.connect();
  told.check((await laptop.device.list()).length === 0, 'it is connected, and there is nothing to read');
  return laptop;
}

async function pair(told: Told, laptop: Actor, url: string): Promise<Actor> {
  let shownByLaptop = '';
  let shownByPhone = '';
  const offer = await laptop.device.offerPairing(({ name, digits }) => {
    shownByLaptop = digits;
    // The user's part: is it my phone, and do both screens show the same?
    return name === 'Phone' && digits === shownByPhone;
  });
  told.say(`The laptop shows six words: ${colour.accent(offer.words)}`);
  const joining = join({
    platform: platform(),
    serverUrl: url,
    name: 'Phone',
    glyph: 'phone',
    words: offer.words,
    onDigits: (digits) => {
      shownByPhone = digits;
    },
  });
  const [identity] = await Promise.all([joining, offer.joined]);
  told.say(`Both screens show ${colour.accent(shownByPhone)}; the user compared them and said yes.`);
  told.check(/^\d{6}$/.test(shownByLaptop) && shownByLaptop === shownByPhone, 'the digits were the same on both');
  const same = Buffer.from(identity.masterKey).equals(Buffer.from(laptop.identity().masterKey));
  told.check(same, 'the phone has the master key; the server relayed it and could not open it');
  const phone = await actor(identity);
  await phone.device.connect();
  const devices = await phone.device.roster.recipients();
  told.check(devices.length === 2, 'two devices, each with a certificate that the other one verified');
  return phone;
}

async function push(told: Told, from: Actor, to: Actor): Promise<string> {
  const seen = next(to.device, 'item');
  const started = performance.now();
  const { id, version } = await from.device.put({ binId: INBOX, type: 'text', payload: { text: SECRET_TEXT } });
  told.measured(`written and durable, as version ${version}`, performance.now() - started);
  const item = await seen;
  told.measured('decrypted on the other device', performance.now() - started);
  told.say(`The phone reads: ${colour.accent(String(item.payload?.['text']))}`);
  await pushMore(told, from, to);
  told.check(item.id === id && item.payload?.['text'] === SECRET_TEXT, 'the text is the one that was written');
  const stored = await bare(from.identity(), '/items?since=0');
  const unread = !stored.body.includes('flower') && stored.body.includes(id);
  told.check(
    stored.status === 200 && unread,
    'what the server holds of it is ciphertext: no word of the text is in it',
  );
  return id;
}

/** One figure is chance; the middle of several is not. */
async function pushMore(told: Told, from: Actor, to: Actor): Promise<void> {
  const took: number[] = [];
  for (let count = 0; count < MORE_PUSHES; count++) {
    const text = `note ${count}`;
    const seen = next(to.device, 'item', (item) => item.payload?.['text'] === text);
    const started = performance.now();
    await Promise.all([from.device.put({ binId: INBOX, type: 'text', payload: { text } }), seen]);
    took.push(performance.now() - started);
  }
  took.sort((one, other) => one - other);
  told.measured(`the same for ${MORE_PUSHES} more, the middle one`, took[Math.floor(MORE_PUSHES / 2)] ?? 0);
}

async function answer(told: Told, phone: Actor, laptop: Actor, id: string): Promise<void> {
  const text = `${SECRET_TEXT}, next to the gnome`;
  const seen = next(laptop.device, 'item', (item) => item.id === id);
  const started = performance.now();
  await phone.device.put({ id, binId: INBOX, type: 'text', payload: { text } });
  const item = await seen;
  told.measured('changed on the phone, read on the laptop', performance.now() - started);
  told.check(item.payload?.['text'] === text, 'the laptop has the new text');
  const all = await laptop.device.list();
  told.check(all.length === 1 + MORE_PUSHES && (await laptop.device.get(id)) !== undefined, 'in place of the old one');
}

async function replay(told: Told, phone: Actor, laptop: Actor, id: string): Promise<string[]> {
  phone.device.disconnect();
  const before = (await phone.device.list()).length;
  told.say('The phone goes offline. Meanwhile the laptop writes three items, moves one and changes one.');
  const written: string[] = [];
  for (const text of ['oats', 'pears', 'tea']) {
    written.push((await laptop.device.put({ binId: INBOX, type: 'text', payload: { text } })).id);
  }
  await laptop.device.bins.create('shopping', { name: 'Shopping', emoji: '🛒' });
  await laptop.device.move(written[1] ?? '', 'shopping');
  await laptop.device.put({ id, binId: INBOX, type: 'link', payload: { url: 'https://example.org', title: 'gnomes' } });
  told.check((await phone.device.list()).length === before, 'the phone knows nothing of it');
  const arrived: string[] = [];
  const stop = phone.device.on('item', (item) => arrived.push(item.id));
  const caughtUp = next(phone.device, 'caught_up');
  const started = performance.now();
  await phone.device.connect();
  const { complete } = await caughtUp;
  stop();
  told.measured(`back online: ${arrived.length} changes replayed`, performance.now() - started);
  told.check(sameSet(arrived, [...written, id]), 'exactly what was missed came, each item once, in its latest state');
  told.check(complete === true, "count and version sum are the server's: nothing is missing");
  const moved = await phone.device.get(written[1] ?? '');
  told.check(moved?.binId === 'shopping' && moved.payload?.['text'] === 'pears', 'the moved item opens in its new bin');
  const bin = (await phone.device.bins.list()).find((entry) => entry.id === 'shopping');
  told.check(bin?.label?.name === 'Shopping', "and the bin's name, which the server cannot read, is there");
  return written;
}

async function remove(told: Told, laptop: Actor, phone: Actor, id: string): Promise<void> {
  const gone = next(phone.device, 'delete', (event) => event.id === id);
  const warnings: string[] = [];
  const stop = phone.device.on('untagged_delete', (event) => warnings.push(event.id));
  const started = performance.now();
  await laptop.device.delete(id);
  await gone;
  told.measured('deleted on the laptop, gone on the phone', performance.now() - started);
  stop();
  told.check((await phone.device.get(id)) === undefined, 'the phone does not show it any more');
  told.check(warnings.length === 0, "the delete bore the laptop's tag: no server can make one up");
}

async function revoke(told: Told, laptop: Actor, phone: Actor): Promise<void> {
  const ended = next(phone.device, 'revoked');
  const started = performance.now();
  await laptop.device.revoke(phone.device.id);
  await ended;
  told.measured('revoked on the laptop, disconnected on the phone', performance.now() - started);
  told.check(phone.closes.at(-1) === CLOSE.revoked, `the server closed its socket with ${CLOSE.revoked}`);
  const refused = await bare(phone.identity(), '/me');
  const code = (JSON.parse(refused.body) as { error?: { code?: unknown } }).error?.code;
  told.check(refused.status === 403 && code === 'device_revoked', 'its token is refused: 403 device_revoked');
  const { id } = await laptop.device.put({ binId: INBOX, type: 'text', payload: { text: 'for my eyes only' } });
  const rows = JSON.parse((await bare(laptop.identity(), '/items?since=0')).body) as {
    items: { id: string; payloadEnc: { keys: Record<string, string> } | null }[];
  };
  const sealedFor = Object.keys(rows.items.find((row) => row.id === id)?.payloadEnc?.keys ?? {});
  told.check(sealedFor.join() === laptop.device.id, 'what is written now is sealed for the laptop alone');
}

const sameSet = (one: readonly string[], other: readonly string[]): boolean =>
  one.length === other.length && new Set([...one, ...other]).size === one.length;

async function story(stops: (() => Promise<void> | void)[]): Promise<void> {
  const play = narrator.play.bind(narrator);
  const server = await play('A server of our own starts, empty', startServer);
  stops.push(() => server.stop());
  try {
    const laptop = await play('A laptop claims it', (told) => claimServer(told, server.url));
    stops.push(() => laptop.device.close());
    const phone = await play('A phone joins by six words', (told) => pair(told, laptop, server.url));
    stops.push(() => phone.device.close());
    const id = await play('The laptop writes, the phone has it', (told) => push(told, laptop, phone));
    await play('The phone answers', (told) => answer(told, phone, laptop, id));
    const written = await play('The phone was away, and catches up', (told) => replay(told, phone, laptop, id));
    await play('The laptop deletes', (told) => remove(told, laptop, phone, written[0] ?? ''));
    await play('The phone is lost: revoke it', (told) => revoke(told, laptop, phone));
    if (problems[0] !== undefined) throw problems[0];
  } catch (error) {
    const log = server.log().trim();
    if (log !== '') narrator.line(`\n${colour.dim(`  The server's log ends with:\n${log}`)}`);
    throw error;
  }
}

async function main(): Promise<void> {
  const started = performance.now();
  const stops: (() => Promise<void> | void)[] = [];
  const stopAll = async (): Promise<void> => {
    for (let stop = stops.pop(); stop !== undefined; stop = stops.pop()) await stop();
  };
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.once(signal, () => {
      void stopAll().finally(() => process.exit(1));
    });
  }
  narrator.title(
    'Two devices, and a server that cannot read what they share',
    'Every line with a mark is checked as it is said.',
  );
  try {
    await story(stops);
  } catch (error) {
    narrator.line(`\n  ${colour.bad('The demo failed:')} ${error instanceof Error ? error.message : String(error)}`);
    process.exitCode = 1;
  } finally {
    await stopAll();
  }
  if (process.exitCode === 1) return;
  const took = elapsed(performance.now() - started);
  narrator.line(`\n  ${colour.good('Done.')} ${narrator.checked} facts checked in ${took}, server and all.`);
  narrator.line(`  Start a server to keep:  ${colour.bold('npm start')}\n`);
}

await main();
