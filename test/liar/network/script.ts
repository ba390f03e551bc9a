/** What a lie is when it is told over the network, and the helpers with which they are written. */
import { readRules } from '../../conformance/rules.js';
import type { Desk } from './desk.js';

/** A lie as it is told over the network. */
export interface NetworkLie {
  /** Of the catalogue; `HONEST-NN`: no lie, and nothing may be said. */
  readonly id: string;
  /** What the server does. */
  readonly does: string;
  /** Where the reference says what a client does about it. */
  readonly page: string;
  /**
   * What it means if the client says nothing: `right` where there is nothing to say, `silent` where nothing wrong came of
   * it and yet its user must be told, `believed` where saying it is all that can be done.
   */
  readonly silence: 'right' | 'silent' | 'believed';
  /** False: the client is given no device before it. */
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

/** The catalogue itself is bound to the tests: a rule says the same. */
const RULES = new Map(readRules().map(({ id, sentence }) => [id, sentence]));

export function told(number: number, page: keyof typeof PAGES, script: Script): NetworkLie {
  const id = `LIAR-${String(number).padStart(2, '0')}`;
  const sentence = RULES.get(id) ?? '';
  const does = /^A lying server (.+); (?:reported as: .*|it has no effect)\.$/.exec(sentence)?.[1] ?? sentence;
  return { id, does, page: PAGES[page], silence: 'believed', joined: true, ...script };
}

export const honest = (number: number, does: string, play: NetworkLie['play'], joined = true): NetworkLie => ({
  id: `HONEST-${String(number).padStart(2, '0')}`,
  does,
  page: 'conformance.md#prove-a-client',
  silence: 'right',
  joined,
  play,
});

/** A lie that is told when the client next comes up to date. */
export async function synced(desk: Desk): Promise<void> {
  await desk.sync();
}

export const numberOf = (id: string): number => Number(id.slice('LIAR-'.length));
