/** Real clients on a real server, with a wire between them that a test can listen to and tamper with. */
import { next as nextOf } from '../../src/demo/expecting.js';
import { Device } from '../../src/sdk/device.js';
import { prepareClaim } from '../../src/sdk/enrol.js';
import type { DeviceEvents, EventName, ItemView } from '../../src/sdk/events.js';
import type { Identity } from '../../src/sdk/identity.js';
import { nodeSockets } from '../../src/sdk/node-platform.js';
import { join } from '../../src/sdk/pairing.js';
import type { Platform } from '../../src/sdk/platform.js';
import type { Store } from '../../src/sdk/store/store.js';
import { nodeSodium } from '../../src/crypto/sodium-node.js';
import type { Sodium } from '../../src/crypto/sodium.js';
import { lengthPrefixed } from '../../src/protocol/bytes.js';
import { systemClock, type Clock } from '../../src/protocol/clock.js';
import { soon, SOON_MS } from './events.js';
import type { WithTeardown } from './postgres.js';
import { runServer, type RunOptions, type Running } from './server.js';

type Json = Record<string, unknown>;

/** A call as it went over the wire. */
interface WireCall {
  readonly method: string;
  /** Below `/api`; of a GET with the query, which of a change is only its epoch. */
  readonly path: string;
  readonly body: Json | null;
}

/** The wire of one client. Set a hook to alter or to look at what passes. */
export interface Wiretap {
  readonly platform: Platform;
  readonly calls: WireCall[];
  /** URLs of the sockets that were opened. */
  readonly sockets: string[];
  /** Frames that arrived, as the client got them. */
  readonly frames: Json[];
  /** Everything that the client sent, as one text. */
  sent(): string;
  /** What the client gets instead of this answer; undefined: the true one. */
  alterReply: (call: WireCall, answer: Json) => Json | undefined;
  /** What the server gets instead of this body; undefined: the true one. */
  alterRequest: (call: WireCall) => Json | undefined;
  /** Asks a signed address; default: as it is. */
  blobs: (url: string, init: RequestInit) => Promise<Response>;
  /** What the client gets instead of this frame; null: nothing. */
  alterFrame: (frame: Json) => Json | null;
}

/**
 * libsodium with a quick hash in the place of Argon2id, on every side alike: stretching is proven by the vectors, and
 * these tests would spend most of their time in it. What is stretched and what becomes of it is the real thing.
 */
const quickSodium: Sodium = {
  ...nodeSodium,
  argon2id13: ({ length, password, salt }) =>
    Promise.resolve(nodeSodium.blake2b(length, lengthPrefixed(password, salt))),
};

/** A platform with a wiretap. `clock` is the client's own; the server has another. */
export function wiretap(clock: Clock = systemClock): Wiretap {
  const sentFrames: string[] = [];
  const tap: Wiretap = {
    calls: [],
    sockets: [],
    frames: [],
    sent: () => [...tap.calls.map((call) => JSON.stringify(call)), ...sentFrames, ...tap.sockets].join('\n'),
    alterReply: () => undefined,
    alterRequest: () => undefined,
    alterFrame: (frame) => frame,
    blobs: (url, init) => fetch(url, init),
    platform: {
      sodium: quickSodium,
      clock,
      random: () => 0.5,
      fetch: (url, init) => exchange(tap, url, init),
      sockets: {
        open: (url, events) => {
          tap.sockets.push(url);
          const socket = nodeSockets.open(url, {
            opened: () => events.opened(),
            closed: (code, reason) => events.closed(code, reason),
            message: (text) => {
              const frame = tap.alterFrame(JSON.parse(text) as Json);
              if (frame === null) return;
              tap.frames.push(frame);
              events.message(JSON.stringify(frame));
            },
          });
          return {
            ...socket,
            send: (text) => {
              sentFrames.push(text);
              socket.send(text);
            },
          };
        },
      },
    },
  };
  return tap;
}

async function exchange(tap: Wiretap, url: string, init: RequestInit): Promise<Response> {
  const { pathname, search } = new URL(url);
  // A blob is bytes, and goes between client and store: `blobs` of the tap sees it.
  if (!pathname.startsWith('/api')) return tap.blobs(url, init);
  const body = typeof init.body === 'string' ? (JSON.parse(init.body) as Json) : null;
  const { method = 'GET' } = init;
  const call = { method, path: `${pathname.replace(/^\/api/, '')}${method === 'GET' ? search : ''}`, body };
  tap.calls.push(call);
  const altered = tap.alterRequest(call);
  const response = await fetch(url, altered === undefined ? init : { ...init, body: JSON.stringify(altered) });
  const text = await response.text();
  const answer = response.ok ? tap.alterReply(call, JSON.parse(text) as Json) : undefined;
  return new Response(answer === undefined ? text : JSON.stringify(answer), {
    status: response.status,
    headers: response.headers,
  });
}

/** A device of the test, with its wire and what went wrong in its background. */
export interface Client {
  readonly device: Device;
  readonly tap: Wiretap;
  readonly problems: Error[];
  identity(): Identity;
}

export interface World {
  readonly server: Running;
  readonly url: string;
  readonly first: Client;
  /** The twelve words that the first device was shown. */
  readonly phrase: string;
  /** Opens another program with an identity. */
  open(identity: Identity, options?: { readonly tap?: Wiretap; readonly store?: Store }): Promise<Client>;
  /** Pairs another device with the first one, over `tap`; the first one has re-wrapped. Not connected yet. */
  pair(name?: string, tap?: Wiretap): Promise<Client>;
}

/** A server, and a device that has claimed it. Not connected yet. */
export async function world(t: WithTeardown, options: RunOptions & { readonly tap?: Wiretap } = {}): Promise<World> {
  const server = await runServer(t, options);
  const url = `http://127.0.0.1:${server.port}`;
  const open: World['open'] = async (identity, { tap = wiretap(), store } = {}) => {
    const problems: Error[] = [];
    let current = identity;
    const device = await Device.open({
      platform: tap.platform,
      identity,
      store,
      onIdentity: (next) => {
        current = next;
      },
      onProblem: (error) => problems.push(error),
    });
    t.teardown(() => device.close());
    return { device, tap, problems, identity: () => current };
  };
  const tap = options.tap ?? wiretap();
  const claim = await prepareClaim({ platform: tap.platform, serverUrl: url, name: 'First', glyph: 'laptop' });
  const identity = await claim.register();
  const { phrase } = claim;
  const first = await open(identity, { tap });
  const pair: World['pair'] = async (name = 'Second', own = wiretap()) => {
    const device = { platform: own.platform, serverUrl: url, name, glyph: 'phone' as const };
    const joined = await letIn(first, (words) => join({ ...device, words, onDigits: () => undefined }));
    return open(joined, { tap: own });
  };
  return { server, url, first, phrase, open, pair };
}

/** A device lets another one in, whose `joining` is given the six words; resolves once it has re-wrapped its items. */
export async function letIn<T>(by: Client, joining: (words: string) => Promise<T>): Promise<T> {
  const rewrapped = next(by, 'rewrapped');
  const offer = await by.device.offerPairing(() => true);
  const [joined] = await Promise.all([joining(offer.words), offer.joined, rewrapped]);
  return joined;
}

/** The next event of a name that fits; rejects when none comes for long. */
export const next = <N extends EventName>(
  { device }: Pick<Client, 'device'>,
  name: N,
  fits?: (event: DeviceEvents[N]) => boolean,
): Promise<DeviceEvents[N]> => nextOf(device, name, fits, SOON_MS);

/** Waits until a device shows an item that fits: it may be there already. */
export async function shows(
  { device }: Pick<Client, 'device'>,
  id: string,
  fits: (item: ItemView) => boolean = () => true,
): Promise<ItemView> {
  // Heard from before it is looked for, or one that comes in between is missed. No timer runs unless it is waited for:
  // one that is left behind keeps the test's process alive until it fires.
  let unhear: (() => void) | undefined;
  const arrival = new Promise<ItemView>((resolve) => {
    unhear = device.on('item', (item) => {
      if (item.id === id && fits(item)) resolve(item);
    });
  });
  try {
    const here = await device.get(id);
    return here !== undefined && fits(here) ? here : await soon(arrival, `item ${id} on a device`);
  } finally {
    unhear?.();
  }
}

/** A text for the inbox. */
export const note = (text: string) => ({ binId: 'inbox', type: 'text' as const, payload: { text } });

/** Bodies of the item writes that a client sent, those in batches too. */
export const writes = (client: Pick<Client, 'tap'>): Json[] =>
  client.tap.calls.flatMap(({ path, body }) => {
    if (body === null || (path !== '/items' && path !== '/items/batch')) return [];
    return path === '/items' ? [body] : (body['items'] as Json[]);
  });

/** What a promise rejects with; fails when it does not. */
export async function refusal(work: Promise<unknown>): Promise<Error & { readonly code?: string }> {
  const error: unknown = await work.then(
    () => undefined,
    (cause: unknown) => cause,
  );
  if (!(error instanceof Error)) throw new Error('expected a refusal, and there was none');
  return error;
}
