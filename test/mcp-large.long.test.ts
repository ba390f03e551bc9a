/** The first reading of a large vault by the program itself: its progress, its memory, and how fast a search is. */
import { readFileSync } from 'node:fs';
import t from 'tap';
import type { Device } from '../src/sdk/device.js';
import { world } from './support/client-world.js';
import type { Listing } from './support/mcp.js';
import { home, started } from './support/mcp-process.js';

t.setTimeout(840_000);

const ITEMS = Number(process.env['MCP_ITEMS'] ?? 50_000);
/** Characters of each item's text. */
const LENGTH = Number(process.env['MCP_LENGTH'] ?? 500);
const AT_ONCE = 1_000;
const WORDS = 'the quick brown fox jumps over a lazy dog while it rains in spring and nobody looks'.split(' ');

/** Text of words, different for each item. */
function textOf(at: number): string {
  let text = `Item number ${at}.`;
  for (let word = at; text.length < LENGTH; word = (word * 31 + 7) % 1_000_003)
    text += ` ${WORDS[word % WORDS.length]}`;
  return text;
}

async function fill(device: Device): Promise<void> {
  for (let at = 0; at < ITEMS; at += AT_ONCE) {
    const puts = Array.from({ length: Math.min(AT_ONCE, ITEMS - at) }, (_, next) =>
      device.put({ binId: 'inbox', type: 'text', payload: { text: textOf(at + next) } }),
    );
    await Promise.all(puts);
  }
}

const memoryOf = (pid: number | null, field: 'VmHWM' | 'VmRSS'): number =>
  Number(new RegExp(`${field}:\\s+(\\d+) kB`).exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024;

t.test('MCP-58: a first reading of 50,000 items reports progress and takes less than 300 MB', async (t) => {
  const all = await world(t);
  await all.first.device.connect();
  const second = await all.pair('Agent');
  second.device.close();
  await fill(all.first.device);
  const { client, transport } = await started(t, await home(t, second.identity()));
  const steps: number[] = [];
  const call = async (query: string): Promise<{ found: Listing; ms: number }> => {
    const began = performance.now();
    const params = { name: 'sb_search', arguments: { query } };
    const onprogress = ({ progress }: { progress: number }): void => void steps.push(progress);
    const result = await client.callTool(params, undefined, { onprogress, timeout: 300_000 });
    return { found: result.structuredContent as Listing, ms: performance.now() - began };
  };
  const first = await call(`number ${ITEMS - 1}.`);
  t.equal(first.found.total, 1);
  t.equal(first.found.complete, true);
  t.ok(steps.length >= Math.min(20, ITEMS / 500 - 2), `progress was reported ${steps.length} times`);
  t.same(
    steps,
    [...steps].sort((one, other) => one - other),
  );
  const peak = memoryOf(transport.pid, 'VmHWM');
  t.comment(`first reading: ${Math.round(first.ms)} ms, peak ${Math.round(peak)} MB`);
  const times: string[] = [];
  for (const query of ['number 4242.', 'brown', 'nowhere at all', 'quick brown', 'number 1']) {
    const { found, ms } = await call(query);
    times.push(`"${query}" ${found.total} in ${Math.round(ms)} ms`);
  }
  t.comment(`searches: ${times.join(', ')}; memory ${Math.round(memoryOf(transport.pid, 'VmRSS'))} MB`);
  t.ok(memoryOf(transport.pid, 'VmHWM') < 300, `under 300 MB: ${Math.round(memoryOf(transport.pid, 'VmHWM'))}`);
});
