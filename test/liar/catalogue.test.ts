/** The catalogue of lies, held against the rules and the reference: none of the three goes stale alone. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import t from 'tap';
import { PROJECT_ROOT } from '../../src/root.js';
import { attacksPage, CATALOGUE, rules } from './catalogue.js';
import { formsOf } from './secrets.js';

t.test('the page of the reference is the one that the catalogue makes', (t) => {
  const page = readFileSync(join(PROJECT_ROOT, 'src/docs/attacks.md'), 'utf8');
  t.equal(page, attacksPage(), 'else: node build/test/liar/write-reference.js');
  t.end();
});

t.test('the rules are those of the catalogue, each lie once, in order', (t) => {
  const text = readFileSync(join(PROJECT_ROOT, 'test/rules/RULES.md'), 'utf8');
  t.same(
    text.split('\n').filter((line) => line.startsWith('- **LIAR-')),
    rules(),
    'else: node build/test/liar/write-reference.js',
  );
  const ids = CATALOGUE.map(({ id }) => id);
  t.same(
    ids,
    [...new Set(ids)].sort((one, other) => one.localeCompare(other, 'en', { numeric: true })),
  );
  t.end();
});

t.test('what was sent is searched for a secret in every form, whatever stands around it', (t) => {
  const secret = Buffer.from([...Array.from({ length: 32 }, (_, at) => (at * 37 + 251) % 256)]);
  const forms = formsOf(secret);
  const found = (text: string): boolean => forms.some((form) => text.includes(form));
  for (let before = 0; before < 6; before++) {
    for (let behind = 0; behind < 6; behind++) {
      const around = Buffer.concat([Buffer.alloc(before, 0xaa), secret, Buffer.alloc(behind, 0x55)]);
      for (const encoding of ['base64', 'base64url', 'hex', 'latin1'] as const) {
        t.ok(found(around.toString(encoding)), `${encoding}, ${before} before and ${behind} behind`);
      }
    }
  }
  t.ok(found(JSON.stringify({ key: [...secret] })), 'as numbers');
  t.notOk(found(Buffer.from(secret.map((byte) => byte ^ 1)).toString('base64')));
  const words = 'abandon ability able about above absent';
  for (const sent of [
    words,
    words.replaceAll(' ', '-'),
    encodeURIComponent(words),
    Buffer.from(words).toString('base64'),
  ]) {
    t.ok(
      formsOf(words).some((form) => sent.includes(form)),
      sent,
    );
  }
  t.end();
});
