/** Lies below the contract: redirects, floods, times, and JSON of any shape. */
import { createServer } from 'node:http';
import { gzipSync } from 'node:zlib';
import { DeviceApi, PublicApi } from '../../../src/sdk/api.js';
import { ApiError, NetworkError, ProtocolError } from '../../../src/sdk/errors.js';
import { Http } from '../../../src/sdk/http.js';
import { systemClock } from '../../../src/protocol/clock.js';
import { listenOnLoopback } from '../../support/loopback-server.js';
import { at } from '../../support/wire.js';
import { nameOf, type Lie } from '../lie.js';
import type { RawReply } from '../proxy.js';
import { broken, FRAMES, SAMPLES, type Apis } from '../shapes.js';
import type { Stage } from '../stage.js';
import { platform } from '../victim.js';

const lie = (number: number, told: Omit<Lie, 'id' | 'family'>): Lie => ({
  id: `LIAR-${number}`,
  family: 'transport',
  ...told,
});

const CALLER = 'The call that gets it';
const FAILS = 'The call fails';
const REPLY_MAX = 16 * 1024 * 1024;

/** The victim requests its own identity and gets these answers. */
const answered =
  (replies: readonly RawReply[], named: string): Lie['play'] =>
  async (stage) => {
    for (const reply of replies) {
      stage.liar.raw = ({ path }) => (path === '/me' ? reply : undefined);
      await stage.fails(stage.victim.me());
    }
    const other = stage.told.find((name) => name.startsWith('throws') && name !== named);
    if (other !== undefined) throw new Error(`told otherwise: ${other}`);
  };

/** Another host, and what was sent to it. */
async function elsewhere(stage: Stage): Promise<{ readonly url: string; readonly heard: () => number }> {
  let heard = 0;
  const server = createServer((_, response) => {
    heard++;
    response.end('{}');
  });
  const port = await listenOnLoopback(server);
  stage.atEnd(() => new Promise((resolve) => server.close(resolve)));
  return { url: `http://127.0.0.1:${port}/api/me`, heard: () => heard };
}

async function redirects(stage: Stage): Promise<void> {
  const other = await elsewhere(stage);
  for (const status of [301, 302, 303, 307, 308]) {
    stage.liar.raw = () => ({ status, headers: { location: other.url } });
    await stage.fails(stage.victim.me());
  }
  if (other.heard() > 0) throw new Error('the redirect was followed');
}

/** A clock that shortens every wait, so that an endless call times out soon. */
const impatient = {
  ...platform,
  clock: {
    now: () => systemClock.now(),
    setTimer: (ms: number, callback: () => void) => systemClock.setTimer(ms / 200, callback),
  },
};

async function trickles(stage: Stage): Promise<void> {
  stage.liar.raw = ({ path }) => (path === '/me' ? { endless: true } : undefined);
  const device = await stage.device(stage.identity, impatient);
  await stage.fails(device.me());
  device.close();
}

/** A device whose token is refused, and what its renewal brings. */
async function renewed(stage: Stage, reply: Readonly<Record<string, unknown>>, calls: number): Promise<void> {
  const device = await stage.device({ ...stage.identity, token: { text: 'worthless', expiresAt: null } });
  stage.liar.answer = ({ path }, truth) => (path === '/devices/reauth' ? { ...truth, ...reply } : undefined);
  stage.liar.calls.length = 0;
  for (let call = 0; call < calls; call++) {
    await device.me().catch((error: unknown) => stage.fails(Promise.reject(error as Error)));
  }
  device.close();
}

async function times(stage: Stage): Promise<void> {
  for (const expiresAt of [0, 1, Date.now() - 1, Number.MAX_SAFE_INTEGER]) {
    await renewed(stage, { expiresAt }, 5);
    const renewals = stage.liar.calls.filter(({ path }) => path === '/devices/reauth').length;
    if (renewals !== 1) throw new Error(`${renewals} renewals with expiresAt ${expiresAt}`);
  }
}

async function tokens(stage: Stage): Promise<void> {
  for (const token of ['', 'a\r\nx-evil: 1', 'a b', 'ü', '\ud800', 'x'.repeat(100_000)])
    await renewed(stage, { token }, 1);
  if (stage.told.some((name) => name !== 'throws ProtocolError malformed')) throw new Error(stage.told.join(', '));
}

const isTyped = (error: unknown): boolean =>
  error instanceof ProtocolError || error instanceof ApiError || error instanceof NetworkError;

/** A page whose row is held as one that cannot be read (LIAR-15). */
const isUnreadable = (page: unknown): boolean => at(page, 'items.0.kind') === 'unreadable';

/** Every reply with every field broken: the error thrown must be one of ours, and no wrong type is taken. */
async function shapes(stage: Stage): Promise<void> {
  let answer = '';
  // Thousands of answers: they are handed to the library in place of the platform's `fetch`, without a network.
  const http = new Http({ ...platform, baseUrl: stage.liar.url, fetch: () => Promise.resolve(new Response(answer)) });
  const apis: Apis = {
    open: new PublicApi((request) => http.send(request)),
    own: new DeviceApi((request) => http.send(request, 'token')),
  };
  for (const { name, reply, call } of SAMPLES) {
    answer = JSON.stringify(reply);
    await call(apis).catch((error: unknown) => {
      throw new Error(`${name}: the true answer was refused: ${nameOf(error)}`, { cause: error });
    });
    let refused = 0;
    for (const { where, json, wrongType } of broken(reply)) {
      answer = json;
      const what = `${name}, ${where}: ${json.slice(0, 200)}`;
      const end = await call(apis).catch((error: unknown) => {
        refused++;
        if (!isTyped(error)) throw new Error(what, { cause: error });
        return error;
      });
      if (wrongType && nameOf(end) !== 'ProtocolError malformed' && !isUnreadable(end))
        throw new Error(`taken: ${what}`);
    }
    if (refused === 0) throw new Error(`${name}: nothing was refused`);
  }
  stage.liar.raw = ({ path }) => (path === '/me' ? { body: 'null' } : undefined);
  await stage.fails(stage.victim.me());
}

/** Every frame with every field broken, all in one connection. */
async function frames(stage: Stage): Promise<void> {
  for (const frame of FRAMES) stage.liar.say(...[...broken(frame)].map(({ json }) => json));
  stage.liar.say('', 'not JSON', '[', '{"type":', '['.repeat(100_000));
  await stage.hears(['problem ProtocolError malformed']);
  const untyped = stage.told.filter(
    (name) => name.startsWith('problem') && !/ (Protocol|Api|Network|Client)Error /.test(name),
  );
  if (untyped.length > 0) throw new Error(`told otherwise: ${untyped.join(', ')}`);
}

async function hugeFrame(stage: Stage): Promise<void> {
  const ended = new Promise<void>((resolve) => {
    const stop = stage.victim.on('connection', ({ state }) => {
      if (state !== 'waiting') return;
      stop();
      resolve();
    });
  });
  stage.liar.say('x'.repeat(9 * 1024 * 1024));
  await ended;
}

const limited = (retryAfter: string): RawReply => ({
  status: 429,
  headers: { 'retry-after': retryAfter },
  body: '{"error":{"code":"rate_limited","message":"later"}}',
});

export const TRANSPORT_LIES: readonly Lie[] = [
  lie(89, {
    does: 'redirects to another host, to have the token sent there',
    notices: 'The call that gets it; it follows no redirect',
    named: ['throws NetworkError network'],
    costs: FAILS,
    play: redirects,
  }),
  lie(90, {
    does: 'answers with more bytes than any reply of the contract has',
    notices: CALLER,
    named: ['throws ProtocolError too_large'],
    costs: 'The call fails, after 16 MiB',
    play: answered([{ body: ' '.repeat(REPLY_MAX + 1) }], 'throws ProtocolError too_large'),
  }),
  lie(91, {
    does: 'answers with a small body that decompresses to a large one',
    notices: CALLER,
    named: ['throws ProtocolError too_large'],
    costs: 'The call fails, after 16 MiB',
    play: answered(
      [{ headers: { 'content-encoding': 'gzip' }, body: gzipSync(Buffer.alloc(4 * REPLY_MAX, ' ')) }],
      'throws ProtocolError too_large',
    ),
  }),
  lie(92, {
    does: 'answers with extremely nested JSON, or with no JSON',
    notices: CALLER,
    named: ['throws ProtocolError malformed'],
    costs: FAILS,
    play: answered(
      [
        { body: '['.repeat(1_000_000) },
        { body: `${'['.repeat(1_000_000)}${']'.repeat(1_000_000)}` },
        { body: `${'{"a":'.repeat(200_000)}1${'}'.repeat(200_000)}` },
        { body: '' },
        { body: '<html>' },
        { body: Buffer.from([0xff, 0xfe, 0]) },
      ],
      'throws ProtocolError malformed',
    ),
  }),
  lie(93, {
    does: 'sends an endless answer',
    notices: CALLER,
    named: ['throws NetworkError timeout'],
    costs: 'The call fails, after 15 s per attempt',
    play: trickles,
  }),
  lie(94, {
    does: 'demands absurd waits',
    notices:
      'The call that gets it: a wait above 65 s is reported at once, and a value that is not a number is ignored',
    named: ['throws ApiError rate_limited'],
    costs: FAILS,
    play: answered(
      ['999999999', '9'.repeat(400), '-5', 'soon', '1e9', 'Fri, 31 Dec 9999 23:59:59 GMT'].map(limited),
      'throws ApiError rate_limited',
    ),
  }),
  lie(95, {
    does: 'claims that a token expired long ago, or never expires',
    notices: 'Nobody needs to: a token is renewed at most once a minute because of its age, and whenever it is refused',
    named: [],
    costs: 'Nothing; the header `Date` is not read',
    play: times,
  }),
  lie(96, {
    does: 'hands out a token that cannot be sent',
    notices: 'The device',
    named: ['throws ProtocolError malformed'],
    costs: 'The token is not renewed',
    play: tokens,
  }),
  lie(97, {
    does: 'answers with a wrong type in any field of any reply',
    notices: CALLER,
    named: ['throws ProtocolError malformed'],
    costs: FAILS,
    play: shapes,
  }),
  lie(98, {
    does: 'sends frames with a wrong type in any field',
    notices: 'Every device, on arrival; the connection stays open',
    named: ['problem ProtocolError malformed'],
    costs: 'The frame is lost; its content is found missing at the next `caught_up`',
    play: frames,
  }),
  lie(99, {
    does: 'sends a frame larger than the contract allows',
    notices: 'The platform, which ends the connection at 1 MiB',
    named: [],
    costs: 'Delay: the device reconnects',
    play: hugeFrame,
  }),
];
