/** Bodies that cost a server more than their sender: JSON that is deep, or has many names, or is dear to look at. */
import type { Neighbour } from './hosted.js';

const names = (count: number, name: (n: number) => string): string =>
  Array.from({ length: count }, (_, n) => `${JSON.stringify(name(n))}:0`).join(',');

/** Each is a body of a batch, a little below 1 MiB where that is possible, and none says anything. */
export const JUNK: Readonly<Record<string, string>> = {
  'nested lists': `${'['.repeat(500_000)}${']'.repeat(500_000)}`,
  'open lists': '['.repeat(1_000_000),
  'nested objects': `${'{"a":'.repeat(160_000)}0${'}'.repeat(160_000)}`,
  '80,000 names': `{${names(80_000, (n) => `k${n}`)}}`,
  'as many values as are let through': `{"items":[${Array(32_700).fill('1.000000000000000111022302').join(',')}]}`,
  'as many objects as are let through': `{"items":[${Array.from({ length: 10_900 }, (_, n) => `{"k${n}":0}`).join(',')}]}`,
  'as many names as are let through': `{"items":[],${names(16_300, (n) => `a_b_${n}`.padStart(56, '_c'))}}`,
  'one number': `{"items":${'1'.repeat(1_000_000)}}`,
};

/** Sends a body as a batch of shape B, where names are looked at; answers how it ended. */
export const sendJunk = async ({ wire, device }: Neighbour, body: string): Promise<string> =>
  (await wire.ask('POST', '/items/batch', { token: device.token, shape: 'b', body })).outcome;
