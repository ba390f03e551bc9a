/** The form of a lie over the network, and helpers to write one. */
import { readRules } from '../../conformance/rules.js';
import type { Desk } from './desk.js';

/** A lie that is played over the network. */
export interface NetworkLie {
  /** An id of the catalogue; `HONEST-NN`: no lie, and the client must report nothing. */
  readonly id: string;
  /** What the server does. */
  readonly does: string;
  /** The page of the reference that says what a client must do about it. */
  readonly page: string;
  /**
   * The outcome if the client reports nothing: `right` where there is nothing to report, `silent` where the lie did no
   * harm but the user must be notified, `believed` where a report is all that a client can do.
   */
  readonly silence: 'right' | 'silent' | 'believed';
  /** False: the client is not paired before the lie. */
  readonly joined: boolean;
  readonly play: (desk: Desk) => Promise<void>;
}

type Script = Pick<NetworkLie, 'play'> & Partial<Omit<NetworkLie, 'id' | 'does'>>;

const PAGES = {
  items: 'cryptography.md#items',
  stream: 'sockets.md#what-a-client-makes-of-an-item',
  cursor: 'sockets.md#the-cursor',
  reset: 'sockets.md#reset',
  devices: 'pairing.md#after-a-device-has-joined',
  pairing: 'pairing.md#pairing-a-new-device',
  claim: 'pairing.md#claiming-a-tenant',
  renewal: 'pairing.md#re-authentication',
  blobs: 'blobs.md#what-neither-side-assumes',
  replies: 'http.md#what-a-client-must-not-believe',
} as const;

/** Sentences of the rules, which are generated from the catalogue: importing it would import the test library. */
const RULES = new Map(readRules().map(({ id, sentence }) => [id, sentence]));

export function told(number: number, page: keyof typeof PAGES, script: Script): NetworkLie {
  const id = `LIAR-${String(number).padStart(2, '0')}`;
  const sentence = RULES.get(id) ?? '';
  const does = /^A lying server (.+); (?:reported as: .*|it has no effect)\.$/.exec(sentence)?.[1] ?? sentence;
  return { id, does, page: PAGES[page], silence: 'believed', joined: true, ...script };
}

export const honest = (number: number, does: string, play: NetworkLie['play']): NetworkLie => ({
  id: `HONEST-${String(number).padStart(2, '0')}`,
  does,
  page: 'conformance.md#prove-a-client',
  silence: 'right',
  joined: true,
  play,
});

export const numberOf = (id: string): number => Number(id.slice('LIAR-'.length));
