/** The long list, and what is in an item, as the web app shows and edits them (src/web/ui). */
import t from 'tap';
import { CONTENT_TYPES } from '../src/protocol/item.js';
import { PayloadError, shapedPayload } from '../src/sdk/payloads/shapes.js';
import { deviceIcon } from '../src/web/ui/devices.js';
import { draftOf, payloadOf } from '../src/web/ui/fields.js';
import { hashOf, readPlace } from '../src/web/ui/route.js';
import { safeText, text } from '../src/web/ui/strings.js';
import { PAGE_ROWS, pageOffset, shiftOf, visibleRows } from '../src/web/ui/list.js';

const ROW = 68;
const HEIGHT = 700;
const TOTAL = 20_000;

t.test('WEB-28: of a long list few rows are in the page, and one request covers all of them', (t) => {
  for (let top = 0; top <= TOTAL * ROW; top += 997) {
    const range = visibleRows({ top, height: HEIGHT, row: ROW, total: TOTAL });
    const offset = pageOffset(range);
    const seen = [Math.floor(top / ROW), Math.min(TOTAL, Math.ceil((top + HEIGHT) / ROW))] as const;
    if (range.end - range.first > 30 || range.first > seen[0] || range.end < seen[1])
      t.fail(`at ${top}: rows ${range.first} to ${range.end}, seen ${seen.join(' to ')}`);
    if (range.first < offset || range.end > offset + PAGE_ROWS)
      t.fail(`at ${top}: rows ${range.first} to ${range.end} of a page from ${offset}`);
  }
  t.same(
    visibleRows({ top: 5_000, height: HEIGHT, row: ROW, total: 0 }),
    { first: 0, end: 0 },
    'the list became empty',
  );
  t.same(
    visibleRows({ top: 9_000, height: HEIGHT, row: ROW, total: 3 }),
    { first: 0, end: 3 },
    'the list became short',
  );
  const near = visibleRows({ top: 50_000, height: HEIGHT, row: ROW, total: TOTAL });
  const next = visibleRows({ top: 50_000 + ROW, height: HEIGHT, row: ROW, total: TOTAL });
  t.equal(pageOffset(near), pageOffset(next), 'a small scroll requests the same rows');
  t.end();
});

t.test('WEB-28: what the user looks at stays in place when rows above it are added or removed', (t) => {
  const page = (offset: number, ...ids: string[]) => ({ offset, items: ids.map((id) => ({ id })) });
  const view = { top: 3 * ROW, row: ROW };
  const anchor = { id: 'd', at: 3 };
  t.equal(shiftOf(anchor, page(0, 'a', 'b', 'c', 'd'), view), 0);
  t.equal(shiftOf(anchor, page(0, 'x', 'y', 'a', 'b', 'c', 'd'), view), 2 * ROW, 'two rows were added');
  t.equal(shiftOf(anchor, page(0, 'a', 'd'), view), -2 * ROW, 'two rows were removed');
  t.equal(shiftOf(anchor, page(2, 'c', 'd', 'e'), view), 0, 'another part of the same list');
  t.equal(shiftOf(anchor, page(0, 'a', 'b', 'c', 'e'), view), 0, 'the row itself was removed');
  t.equal(shiftOf({ id: 'a', at: 0 }, page(0, 'x', 'a'), { top: 0, row: ROW }), 0, 'at the top new rows are shown');
  t.equal(shiftOf(null, page(0, 'x'), view), 0);
  t.end();
});

t.test('WEB-29: a name cannot change its text direction to disguise its ending', (t) => {
  t.equal(safeText('photo\u202egnp.exe'), 'photo\ufffdgnp.exe');
  t.equal(safeText('\u2066a\u2069\u0000\u001b[2J'), '\ufffda\ufffd\ufffd\ufffd[2J');
  for (const plain of ['שלום עולם', 'two\nlines\r\n\tand a tab', '👩‍👩‍👧', 'a\u200fb']) t.equal(safeText(plain), plain);
  t.end();
});

t.test('WEB-72: an error code or icon that a server names is looked up only among our own', (t) => {
  const { problem } = text;
  t.equal(problem({ name: 'ApiError', code: 'conflict', message: '' }), 'Another device changed it meanwhile.');
  for (const code of ['constructor', 'toString', '__proto__']) {
    t.equal(problem({ name: 'ApiError', code, message: 'as the server says' }), 'as the server says');
    t.equal(deviceIcon(code), deviceIcon('globe'));
  }
  t.end();
});

t.test('WEB-29: editing changes the fields that are edited and keeps all others', (t) => {
  const before = { service: 'a', user: 'b', secret: 'c', later: { x: 1 } };
  const { payload, errors } = payloadOf('password', { ...draftOf('password', before), user: 'd' }, before);
  t.same(payload, { ...before, user: 'd' });
  t.same(errors, {});
  const place = { name: 'x', addr: '', lat: 1.5, lng: -2 };
  t.same(payloadOf('location', { name: 'x', addr: 'y', lat: '', lng: '' }, place).payload, { name: 'x', addr: 'y' });
  t.same(payloadOf('location', { ...draftOf('location', place), lat: '52,5' }, place).payload, { ...place, lat: 52.5 });
  t.equal(payloadOf('link', { url: 'example.com/a' }).payload['url'], 'https://example.com/a');
  t.end();
});

t.test('WEB-29: the device accepts what the fields accept; what it would refuse is reported at the field', (t) => {
  const values = [
    '',
    'x',
    'https://example.com/',
    'not an address at all',
    '12',
    '91',
    '-200',
    'NaN',
    'Infinity',
    '1e3',
  ];
  for (const type of CONTENT_TYPES)
    for (const value of values)
      for (const other of values) {
        const empty = draftOf(type, {});
        const draft = Object.fromEntries(Object.keys(empty).map((name, at) => [name, at % 2 === 0 ? value : other]));
        const { payload, errors } = payloadOf(type, draft);
        if (Object.keys(errors).length > 0) continue;
        try {
          shapedPayload(type, payload);
        } catch (error) {
          if (!(error instanceof PayloadError)) throw error;
          t.fail(`${type} ${JSON.stringify(draft)}: ${error.message}`);
        }
      }
  t.same(Object.keys(payloadOf('location', { lat: '91', lng: 'x' }).errors).sort(), ['lat', 'lng']);
  t.same(Object.keys(payloadOf('password', { secret: ' ' }).errors), ['secret']);
  t.end();
});

t.test('WEB-29: an address made for a place leads back to that place, whatever its ids contain', (t) => {
  for (const binId of [null, 'inbox', 'a/b', '%', '#?&', 'ü'])
    for (const itemId of [null, '01ABC', 'x/item/y', '%2F'])
      t.same(readPlace(hashOf({ binId, itemId })), { page: null, binId, itemId }, `${binId} ${itemId}`);
  t.same(readPlace(hashOf({ page: 'trust' })), { page: 'trust', binId: null, itemId: null });
  for (const odd of ['', '#', '#/', '#/bin/%E0%A4%A', '#pair=a-b', '#/nowhere', '#/item'])
    t.same(readPlace(odd), { page: null, binId: null, itemId: null }, odd);
  t.end();
});
