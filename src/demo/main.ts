/**
 * `npm run demo`: two real clients and their own real server, in a terminal. Each claim is checked before it is
 * printed; the exit code is 0 only if all hold.
 */
import { Device } from '../sdk/device.js';
import { prepareClaim } from '../sdk/enrol.js';
import { ApiError } from '../sdk/errors.js';
import type { Identity } from '../sdk/identity.js';
import { nodePlatform } from '../sdk/node-platform.js';
import { join } from '../sdk/pairing.js';
import type { SocketPort } from '../sdk/platform.js';
import { CLOSE } from '../protocol/close-codes.js';
import { startDemoServer, type DemoServer } from './server.js';
import { next } from './expecting.js';
import { hasColours, paletteOf } from '../terminal/output.js';
import { elapsed, Narrator } from './narrator.js';

const SECRET_TEXT = 'the spare key is under the third flower pot';
const INBOX = 'inbox';
const MORE_PUSHES = 25;

const colour = paletteOf({ colours: hasColours(process.stdout, process.env) });
const narrator = new Narrator((text) => void process.stdout.write(text), colour);
const problems: Error[] = [];
const platform = await nodePlatform();

/** A device with the close codes of its sockets. */
interface Actor {
  readonly device: Device;
  readonly identity: Identity;
  readonly closes: readonly number[];
}

async function actor(identity: Identity): Promise<Actor> {
  const closes: number[] = [];
  const sockets: SocketPort = {
    open: (url, events) =>
      platform.sockets.open(url, {
        ...events,
        closed: (code, reason, retryAfter) => {
          closes.push(code);
          events.closed(code, reason, retryAfter);
        },
      }),
  };
  const device = await Device.open({
    platform: { ...platform, sockets },
    identity,
    onProblem: (error) => problems.push(error),
  });
  return { device, identity, closes };
}

/** A request without the client library: the bytes as the server stores and returns them. */
async function bare(identity: Identity, path: string): Promise<{ status: number; body: string }> {
  const response = await fetch(`${identity.serverUrl}/api${path}`, {
    headers: { authorization: `Bearer ${identity.token.text}`, 'x-wire-shape': 'a' },
  });
  return { status: response.status, body: await response.text() };
}

async function startServer(): Promise<DemoServer> {
  const server = await startDemoServer();
  narrator.say(`${server.url}, with a PostgreSQL of its own; its folder is temporary.`);
  const status = (await (await fetch(`${server.url}/api/service/status`)).json()) as { claimed?: unknown };
  narrator.check(status.claimed === false, 'it is up, and nobody has claimed it yet');
  return server;
}

async function claimServer(url: string): Promise<Actor> {
  const claim = await prepareClaim({ platform, serverUrl: url, name: 'Laptop', glyph: 'laptop' });
  const identity = await claim.register();
  const { phrase } = claim;
  narrator.say(
    `Its twelve words, shown once, kept nowhere: ${colour.accent(phrase.split(' ').slice(0, 3).join(' '))} ...`,
  );
  narrator.check(phrase.split(' ').length === 12, 'the master key came from the words, not from the server');
  const second = prepareClaim({ platform, serverUrl: url, name: 'Stranger', glyph: 'phone' });
  const refused = await second.then(
    () => 'nothing',
    (error: unknown) => (error instanceof ApiError ? error.code : String(error)),
  );
  narrator.check(refused === 'bootstrap_already_done', 'a second claim is refused');
  const laptop = await actor(identity);
  await laptop.device.connect();
  narrator.check((await laptop.device.list()).length === 0, 'it is connected, and there is nothing to read');
  return laptop;
}

async function pair(laptop: Actor, url: string): Promise<Actor> {
  let shownByLaptop = '';
  let shownByPhone = '';
  const offer = await laptop.device.offerPairing(({ name, digits }) => {
    shownByLaptop = digits;
    // The user's comparison: the name, and the digits on both screens.
    return name === 'Phone' && digits === shownByPhone;
  });
  narrator.say(`The laptop shows six words: ${colour.accent(offer.words)}`);
  const joining = join({
    platform,
    serverUrl: url,
    name: 'Phone',
    glyph: 'phone',
    words: offer.words,
    onDigits: (digits) => (shownByPhone = digits),
  });
  const [identity] = await Promise.all([joining, offer.joined]);
  narrator.say(`Both screens show ${colour.accent(shownByPhone)}; the user compared them and said yes.`);
  narrator.check(/^\d{6}$/.test(shownByLaptop) && shownByLaptop === shownByPhone, 'the digits were the same on both');
  const same = Buffer.from(identity.masterKey).equals(Buffer.from(laptop.identity.masterKey));
  narrator.check(same, 'the phone has the master key; the server relayed it and could not open it');
  const phone = await actor(identity);
  await phone.device.connect();
  const devices = await phone.device.devices.recipients();
  narrator.check(devices.length === 2, 'two devices, each with a certificate that the other one verified');
  return phone;
}

async function push(from: Actor, to: Actor): Promise<string> {
  const seen = next(to.device, 'item');
  const started = performance.now();
  const { id, version } = await from.device.put({ binId: INBOX, type: 'text', payload: { text: SECRET_TEXT } });
  narrator.measured(`written and durable, as version ${version}`, performance.now() - started);
  const item = await seen;
  narrator.measured('decrypted on the other device', performance.now() - started);
  narrator.say(`The phone reads: ${colour.accent(String(item.payload?.['text']))}`);
  await pushMore(from, to);
  narrator.check(item.id === id && item.payload?.['text'] === SECRET_TEXT, 'the text is the one that was written');
  const stored = await bare(from.identity, '/items?since=0');
  const unread = !stored.body.includes('flower') && stored.body.includes(id);
  narrator.check(
    stored.status === 200 && unread,
    'what the server holds of it is ciphertext: no word of the text is in it',
  );
  return id;
}

/** The median of several pushes, since a single one varies too much. */
async function pushMore(from: Actor, to: Actor): Promise<void> {
  const took: number[] = [];
  for (let count = 0; count < MORE_PUSHES; count++) {
    const text = `note ${count}`;
    const seen = next(to.device, 'item', (item) => item.payload?.['text'] === text);
    const started = performance.now();
    await Promise.all([from.device.put({ binId: INBOX, type: 'text', payload: { text } }), seen]);
    took.push(performance.now() - started);
  }
  took.sort((one, other) => one - other);
  narrator.measured(`the same for ${MORE_PUSHES} more, the middle one`, took[Math.floor(MORE_PUSHES / 2)] ?? 0);
}

async function answer(phone: Actor, laptop: Actor, id: string): Promise<void> {
  const text = `${SECRET_TEXT}, next to the gnome`;
  const seen = next(laptop.device, 'item', (item) => item.id === id);
  const started = performance.now();
  await phone.device.put({ id, binId: INBOX, type: 'text', payload: { text } });
  const item = await seen;
  narrator.measured('changed on the phone, read on the laptop', performance.now() - started);
  narrator.check(item.payload?.['text'] === text, 'the laptop has the new text');
  const all = await laptop.device.list();
  narrator.check(
    all.length === 1 + MORE_PUSHES && (await laptop.device.get(id)) !== undefined,
    'in place of the old one',
  );
}

async function replay(phone: Actor, laptop: Actor, id: string): Promise<string[]> {
  phone.device.disconnect();
  const before = (await phone.device.list()).length;
  narrator.say('The phone goes offline. Meanwhile the laptop writes three items, moves one and changes one.');
  const written: string[] = [];
  for (const text of ['oats', 'pears', 'tea']) {
    written.push((await laptop.device.put({ binId: INBOX, type: 'text', payload: { text } })).id);
  }
  await laptop.device.bins.create('shopping', { name: 'Shopping', emoji: '🛒' });
  await laptop.device.move(written[1] ?? '', 'shopping');
  await laptop.device.put({ id, binId: INBOX, type: 'link', payload: { url: 'https://example.org', title: 'gnomes' } });
  narrator.check((await phone.device.list()).length === before, 'the phone knows nothing of it');
  const arrived: string[] = [];
  const stop = phone.device.on('item', (item) => arrived.push(item.id));
  const caughtUp = next(phone.device, 'caught_up');
  const started = performance.now();
  await phone.device.connect();
  const { complete } = await caughtUp;
  stop();
  narrator.measured(`back online: ${arrived.length} changes replayed`, performance.now() - started);
  narrator.check(
    sameSet(arrived, [...written, id]),
    'exactly what was missed came, each item once, in its latest state',
  );
  narrator.check(complete === true, "count and version sum are the server's: nothing is missing");
  const moved = await phone.device.get(written[1] ?? '');
  narrator.check(
    moved?.binId === 'shopping' && moved.payload?.['text'] === 'pears',
    'the moved item opens in its new bin',
  );
  const bin = (await phone.device.bins.list()).find((entry) => entry.id === 'shopping');
  narrator.check(bin?.label?.name === 'Shopping', "and the bin's name, which the server cannot read, is there");
  return written;
}

async function remove(laptop: Actor, phone: Actor, id: string): Promise<void> {
  const gone = next(phone.device, 'delete', (event) => event.id === id);
  const warnings: string[] = [];
  const stop = phone.device.on('untagged_delete', (event) => warnings.push(event.id));
  const started = performance.now();
  await laptop.device.delete(id);
  await gone;
  narrator.measured('deleted on the laptop, gone on the phone', performance.now() - started);
  stop();
  narrator.check((await phone.device.get(id)) === undefined, 'the phone does not show it any more');
  narrator.check(warnings.length === 0, "the delete bore the laptop's tag: no server can make one up");
}

async function revoke(laptop: Actor, phone: Actor): Promise<void> {
  const ended = next(phone.device, 'revoked');
  const started = performance.now();
  await laptop.device.revoke(phone.device.id);
  await ended;
  narrator.measured('revoked on the laptop, disconnected on the phone', performance.now() - started);
  narrator.check(phone.closes.at(-1) === CLOSE.revoked, `the server closed its socket with ${CLOSE.revoked}`);
  const refused = await bare(phone.identity, '/me');
  const code = (JSON.parse(refused.body) as { error?: { code?: unknown } }).error?.code;
  narrator.check(refused.status === 403 && code === 'device_revoked', 'its token is refused: 403 device_revoked');
  const { id } = await laptop.device.put({ binId: INBOX, type: 'text', payload: { text: 'for my eyes only' } });
  const rows = JSON.parse((await bare(laptop.identity, '/items?since=0')).body) as {
    items: { id: string; payloadEnc: { keys: Record<string, string> } | null }[];
  };
  const sealedFor = Object.keys(rows.items.find((row) => row.id === id)?.payloadEnc?.keys ?? {});
  narrator.check(sealedFor.join() === laptop.device.id, 'what is written now is sealed for the laptop alone');
}

const sameSet = (one: readonly string[], other: readonly string[]): boolean =>
  one.length === other.length && new Set([...one, ...other]).size === one.length;

async function story(stops: (() => Promise<void> | void)[]): Promise<void> {
  const play = narrator.play.bind(narrator);
  const server = await play('A server of our own starts, empty', startServer);
  stops.push(() => server.stop());
  try {
    const laptop = await play('A laptop claims it', () => claimServer(server.url));
    stops.push(() => laptop.device.close());
    const phone = await play('A phone joins by six words', () => pair(laptop, server.url));
    stops.push(() => phone.device.close());
    const id = await play('The laptop writes, the phone has it', () => push(laptop, phone));
    await play('The phone answers', () => answer(phone, laptop, id));
    const written = await play('The phone was away, and catches up', () => replay(phone, laptop, id));
    await play('The laptop deletes', () => remove(laptop, phone, written[0] ?? ''));
    await play('The phone is lost: revoke it', () => revoke(laptop, phone));
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
