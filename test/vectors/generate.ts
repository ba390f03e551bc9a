/** Writes test/vectors/*.json (`npm run vectors`). The same inputs each time, so a second run changes nothing. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { PROJECT_ROOT } from '../../src/root.js';
import { archives } from './cases-archive.js';
import { blobs } from './cases-blob.js';
import type { Vector } from './cases.js';
import { certificates, pairings, passwords, phrases, reauthentications, recoveries } from './cases-devices.js';
import { binMetas, deletes, items, rewraps, wires } from './cases-items.js';
import { lengthPrefixes, primitives, wordCases } from './cases-primitives.js';

const target = join(PROJECT_ROOT, 'test', 'vectors');

function write(name: string, vectors: readonly Vector[]): void {
  writeFileSync(join(target, `${name}.json`), `${JSON.stringify(vectors, null, 2)}\n`);
}

const { codes, sessions } = await pairings();
write('primitives', primitives());
write('lp', lengthPrefixes());
write('words', wordCases());
write('phrase', await phrases());
write('password', await passwords());
write('pair-code', codes);
write('pairing', sessions);
write('device-cert', certificates());
write('reauth', reauthentications());
write('recovery', recoveries());
write('item', items());
write('item-delete', deletes());
write('rewrap', rewraps());
write('wire', wires());
write('bin-meta', binMetas());
write('blob', blobs());
write('archive', await archives());
