/** The same moment on two instances, many times: what the commit decides under its locks. */
import type { Test } from 'tap';
import { openClient } from '../../src/server/storage/database.js';
import { claim, edited, join, mustWrite, newItem, write, type TestDevice, type TestItem } from './devices.js';
import { testDatabase } from './postgres.js';
import { runServer, runSql } from './server.js';
import { difference, listAll, range } from './stream.js';
import type { Json, Reply, Wire } from './wire.js';

/** How many run side by side. */
const LANES = 16;

/** Runs `race` many times, several at once; answers what each found wrong. */
async function races(race: (number: number) => Promise<string>, count: number): Promise<string[]> {
  const wrong: string[] = [];
  let number = 0;
  await Promise.all(
    range(1, LANES).map(async () => {
      while (number < count) {
        const found = await race(number++);
        if (found !== '') wrong.push(found);
      }
    }),
  );
  return wrong.slice(0, 5);
}

const outcomes = (...replies: readonly Reply[]): string =>
  replies
    .map(({ outcome }) => outcome)
    .sort()
    .join(' | ');
const versionOf = (reply: Reply): number => (reply.status === 200 ? reply.number('version') : 0);

/** Runs the races on two instances; `count` of each kind, of the longer ones half. */
export async function racing(t: Test, count: number): Promise<void> {
  const database = await testDatabase(t);
  const [one, two] = [await runServer(t, { database }), await runServer(t, { database })];
  const first = await claim(one.wire);
  const second = await join(two.wire, first, { existingWire: one.wire, name: 'second' });
  const all = [first.id, second.id];
  const both = async <T>(here: (wire: Wire) => Promise<T>, there: (wire: Wire) => Promise<T>, swap: boolean) => {
    const [x, y] = swap ? [two.wire, one.wire] : [one.wire, two.wire];
    return Promise.all([here(x), there(y)]);
  };
  const headNow = async (): Promise<number> => (await listAll(one.wire, first.token)).head;
  const looking = await openClient({ url: database.url, name: 'tests', onLost: () => undefined });
  t.teardown(async () => looking.end());
  const rowOf = async (id: string): Promise<Json | undefined> => {
    const statement = "SELECT version, ts, deleted_at, encode(ct, 'hex') AS ct FROM items WHERE id = $1";
    return (await looking.query<Record<string, unknown>>(statement, [id])).rows[0];
  };

  t.test('INST-05: the same write on both gets one version, and both answers name it', async (t) => {
    const before = await headNow();
    const wrong = await races(async (number) => {
      const item = newItem(all);
      const device = number % 2 === 0 ? first : second;
      const [x, y] = await both(
        async (wire) => write(wire, device, item),
        async (wire) => write(wire, device, item, 'b'),
        number % 3 === 0,
      );
      if (outcomes(x, y) !== '200 | 200') return outcomes(x, y);
      return versionOf(x) === versionOf(y) ? '' : `${versionOf(x)} and ${versionOf(y)}`;
    }, count);
    t.same(wrong, []);
    t.equal(await headNow(), before + count, 'one version each');
  });

  t.test('INST-06: two writes of one id with the same time: one wins, the other is refused', async (t) => {
    const before = await headNow();
    const wrong = await races(async (number) => {
      const item = newItem(all);
      const other = edited(item, { ts: item.ts });
      const [x, y] = await both(
        async (wire) => write(wire, first, item),
        async (wire) => write(wire, second, other),
        number % 2 === 0,
      );
      if (outcomes(x, y) !== '200 | 409 conflict') return outcomes(x, y);
      const winner = x.status === 200 ? item : other;
      const stored = (await rowOf(item.id))?.['ct'];
      return stored === winner.ct.toString('hex') ? '' : 'the loser is stored';
    }, count);
    t.same(wrong, []);
    t.equal(await headNow(), before + count, 'one version each');
  });

  t.test('INST-06 RETRY-05: with a later time the later one stays, whichever came first', async (t) => {
    const wrong = await races(async (number) => {
      const item = newItem(all);
      const later = edited(item);
      const [x, y] = await both(
        async (wire) => write(wire, first, item),
        async (wire) => write(wire, second, later),
        number % 2 === 0,
      );
      if (y.status !== 200) return outcomes(x, y);
      if (x.status === 200 ? versionOf(x) > versionOf(y) : x.outcome !== '409 conflict')
        return `${outcomes(x, y)} in the wrong order`;
      const row = await rowOf(item.id);
      return row?.['ct'] === later.ct.toString('hex') && row['version'] === versionOf(y)
        ? ''
        : 'the earlier one is stored';
    }, count);
    t.same(wrong, []);
  });

  t.test('INST-07: a write and a delete: deleted in the end, or the write came first', async (t) => {
    const items = range(1, count).map(() => newItem(all));
    for (let at = 0; at < items.length; at += 50) {
      await Promise.all(items.slice(at, at + 50).map(async (item) => mustWrite(one.wire, first, item)));
    }
    const wrong = await races(async (number) => {
      const item = items[number] as TestItem;
      const [x, y] = await both(
        async (wire) => write(wire, first, edited(item)),
        async (wire) => wire.delete(`/items/${item.id}`, { token: second.token, shape: 'a' }),
        number % 2 === 0,
      );
      if (y.status !== 200 || (x.status !== 200 && x.outcome !== '409 conflict')) return outcomes(x, y);
      if (versionOf(x) > versionOf(y)) return 'a write after the delete was accepted';
      const row = await rowOf(item.id);
      return row?.['deleted_at'] !== null && row?.['version'] === versionOf(y) ? '' : 'alive after its delete';
    }, count);
    t.same(wrong, []);
  });

  t.test(
    'INST-05 INST-14: of writes against one version exactly one gets through, on one instance and on two',
    async (t) => {
      const wrong = await races(async (number) => {
        const item = newItem(all);
        const version = await mustWrite(one.wire, first, item);
        const edits = range(1, 3).map((step) => edited(item, { ts: item.ts + step, ifVersion: version }));
        const wires = number % 2 === 0 ? [one.wire, one.wire, one.wire] : [one.wire, two.wire, two.wire];
        const replies = await Promise.all(edits.map(async (edit, at) => write(wires[at] ?? one.wire, second, edit)));
        return outcomes(...replies) === '200 | 409 conflict | 409 conflict' ? '' : outcomes(...replies);
      }, count / 2);
      t.same(wrong, []);
    },
  );

  t.test('INST-14: writes of one id that wait together are decided in some order of one after the other', async (t) => {
    const wrong = await races(async () => {
      const item = newItem(all);
      const edits = [item, edited(item), edited(edited(item)), edited(edited(edited(item)))];
      const replies = await Promise.all(edits.map(async (edit) => write(one.wire, first, edit)));
      const accepted = edits.flatMap((edit, at) =>
        replies[at]?.status === 200 ? [{ ts: edit.ts, version: versionOf(replies[at]) }] : [],
      );
      const sorted = [...accepted].sort((x, y) => x.version - y.version);
      if (sorted.some((edit, at) => at > 0 && edit.ts <= (sorted[at - 1]?.ts ?? 0)))
        return 'an earlier time came later';
      if (replies.some(({ outcome }) => outcome !== '200' && outcome !== '409 conflict')) return outcomes(...replies);
      const row = await rowOf(item.id);
      return row?.['ts'] === item.ts + 3 ? '' : `ends at ${String(row?.['ts'])}`;
    }, count / 2);
    t.same(wrong, []);
  });

  t.test('MOVE-04: a move and an edit: the edit is never lost, the move only where it came late', async (t) => {
    await one.wire.post('/bins', { id: 'other' }, { token: first.token });
    const wrong = await races(async (number) => {
      const item = newItem(all);
      const version = await mustWrite(one.wire, first, item);
      const move = { binId: 'other', version, sig: Buffer.alloc(32, 1) };
      const [x, y] = await both(
        async (wire) => write(wire, first, edited(item)),
        async (wire) => wire.post(`/items/${item.id}/reconcile`, move, { token: second.token, shape: 'a' }),
        number % 2 === 0,
      );
      if (x.status !== 200) return outcomes(x, y);
      if (y.status === 200) return versionOf(y) < versionOf(x) ? '' : 'a late move was accepted';
      return y.outcome === '409 conflict' ? '' : outcomes(x, y);
    }, count / 2);
    t.same(wrong, []);
  });

  t.test('INST-08: no item committed after a join lacks the new device', async (t) => {
    // Notes within the join's own transaction where the history stands: nothing can be committed in between.
    await runSql(
      database.url,
      `CREATE TABLE joined_at (device text, head bigint);
       CREATE FUNCTION note_join() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
         INSERT INTO joined_at SELECT NEW.id, head FROM tenants WHERE id = NEW.tenant_id; RETURN NULL; END $$;
       CREATE TRIGGER note_join AFTER INSERT ON devices FOR EACH ROW EXECUTE FUNCTION note_join()`,
    );
    const known = new Set(all);
    let stopped = false;
    const errors: string[] = [];
    let refused = 0;
    const writers = range(1, 8).map(async (number) => {
      while (!stopped) {
        const item = newItem([...known]);
        const reply = await write(number % 2 === 0 ? one.wire : two.wire, number % 3 === 0 ? first : second, item);
        if (reply.status === 200) continue;
        const missing = reply.at('error.details.missingDevices');
        if (reply.status !== 400 || !Array.isArray(missing)) errors.push(reply.raw);
        else {
          refused++;
          for (const id of missing) known.add(String(id));
        }
      }
    });
    const joined: TestDevice[] = [];
    for (const number of range(1, 25)) {
      const wires = number % 2 === 0 ? [one.wire, two.wire] : [two.wire, one.wire];
      joined.push(await join(wires[0] ?? one.wire, first, { existingWire: wires[1], name: `device ${number}` }));
    }
    stopped = true;
    await Promise.all(writers);
    t.same(errors, []);
    t.ok(refused > 0, 'writers were caught by joins');
    const heads = new Map(
      (await one.sql('SELECT device, head FROM joined_at')).map((row) => [row['device'], Number(row['head'])]),
    );
    t.ok(joined.every(({ id }) => heads.has(id)));
    const { rows } = await listAll(two.wire, first.token);
    const lacking = rows.flatMap((row) => {
      const keys = (row['payloadEnc'] as { keys?: Json } | null)?.keys;
      if (keys === undefined) return [];
      return joined
        .filter(({ id }) => Number(row['version']) > (heads.get(id) ?? 0) && !(id in keys))
        .map(({ id }) => [row['version'], id]);
    });
    t.same(lacking, []);
  });

  t.test('INST-09: after all that the history has no gap and no double', async (t) => {
    const rows = await one.sql('SELECT version FROM items ORDER BY version');
    const versions = rows.map((row) => Number(row['version']));
    t.equal(new Set(versions).size, versions.length);
    const listing = await listAll(two.wire, second.token);
    t.equal(
      difference(
        listing.changes.map(({ version }) => version),
        versions,
      ),
      '',
    );
    t.equal(versions.at(-1), listing.head, 'the last version is the head');
  });
}
