/** Lies about the outcome of this device's own writes. */
import { nodeSodium } from '../../../src/crypto/sodium-node.js';
import { newId } from '../../support/client.js';
import { note } from '../../support/client-world.js';
import type { Lie } from '../lie.js';
import { base64url, type Json, type RawReply } from '../proxy.js';
import type { Stage } from '../stage.js';

const lie = (number: number, told: Omit<Lie, 'id' | 'family'>): Lie => ({
  id: `LIAR-${number}`,
  family: 'writes',
  ...told,
});

const isWrite = (method: string, path: string): boolean => method === 'POST' && path === '/items';

/** The victim writes: its promise, which a lie may reject. */
function write(stage: Stage, text: string, id = newId()): Promise<unknown> {
  stage.note(id, text);
  return stage.victim.put({ ...note(text), id, onConflict: 'overwrite' });
}

async function anItem(stage: Stage): Promise<string> {
  const [item] = await stage.victim.list();
  return item?.id ?? newId();
}

/** Bends the first reply to a write; a repeated write gets the true reply. */
function once(stage: Stage, change: (truth: Json) => Json, at = '/items'): void {
  let lied = false;
  stage.liar.answer = ({ method, path }, truth) => {
    if (lied || method !== 'POST' || path !== at) return undefined;
    lied = true;
    return change(truth);
  };
}

/** Five writes at once: the first is sent alone, the others as a batch. */
async function many(stage: Stage, change: (results: readonly Json[]) => readonly Json[]): Promise<void> {
  once(stage, (truth) => ({ ...truth, results: change(truth['results'] as Json[]) }), '/items/batch');
  const calls = Array.from({ length: 5 }, (_, at) => write(stage, `one of five: ${at}`));
  await Promise.allSettled(calls);
}

const refusal = (code: string, status: number, details: Json): RawReply => ({
  status,
  body: JSON.stringify({ error: { code, message: 'says the liar', details } }),
});

/** Details of a conflict that no server can mean, as JSON on the wire. */
const ABSURD: readonly string[] = [
  '{"version":9007199254740992,"ts":9007199254740992}',
  '{"version":9007199254740991,"ts":9007199254740990}',
  '{"version":-1,"ts":-1}',
  '{"version":1e400,"ts":1e400}',
  '{"version":0.5,"ts":0.5}',
  '{"version":"1","ts":"1"}',
  '{"version":null,"ts":{}}',
  '{"version":1,"ts":9007199254740990}',
];

const WRITER = 'The device that wrote';
const WAITS = 'The change waits in the outbox and is sent again: the same write is recognised';

const ACKS: readonly Lie[] = [
  lie(44, {
    does: 'acknowledges a version that never existed',
    notices: WRITER,
    named: ['problem ProtocolError bad_ack'],
    costs: 'Delay: the device reconnects; the cursor does not move',
    play: async (stage) => {
      stage.liar.say({ type: 'ack', id: await anItem(stage), version: 1_000_000 });
    },
  }),
  lie(45, {
    does: "acknowledges a change that was not made, in place of another device's change",
    notices: 'The device that gets the acknowledgement',
    named: ['problem ProtocolError bad_ack'],
    costs: 'Delay: the change arrives over the next connection',
    play: async (stage) => {
      stage.liar.frame = (frame) =>
        frame['type'] === 'item' ? [{ type: 'ack', id: newId(), version: frame['version'] }] : [frame];
      await stage.put('hidden behind an acknowledgement');
    },
  }),
  lie(46, {
    does: 'acknowledges a change with another version',
    notices: WRITER,
    named: ['problem ProtocolError bad_ack'],
    costs: 'Delay: the device reconnects; the cursor does not move',
    play: async (stage) => {
      stage.liar.frame = (frame) =>
        frame['type'] === 'ack' ? [{ ...frame, version: Number(frame['version']) + 1_000 }] : [frame];
      await write(stage, 'acknowledged wrongly');
    },
  }),
];

const REPLIES: readonly Lie[] = [
  lie(47, {
    does: 'answers a write with another id',
    notices: WRITER,
    named: ['problem ProtocolError wrong_reply', 'throws QueuedError queued'],
    costs: WAITS,
    play: async (stage) => {
      once(stage, (truth) => ({ ...truth, id: newId() }));
      await stage.fails(write(stage, 'answered with another id'));
    },
  }),
  lie(48, {
    does: 'answers a write with a later version than the true one',
    notices: 'The device that wrote, when the stream brings the true version',
    named: ['problem ProtocolError wrong_reply'],
    costs: 'Nothing',
    play: async (stage) => {
      once(stage, (truth) => ({ ...truth, version: Number(truth['version']) + 1_000 }));
      await write(stage, 'answered with a later version');
    },
  }),
  lie(49, {
    does: 'answers a write with an older version than the one it replaces',
    notices: WRITER,
    named: ['problem ProtocolError wrong_reply', 'throws QueuedError queued'],
    costs: WAITS,
    play: async (stage) => {
      const id = await anItem(stage);
      once(stage, (truth) => ({ ...truth, version: 0 }));
      await stage.fails(write(stage, 'answered with an older version', id));
    },
  }),
  lie(50, {
    does: 'answers a batch with too few results',
    notices: WRITER,
    named: ['problem ProtocolError wrong_reply'],
    costs: WAITS,
    play: (stage) => many(stage, (results) => results.slice(1)),
  }),
  lie(51, {
    does: 'answers a batch with too many results',
    notices: WRITER,
    named: ['problem ProtocolError wrong_reply'],
    costs: WAITS,
    play: (stage) => many(stage, (results) => [...results, ...results]),
  }),
  lie(52, {
    does: 'mixes up the results of a batch',
    notices: WRITER,
    named: ['problem ProtocolError wrong_reply'],
    costs: WAITS,
    play: (stage) => many(stage, (results) => [...results].reverse()),
  }),
];

const REFUSALS: readonly Lie[] = [
  lie(53, {
    does: 'invents a conflict with absurd details',
    notices: 'The device that wrote: it overwrites nothing because of such details',
    named: ['throws ApiError conflict'],
    costs: 'The write is refused, and the caller is notified',
    play: async (stage) => {
      const id = await anItem(stage);
      for (const details of ABSURD) {
        const body = `{"error":{"code":"conflict","message":"no","details":${details}}}`;
        stage.liar.raw = ({ method, path }) => (isWrite(method, path) ? { status: 409, body } : undefined);
        await stage.fails(stage.victim.put({ ...note('never accepted'), id, onConflict: 'overwrite' }));
      }
      const unlike = stage.told.filter((name) => name.startsWith('throws') && name !== 'throws ApiError conflict');
      if (unlike.length > 0) throw new Error(`told otherwise: ${unlike.join(', ')}`);
    },
  }),
  lie(54, {
    does: 'permanently refuses a valid write',
    notices: 'The caller, or event `rejected` with the content of the refused write',
    named: ['throws ApiError validation'],
    costs: 'The write is refused, and the caller is notified',
    play: async (stage) => {
      stage.liar.raw = ({ method, path }) => (isWrite(method, path) ? refusal('validation', 400, {}) : undefined);
      await stage.fails(stage.victim.put(note('refused without a reason')));
    },
  }),
  lie(55, {
    does: 'demands a key for an unknown device: it refuses a write that lacks a device that is not in the list',
    notices: 'The device that wrote: no device outside the certified list gets a key',
    named: ['throws ApiError validation'],
    costs: 'The write is refused, and the caller is notified',
    play: async (stage) => {
      const details = { missingDevices: [newId()], pubkey: base64url(nodeSodium.random(32)) };
      stage.liar.raw = ({ method, path }) => (isWrite(method, path) ? refusal('validation', 400, details) : undefined);
      await stage.fails(stage.victim.put(note('not for a stranger')));
    },
  }),
];

export const WRITE_LIES: readonly Lie[] = [...ACKS, ...REPLIES, ...REFUSALS];

export const BASE_LIE = lie(121, {
  does: 'answers a write with the version that it replaces, as if nothing had changed',
  notices: WRITER,
  named: ['problem ProtocolError wrong_reply', 'throws QueuedError queued'],
  costs: WAITS,
  play: async (stage) => {
    const item = (await stage.victim.list())[0];
    once(stage, (truth) => ({ ...truth, version: item?.version }));
    await stage.fails(write(stage, 'answered with its base', item?.id));
  },
});
