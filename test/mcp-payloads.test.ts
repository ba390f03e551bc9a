/** Payloads that can be put, and the detection of their type where none is given (the reference, Content types). */
import { Ajv } from 'ajv';
import fc from 'fast-check';
import t from 'tap';
import { Device } from '../src/sdk/device.js';
import type { Platform } from '../src/sdk/platform.js';
import { fieldsOf, detectPayload, PayloadError, shapedPayload } from '../src/sdk/payloads/shapes.js';
import { mcpPlatform } from '../src/mcp/context.js';
import { PAYLOAD_SCHEMAS } from '../src/mcp/schemas.js';
import { CONTENT_TYPES } from '../src/protocol/item.js';
import { shows, world } from './support/client-world.js';
import { companion, paired } from './support/mcp.js';

/** A payload of each type. */
const SAMPLES: Readonly<Record<(typeof CONTENT_TYPES)[number], Record<string, unknown>>> = {
  password: { service: 'mail', user: 'me', secret: 's' },
  link: { url: 'https://example.com/', title: 'Example', desc: '', site: 'example.com' },
  text: { text: 'a note' },
  code: { lang: 'sql', label: 'all', text: 'SELECT 1' },
  image: { w: 1, h: 2, label: 'a picture', mime: 'image/png' },
  file: { name: 'a.pdf', size: 3, mime: 'application/pdf' },
  audio: { duration: 1.5, label: 'a song', mime: 'audio/ogg' },
  video: { title: 'a film', duration: 60, mime: 'video/mp4' },
  contact: { name: 'Ada', role: '', email: 'ada@example.com', phone: '' },
  location: { name: 'Home', addr: 'Here 1', lat: 1, lng: -1 },
};

t.test('MCP-43: the type of a payload is detected from its fields', async (t) => {
  for (const type of CONTENT_TYPES) t.equal(detectPayload(SAMPLES[type]).type, type, type);
  const found = (given: Record<string, unknown>): string => detectPayload(given).type;
  t.equal(found({ text: ' https://example.com/a?b=c ' }), 'link');
  t.equal(found({ text: 'see https://example.com' }), 'text');
  t.equal(found({ secret: 'x' }), 'password');
  t.equal(found({ name: 'Ada', email: 'a@b' }), 'contact');
  t.equal(found({ name: 'Ada' }), 'contact');
  t.equal(found({ name: 'x', size: 3 }), 'file');
  t.equal(found({ lat: 1, lng: 2 }), 'location');
  t.equal(found({ addr: 'Street 1' }), 'location');
  t.equal(found({ text: 'x', lang: 'ts' }), 'code');
  t.throws(() => detectPayload({ colour: 'red' }), { name: 'PayloadError' });
  t.throws(() => detectPayload({}), { name: 'PayloadError' });
});

t.test('MCP-43: each of the ten types is put with and without its type, and read by another device', async (t) => {
  const all = await world(t);
  const agent = await paired(t, all);
  for (const type of CONTENT_TYPES) {
    const payload = SAMPLES[type];
    const named = await agent.put('inbox', payload, type);
    t.match(await shows(all.first, named.id), { type, payload }, type);
    t.match(await agent.put('inbox', payload), { type }, type);
  }
  t.equal((await agent.list({ limit: 200 })).total, 20);
});

t.test('MCP-93: the example of each type in the schema is put as it stands, and read by another device', async (t) => {
  const all = await world(t);
  const agent = await paired(t, all);
  const { tools } = await agent.client.listTools();
  const { payload } = tools.find(({ name }) => name === 'sb_put_item')?.inputSchema.properties ?? {};
  const { anyOf } = payload as { readonly anyOf: readonly { readonly title: string; readonly examples: object[] }[] };
  t.same(
    anyOf.map(({ title }) => title),
    CONTENT_TYPES,
  );
  for (const { title, examples } of anyOf) {
    t.ok(examples.length > 0, title);
    for (const example of examples)
      for (const type of [title, undefined]) {
        const { id } = await agent.put('inbox', example, type);
        const { payload } = await shows(all.first, id);
        t.match({ ...(await all.first.device.get(id)), payload }, { type: title, payload: example }, title);
      }
  }
  t.ok(JSON.stringify(tools).length < 20_000, 'the definitions that a model reads first are bounded');
});

t.test('MCP-93: the schema refuses no payload that would be stored', (t) => {
  const ajv = new Ajv({ strict: false });
  const value = fc.oneof(fc.string(), fc.constant('https://example.com/'), fc.double({ noNaN: true }), fc.integer());
  for (const [at, type] of CONTENT_TYPES.entries()) {
    const accepts = ajv.compile(PAYLOAD_SCHEMAS[at] ?? false);
    const fields = Object.fromEntries(fieldsOf(type).map((field) => [field, value]));
    let stored = 0;
    fc.assert(
      fc.property(fc.record(fields, { requiredKeys: [] }), (payload) => {
        try {
          shapedPayload(type, payload);
        } catch (error) {
          if (error instanceof PayloadError) return true;
          throw error;
        }
        stored++;
        return accepts(payload);
      }),
      { numRuns: 500 },
    );
    t.ok(stored > 0, type);
  }
  t.end();
});

t.test('MCP-44: a payload or argument of the wrong form is refused with what to do, and not written', async (t) => {
  const all = await world(t);
  const agent = await paired(t, all);
  const put = (payload: unknown, type?: string): Promise<{ code: string; message: string; hint: string }> =>
    agent.refused('sb_put_item', { bin: 'inbox', payload, ...(type === undefined ? {} : { type }) });
  t.match(await put({ text: 1 }, 'text'), { code: 'bad_payload', message: /text must be a text/ });
  t.match(await put({ text: 'x', color: 'y' }, 'text'), { code: 'bad_payload', hint: /Fields of text: text/ });
  t.match(await put({ service: 'mail' }, 'password'), { code: 'bad_payload', message: /secret is missing/ });
  t.match(await put({ url: 'not an address' }, 'link'), { code: 'bad_payload' });
  t.match(await put({ lat: 91, lng: 0 }, 'location'), { code: 'bad_payload' });
  t.match(await put({ something: 'else' }), { code: 'bad_payload', hint: /password, link, text/ });
  t.match(await put({ text: 'x' }, 'poem'), { code: 'bad_input', message: /type/ });
  t.match(await put('text'), { code: 'bad_input', message: /payload/ });
  t.match(await put(undefined), { code: 'bad_input', message: /payload/ });
  t.match(await agent.refused('sb_put_item', { payload: { text: 'x' } }), { code: 'bad_input', message: /bin/ });
  t.match(await agent.refused('sb_put_item', { bin: 'nowhere', payload: { text: 'x' } }), {
    code: 'bin_not_found',
    hint: 'Bins: inbox.',
  });
  const extra = await agent.refused('sb_delete_item', { id: '01HZZZZZZZZZZZZZZZZZZZZZZZ', query: 'all' });
  t.match(extra, { code: 'bad_input', message: /query/ });
  t.match(await agent.refused('sb_delete_item', { id: 'all' }), { code: 'bad_input', message: /ULID/ });
  t.match(await put({ name: 'x'.repeat(70_000), size: 1 }, 'file'), { code: 'too_large' });
  t.match(await put({ text: 'x'.repeat(17 * 1024 * 1024) }, 'text'), { code: 'too_large' });
  t.match(await agent.list(), { total: 0 });
});

t.test('MCP-45: a list accepts bin, limit and since, and gives the newest first', async (t) => {
  const all = await world(t);
  const agent = await paired(t, all);
  const { device } = all.first;
  await device.bins.create('01work', { name: 'My things' }, 'work');
  const at = (time: string, binId = 'inbox') =>
    device.put({ binId, type: 'text', payload: { text: time }, ts: Date.parse(time) });
  const old = await at('2026-01-01T00:00:00.000Z');
  const middle = await at('2026-02-01T10:00:00.000Z', '01work');
  const late = await at('2026-03-01T00:00:00.000Z');
  const ids = async (args: object): Promise<string[]> => (await agent.list(args)).items.map(({ id }) => id);
  t.same(await ids({}), [late.id, middle.id, old.id]);
  t.same(await ids({ bin: 'work' }), [middle.id]);
  t.same(await ids({ bin: '01work' }), [middle.id]);
  t.same(await ids({ bin: 'My things' }), [middle.id]);
  t.match(await agent.list({ limit: 1 }), { total: 3, items: [{ id: late.id }], notes: [/2 more items fit/] });
  t.same(await ids({ since: '2026-02-01T10:00:00Z' }), [late.id, middle.id], 'since includes its time');
  t.same(await ids({ since: '2026-02-01T12:00:00+02:00' }), [late.id, middle.id]);
  t.same(await ids({ since: '2026-02-01T10:00:01' }), [late.id], 'a time without a zone is UTC');
  t.same(await ids({ since: '2026-03-01' }), [late.id]);
  const days = ['yesterday', '2026-13-01', '2026-02-30', '2026-02-29T10:00Z', '2026-03-01T25:00'];
  for (const args of [{ limit: 0 }, { limit: 201 }, { limit: 1.5 }, ...days.map((since) => ({ since }))])
    t.match(await agent.refused('sb_list_items', args), { code: 'bad_input' }, JSON.stringify(args));
  for (let more = 0; more < 22; more++) await device.put({ binId: 'inbox', type: 'text', payload: { text: 'more' } });
  t.match(await agent.list(), { total: 25, items: { length: 20 } });
  t.match(await agent.list({ limit: 200 }), { total: 25, items: { length: 25 } });
});

t.test('MCP-59: an answer has a bound: what exceeds it is cut, and marked as cut', async (t) => {
  const all = await world(t);
  const agent = await paired(t, all);
  const long = 'x'.repeat(60_000);
  for (let at = 0; at < 4; at++)
    await all.first.device.put({ binId: 'inbox', type: 'code', payload: { lang: 'js', label: `n${at}`, text: long } });
  const { items, notes } = await agent.list();
  t.same(
    items.map(({ cut }) => cut),
    [undefined, ['text'], ['text'], ['text']],
  );
  t.equal(items[0]?.payload?.['text'], long);
  t.match(items[1]?.payload, { lang: 'js', label: 'n2' });
  t.ok(JSON.stringify(items).length < 70_000);
  t.ok(notes.some((text) => text.includes('cut')));
});

t.test('MCP-63: content too large for an item goes into a blob, and is listed with its signed URL', async (t) => {
  const all = await world(t);
  await all.first.device.connect();
  const second = await all.pair('Agent');
  second.device.close();
  const platform = await mcpPlatform();
  const downloads: string[] = [];
  const fetching: Platform['fetch'] = (url, init) => {
    if (new URL(url).pathname.startsWith('/blobs/') && (init.method ?? 'GET') === 'GET') downloads.push(url);
    return platform.fetch(url, init);
  };
  const agent = await companion(t, { identity: second.identity(), platform: { ...platform, fetch: fetching } });
  const text = `beginning ${'y'.repeat(100_000)}`;
  const { id } = await agent.put('inbox', { text });
  await shows(all.first, id);
  const device = await Device.open({
    platform: await mcpPlatform(),
    identity: all.first.identity(),
    onProblem: (error) => t.fail(error.message),
  });
  t.teardown(() => device.close());
  await device.pull();
  t.match(await device.payload(id), { text });
  const { items } = await agent.list();
  t.match(items, [{ id, type: 'text', blob: { holds: 'payload', url: /^http:\/\/127\.0\.0\.1:\d+\/blobs\// } }]);
  const { blob, payload } = items[0] ?? {};
  t.ok(String(payload?.['text']).startsWith('beginning'));
  t.ok(String(payload?.['text']).length < 2_000);
  t.ok((blob?.size ?? 0) > 100_000);
  t.ok(Date.parse(blob?.expiresAt ?? '') > Date.now());
  const bytes = await (await fetch(blob?.url ?? '')).arrayBuffer();
  t.equal(bytes.byteLength, blob?.size);
  t.notMatch(Buffer.from(bytes).toString('latin1'), /yyyy/, 'the blob is encrypted');
  t.match((await agent.search('beginning')).items, [{ id, blob: { holds: 'payload' } }]);
  // The JSON around the text has eleven bytes, the tag of its encryption sixteen.
  const fits = await agent.put('inbox', { text: 'x'.repeat(65_536 - 27) });
  const more = await agent.put('inbox', { text: 'x'.repeat(65_536 - 26) });
  const blobs = new Map((await agent.list()).items.map((item) => [item.id, item.blob]));
  t.same([blobs.get(fits.id), blobs.get(more.id)?.holds], [undefined, 'payload']);
  t.same(downloads, []);
});
