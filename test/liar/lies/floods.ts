/** Endless lies: data that a server invents to fill up a device or to keep it reading for ever. */
import { IDLE_MAX, QUARANTINED_MAX } from '../../../src/sdk/replica.js';
import { nodeSodium } from '../../../src/crypto/sodium-node.js';
import { newId } from '../../support/client.js';
import type { Lie } from '../lie.js';
import { rows, type Json } from '../proxy.js';
import type { Stage } from '../stage.js';
import { deletedOne } from './stream.js';

const PAGE = 2_000;
const NOISE = Buffer.from(nodeSodium.random(80)).toString('base64url');
const NONCE = Buffer.from(nodeSodium.random(24)).toString('base64url');

/** A row of an unsigned item. */
const junk = (version: number, id = newId()): Json => ({
  ...{ id, binId: 'inbox', type: 'text', ts: 1_700_000_000_000, senderDevice: id, version, deletedAt: null },
  payloadEnc: { ct: NOISE, nonce: NONCE, keys: {} },
});

const gone = (version: number): Json => ({ id: newId(), binId: 'inbox', version, deletedAt: 1 });

/** Lists rows of its own for ever, with versions above `from`, and counts how many it has listed. */
const lists =
  (row: (version: number) => Json, most: number, from = 0) =>
  async (stage: Stage): Promise<void> => {
    let listed = 0;
    stage.liar.answer = ({ path }, page) => {
      if (!path.startsWith('/items?')) return undefined;
      const since = Math.max(from, Number(new URLSearchParams(path.slice(path.indexOf('?'))).get('since')));
      listed += PAGE;
      const made = Array.from({ length: PAGE }, (_, at) => row(since + 1 + at));
      return { ...rows(page, () => made), nextSince: since + PAGE, hasMore: true, reset: false };
    };
    await stage.fails(stage.victim.pull());
    if (listed > most + 3 * PAGE) throw new Error(`${listed} rows were read`);
    const { halted } = await stage.victim.status();
    if (halted === null) throw new Error('its status does not say so');
  };

const lie = (number: number, told: Omit<Lie, 'id' | 'family'>): Lie => ({
  id: `LIAR-${number}`,
  family: 'stream',
  ...told,
});

const READERS = 'Every device that reads the listing, at a limit';
const STOPS = 'Reading stops until the user connects again; data on the device stays, and writes are still sent';
/** The highest version that a client accepts; of so many items the sum is just below 2^53. */
const VERSION_MAX = 2 ** 40;
const SUM_MAX_ITEMS = 2 ** 53 / VERSION_MAX;
let repeated = newId();

export const FLOODS: readonly Lie[] = [
  lie(114, {
    does: 'lists an endless number of unsigned items',
    notices: READERS,
    named: ['throws ProtocolError quarantine_full'],
    costs: `${STOPS}. Some hundred bytes are kept per item, for at most ${QUARANTINED_MAX} items`,
    play: lists((version) => junk(version), QUARANTINED_MAX),
  }),
  lie(115, {
    does: 'lists the same item endlessly under newer versions',
    notices: READERS,
    named: ['throws ProtocolError endless_replay'],
    costs: STOPS,
    play: async (stage) => {
      repeated = newId();
      await lists((version) => junk(version, repeated), IDLE_MAX)(stage);
    },
  }),
  lie(116, {
    does: 'lists an endless number of deletes of items that never existed',
    notices: READERS,
    named: ['throws ProtocolError endless_replay'],
    costs: `${STOPS}. Nothing of the deletes is kept`,
    play: lists((version) => gone(version), IDLE_MAX),
  }),
  lie(117, {
    does: 'sends an endless number of unsigned items',
    notices: 'Every connected device, at a limit',
    named: ['problem ProtocolError quarantine_full'],
    costs: STOPS,
    play: async (stage) => {
      const { since } = (await stage.victim.status()).cursor;
      const halted = new Promise<void>((resolve) => {
        const stop = stage.victim.on('halted', () => {
          stop();
          resolve();
        });
      });
      let version = since;
      const frame = (): Json => {
        const { type, ...row } = junk(++version);
        return { ...row, type: 'item', itemType: type };
      };
      for (let sent = 0; sent <= QUARANTINED_MAX; sent += PAGE) stage.liar.say(...Array.from({ length: PAGE }, frame));
      await halted;
      const { connection } = await stage.victim.status();
      if (connection.state !== 'closed') throw new Error(`the connection is ${connection.state}`);
    },
  }),
  lie(131, {
    does: 'lists one delete of the user endlessly under newer versions',
    notices: READERS,
    named: ['throws ProtocolError endless_replay'],
    costs: STOPS,
    play: async (stage) => {
      const { id, gone } = await deletedOne(stage);
      const row = { id, binId: 'inbox', deletedAt: 1, sig: gone['sig'] };
      await lists((version) => ({ ...row, version }), IDLE_MAX)(stage);
    },
  }),
  lie(132, {
    does: 'lists versions so high that their sum is above 2^53',
    notices: READERS,
    named: ['throws ProtocolError bad_sum'],
    costs: STOPS,
    play: lists((version) => junk(version), SUM_MAX_ITEMS, VERSION_MAX - 4 * QUARANTINED_MAX),
  }),
];
