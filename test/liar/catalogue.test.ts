/** Compares the catalogue of lies with the rules and the reference, so that none of the three goes stale alone. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import t from 'tap';
import { PROJECT_ROOT } from '../../src/root.js';
import { attacksPage, CATALOGUE, rules } from './catalogue.js';
import { formsOf } from './secrets.js';

t.test('the page attacks.md of the reference is the one generated from the catalogue', (t) => {
  const page = readFileSync(join(PROJECT_ROOT, 'src/docs/attacks.md'), 'utf8');
  t.equal(page, attacksPage(), 'attacks.md is up to date; otherwise run node build/test/liar/write-reference.js');
  t.end();
});

t.test('the LIAR rules are those generated from the catalogue, each lie once, in order', (t) => {
  const text = readFileSync(join(PROJECT_ROOT, 'test/rules/RULES.md'), 'utf8');
  t.same(
    text.split('\n').filter((line) => line.startsWith('- **LIAR-')),
    rules(),
    'RULES.md is up to date; otherwise run node build/test/liar/write-reference.js',
  );
  t.equal(new Set(CATALOGUE.map(({ id }) => id)).size, CATALOGUE.length);
  t.end();
});

t.test('the search for leaks finds a secret in every encoding and alignment', (t) => {
  const secret = Buffer.from([...Array.from({ length: 32 }, (_, at) => (at * 37 + 251) % 256)]);
  const forms = formsOf(secret);
  const found = (text: string): boolean => forms.some((form) => text.includes(form));
  for (let before = 0; before < 6; before++) {
    for (let behind = 0; behind < 6; behind++) {
      const around = Buffer.concat([Buffer.alloc(before, 0xaa), secret, Buffer.alloc(behind, 0x55)]);
      for (const encoding of ['base64', 'base64url', 'hex', 'latin1'] as const) {
        t.ok(found(around.toString(encoding)), `found in ${encoding}, ${before} bytes before and ${behind} behind`);
      }
    }
  }
  t.ok(found(JSON.stringify({ key: [...secret] })), 'found as a list of numbers');
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
