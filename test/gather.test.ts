/** Callers that share a statement (src/postgres/gather.ts). */
import t from 'tap';
import { Gather } from '../src/postgres/gather.js';
import { ServiceError } from '../src/protocol/errors.js';
import { refusal } from './support/accounts.js';

t.test('ERR-15: callers beyond the bound are refused at once, those who wait are served', async (t) => {
  let go: (() => void) | undefined;
  const stands = new Promise<void>((resolve) => (go = resolve));
  const gather = new Gather<number, number>(
    2,
    async (keys) => {
      await stands;
      return keys.map((key) => key * 10);
    },
    5,
  );
  const asked = Array.from({ length: 8 }, (_, key) => gather.ask(key));
  const settled = Promise.allSettled(asked);
  t.equal(await refusal(asked[5] as Promise<number>), 'unavailable');
  go?.();
  const ends = await settled;
  t.same(
    ends.slice(0, 5).map((end) => end.status === 'fulfilled' && end.value),
    [0, 10, 20, 30, 40],
  );
  for (const end of ends.slice(5)) t.ok(end.status === 'rejected' && end.reason instanceof ServiceError);
  t.equal(await gather.ask(9), 90, 'and it goes on');
});
