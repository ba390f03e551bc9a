/** Both bindings of the crypto core against test/vectors/*.json. */
import t, { type Test } from 'tap';
import { CryptoRefusal } from '../src/crypto/refusal.js';
import { loadBrowserSodium } from '../src/crypto/sodium-browser.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import type { Sodium } from '../src/crypto/sodium.js';
import { checks, vectorFiles, vectors } from './vectors/check.js';

type Result = { readonly refused: boolean; readonly value: unknown };

/** The result of a check; a refusal is a result, any other error is not. */
async function resultOf(run: () => unknown): Promise<Result> {
  try {
    const value = (await run()) as Record<string, unknown>;
    return { refused: 'reason' in value, value };
  } catch (error) {
    if (error instanceof CryptoRefusal) return { refused: true, value: { reason: error.reason } };
    throw error;
  }
}

/** Runs the vectors of every file whose `valid` is as given; fails where there are hardly any. */
async function runAll(t: Test, sodium: Sodium, valid: boolean): Promise<void> {
  let ran = 0;
  for (const [file, check] of Object.entries(checks)) {
    for (const vector of vectors(file)) {
      if (vector.valid !== valid) continue;
      const result = await resultOf(() => check(sodium, vector.input));
      t.same(result, { refused: !valid, value: vector.expected }, `${file}: ${vector.comment}`);
      ran++;
    }
  }
  t.ok(ran > 60, `${ran} vectors ran`);
}

void t.test(
  'CRYPTO-01: every vector file is checked, and the Node binding gives what its valid vectors expect',
  async (t) => {
    t.same(Object.keys(checks).sort(), vectorFiles(), 'one check for each file');
    const odd = vectorFiles()
      .flatMap(vectors)
      .filter(
        (vector) => Object.keys(vector).sort().join() !== 'comment,expected,input,valid' || vector.comment === '',
      );
    t.same(odd, [], 'each is {comment, input, expected, valid}');
    await runAll(t, nodeSodium, true);
  },
);

void t.test('CRYPTO-02: the browser binding gives what the same valid vectors expect', async (t) => {
  await runAll(t, await loadBrowserSodium(), true);
});

void t.test('CRYPTO-03: both bindings refuse every vector that is not valid, for the reason it gives', async (t) => {
  await runAll(t, nodeSodium, false);
  await runAll(t, await loadBrowserSodium(), false);
});
