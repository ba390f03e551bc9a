/** Rates and what they count by. Limits are found by behaviour: where none is met, the rule is skipped. */
import { randomInt } from 'node:crypto';
import { newCode, newId, writeBody } from '../../support/devices.js';
import type { Ask, Json, Reply } from '../../support/wire.js';
import { CODES, type Case, type Stage } from '../stage.js';

/** Calls sent at once. The contract's limits are 100 reads and 10 writes a second. */
const READS = 400;
const WRITES = 80;

const burst = async (count: number, call: () => Promise<Reply>): Promise<Reply[]> =>
  Promise.all(Array.from({ length: count }, call));
const limited = (replies: readonly Reply[]): Reply[] => replies.filter(({ status }) => status === 429);

const read = async (stage: Stage, device = stage.first): Promise<Reply> =>
  stage.wire.once('GET', '/me', stage.as(stage.shape, device));
const write = async (stage: Stage, device = stage.first): Promise<Reply> =>
  stage.wire.once('POST', '/items', { ...stage.as(stage.shape, device), body: writeBody(stage.shape, stage.item()) });

const buckets: Case = {
  ids: ['RATE-01', 'RATE-02', 'RATE-05', 'RATE-06', 'RATE-07', 'RATE-08'],
  async run(stage, check) {
    for (const [id, count, call, other] of [
      ['RATE-01', READS, async () => read(stage), async () => read(stage, stage.second)],
      ['RATE-02', WRITES, async () => write(stage), async () => write(stage, stage.second)],
    ] as const) {
      const replies = await burst(count, call);
      const [refusal] = limited(replies);
      if (refusal === undefined) {
        check.skip(id, `no limit was met by ${count} calls at once`);
        continue;
      }
      check.outcome('RATE-06', await other(), '200', 'another device meanwhile');
      for (const one of limited(replies)) {
        check.outcome(id, one, '429 rate_limited');
        check.of(
          'RATE-07',
          one,
          /^[1-9]\d*$/.test(String(one.headers['retry-after'])),
          `Retry-After in whole seconds, not '${String(one.headers['retry-after'])}'`,
        );
      }
      await stage.world.pause(Number(refusal.headers['retry-after']) * 1_000);
      const after = await call();
      check.outcome('RATE-08', after, '200', 'after Retry-After');
      check.outcome('RATE-05', after, '200', 'the bucket fills again');
    }
    for (const id of check.ids) check.skip(id, 'no limit was met');
  },
};

const kinds: Case = {
  ids: ['RATE-03', 'RATE-04', 'BATCH-05', 'ERR-11', 'ERR-12'],
  async run(stage, check) {
    const { wire, shape } = stage;
    const id = newId();
    const ask = async (method: string, path: string, more: Ask = {}): Promise<Reply> =>
      wire.once(method, path, { ...stage.as(), ...(method === 'GET' ? {} : { body: '{"not": "valid"' }), ...more });
    if (limited(await burst(WRITES, async () => write(stage))).length === 0) {
      for (const one of check.ids) check.skip(one, 'no limit was met');
      return;
    }
    const writes = [
      ['POST', '/items'],
      ['POST', '/items/batch'],
      ['DELETE', `/items/${id}`],
      ['POST', `/items/${id}/reconcile`],
    ] as const;
    for (const [method, path] of writes) {
      const replies = await burst(WRITES, async () => ask(method, path));
      check.ok(
        'RATE-03',
        limited(replies).length > 0,
        `${WRITES} calls of ${method} ${path} at once pass the write rate`,
        'none was 429',
      );
      const early = replies.find(({ status }) => status !== 429 && status !== 400);
      check.ok(
        'ERR-12',
        early === undefined && limited(replies).length > 0,
        'a bad body is 429 over the rate, 400 below',
        early?.outcome ?? replies.map((one) => one.status),
      );
      const bad = await burst(10, async () => ask(method, path, { token: 'nonsense' }));
      for (const reply of bad) check.outcome('ERR-11', reply, CODES.badToken[shape], 'a bad token, the rate used up');
      check.same(
        'RATE-03',
        (await wire.once('GET', '/items?since=0&limit=1', stage.as())).status,
        200,
        'status of a read while the write rate is used up',
      );
    }
    await stage.world.pause(1_100);
    const batch: Json = { items: Array.from({ length: 40 }, () => writeBody(shape, stage.item())) };
    const one = await wire.once('POST', '/items/batch', { ...stage.as(), body: batch });
    check.outcome('BATCH-05', one, '200', 'a batch of 40 where single writes are limited');
    check.outcome('BATCH-05', await write(stage), '200', 'one more write right after it');
    if (limited(await burst(READS, async () => read(stage))).length === 0)
      return check.skip('RATE-04', 'no limit of reads was met');
    for (const [method, path] of [
      ['GET', '/bins'],
      ['POST', '/bins'],
      ['GET', '/devices'],
      ['POST', '/devices/pair-init'],
      ['POST', '/ws-ticket'],
    ] as const) {
      const body = method === 'GET' ? {} : { body: '{"not": "valid"' };
      const replies = await burst(READS, async () => ask(method, path, body));
      check.ok(
        'RATE-04',
        limited(replies).length > 0,
        `${READS} calls of ${method} ${path} at once pass the read rate`,
        'none was 429',
      );
    }
  },
};

/** With a limit of 5 calls a minute the sixth is refused; one more is for servers that allow more. */
const ATTEMPTS = 7;

/** Calls until one is refused; where the server trusts this machine as a proxy, all come from the address `from`. */
async function attempts(
  stage: Stage,
  path: string,
  body: () => Json,
  more: Ask & { readonly from: string },
): Promise<Reply[]> {
  const { from, ...ask } = more;
  const replies: Reply[] = [];
  for (let count = 0; count < ATTEMPTS; count++) {
    const headers = { 'x-forwarded-for': from };
    const reply = await stage.wire.once('POST', path, { ...ask, shape: stage.shape, headers, body: body() });
    replies.push(reply);
    if (reply.status === 429) break;
  }
  return replies;
}

/** A random address of the benchmarking network 198.18.0.0/15 (RFC 2544), which no client has. */
const address = (): string => `198.${18 + randomInt(2)}.${randomInt(256)}.${randomInt(256)}`;

const attemptsPerMinute: Case = {
  ids: ['RATE-09', 'RATE-11', 'RATE-12', 'RATE-14'],
  once: true,
  async run(stage, check) {
    const { first } = stage;
    const password = (): Json => ({ password: newId(), currentPassword: 'never' });
    await stage.world.protect();
    const table: readonly (readonly [string, string, () => Json, Ask])[] = [
      ['RATE-09', '/devices/pair-fetch-epk', () => ({ code: newCode() }), {}],
      ['RATE-11', '/password/verify', () => ({ password: 'x' }), {}],
      ['RATE-12', '/devices/reauth/challenge', () => ({ deviceId: first.id }), {}],
      ['RATE-12', '/devices/recover/challenge', () => ({}), {}],
      ['RATE-14', '/password/set', password, { token: first.token }],
    ];
    for (const [id, path, body, more] of table) {
      const replies = await attempts(stage, path, body, { ...more, from: address() });
      const [refusal] = limited(replies);
      if (refusal === undefined) {
        check.skip(id, `no limit was met by ${ATTEMPTS} calls`);
        continue;
      }
      check.outcome(id, refusal, '429 rate_limited');
      check.of(id, refusal, Number(refusal.headers['retry-after']) >= 1, 'Retry-After');
      const most = id === 'RATE-11' || id === 'RATE-12' ? 5 : ATTEMPTS;
      check.ok(id, replies.length - 1 <= most, `at most ${most} calls a minute`, replies.length - 1);
      if (id !== 'RATE-14') continue;
      const elsewhere = await attempts(stage, path, body, { ...more, from: address() });
      check.same(
        id,
        elsewhere[0]?.status,
        429,
        'status of the first call from another address: the limit counts by device',
      );
    }
  },
};

const addresses: Case = {
  ids: ['HTTP-10', 'HTTP-12'],
  once: true,
  async run(stage, check) {
    const code = (): Json => ({ code: newCode() });
    const mine = address();
    const used = await attempts(stage, '/devices/pair-fetch-epk', code, { from: mine });
    const skip = (reason: string): void => check.ids.forEach((id) => check.skip(id, reason));
    if (limited(used).length === 0) return skip('no limit by address was met');
    const once = async (forwarded: string): Promise<number> =>
      (
        await stage.wire.once('POST', '/devices/pair-fetch-epk', {
          shape: stage.shape,
          headers: { 'x-forwarded-for': forwarded },
          body: code(),
        })
      ).status;
    if ((await once(address())) === 429) return skip('the server does not trust this machine as a proxy');
    check.same(
      'HTTP-10',
      await once(`${address()}, ${mine}`),
      429,
      'status where the right-most hop has used up its rate',
    );
    check.ok('HTTP-10', (await once(`${mine}, ${address()}`)) !== 429, 'another right-most hop is let through', 429);
    const net = `2001:db8:${randomInt(65_536).toString(16)}:${randomInt(1, 65_536).toString(16)}`;
    const wide = await attempts(stage, '/devices/pair-fetch-epk', code, { from: `${net}::1` });
    if (limited(wide).length === 0) return;
    check.same('HTTP-12', await once(`${net}:ffff::2`), 429, 'status of another address of the same IPv6 /64');
  },
};

export const rates: readonly Case[] = [buckets, kinds, attemptsPerMinute, addresses];
