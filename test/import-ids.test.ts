/** The ids of what is imported, as the reference says how to derive them. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import t from 'tap';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { readCsv } from '../src/import/csv.js';
import { incomingOf } from '../src/import/records.js';
import { systemClock } from '../src/protocol/clock.js';
import { PROJECT_ROOT } from '../src/root.js';
import { b32, blake2b, lp, unhex, utf8 } from './vectors/reference.js';

const page = readFileSync(join(PROJECT_ROOT, 'src/docs/importing.md'), 'utf8');
/** A line of the example. */
const line = (name: string): string => new RegExp(`^    ${name} +(.*)$`, 'm').exec(page)?.[1] ?? '';

const DIGITS = '0123456789ABCDEFGHJKMNPQRSTVWXYZ';
/** The time 10^12 in Crockford base 32. */
const EARLIEST = '00X3AAA400';
const masterKey = unhex(line('master key'));

const derived = (...names: readonly string[]): string => {
  const random = blake2b(16, lp(...names), b32(utf8('service-import-id-v1'), masterKey));
  return EARLIEST + Array.from(random, (byte) => DIGITS.charAt(byte % 32)).join('');
};

t.test('IMPORT-03: the ids of the example are those that an import makes, and that its description gives', (t) => {
  const csv = /name,url,username,password\n +(.*)$/m.exec(page)?.[1] ?? '';
  const source = readCsv(`name,url,username,password\n${csv}\n`);
  if (source === undefined) throw new Error('the example is no CSV');
  const path = line('path');
  const entries = source.entries.map((entry) => ({ ...entry, folder: path }));
  const made = incomingOf({ ...source, entries, time: 0 }, { sodium: nodeSodium, clock: systemClock }, masterKey);
  t.equal(entries[0]?.key, line('entry'));
  const [program = '', part = ''] = line('program, part').split(', ');
  const [item, bin] = [derived('item', program, line('entry'), part), derived('bin', path)];
  t.same([[...made.ids()], [...made.bins.keys()]], [[item], [bin]]);
  t.same([line('id of the item'), line('id of the bin')], [item, bin]);
  t.end();
});
