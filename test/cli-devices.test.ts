/** Watching, waiting, syncing and devices at the command line, against a real server. */
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import t from 'tap';
import { EXIT } from '../src/terminal/terminal.js';
import { toBase64Url } from '../src/protocol/base64.js';
import { joinedDesk, machine, type Json } from './support/cli.js';
import { note, wiretap } from './support/client-world.js';
import { until } from './support/events.js';

t.test('CLI-11 CLI-12 CLI-16 CLI-54: watch prints each change as it arrives, while other commands write', async (t) => {
  const { desk, first } = await joinedDesk(t);
  await first.device.put(note('before'));
  const ts = Date.now() - 60_000;
  await first.device.put({ ...note('older'), ts });
  t.match(await desk.json(['list']), { items: [{ title: 'before' }, { title: 'older', ts }] });
  const watch = desk.start(['watch', '--json', '--last', '5', '--count', '4']);
  await watch.line(/"ready"/);
  const { id } = await first.device.put(note('one'));
  await watch.line(/"title":"one"/);
  const own = await desk.json(['put', 'two'], {});
  await watch.line(/"title":"two"/);
  await first.device.put({ binId: 'inbox', type: 'password', payload: { service: 's', user: 'u', secret: 'hidden' } });
  await first.device.delete(id);
  const { code, data, out } = await watch.result;
  t.equal(code, EXIT.ok);
  t.match(data, [
    { event: 'known', title: 'older', ts },
    { event: 'known', title: 'before', payload: { text: 'before' } },
    { event: 'ready' },
    { event: 'item', id, type: 'text', title: 'one', sender: 'First' },
    { event: 'item', id: own['id'], sender: 'Desk' },
    { event: 'item', type: 'password', payload: { service: 's' } },
    { event: 'delete', id },
  ]);
  t.notMatch(out, 'hidden');
});

t.test('CLI-11: watch names senders from the stored list, before the server is contacted', async (t) => {
  const { desk, first, server } = await joinedDesk(t);
  await first.device.put(note('before'));
  await desk.json(['list']);
  await server.stop();
  const watch = desk.start(['watch', '--json', '--last', '1']);
  await watch.line(/"known"/);
  watch.interrupt();
  t.match((await watch.result).data, [{ event: 'known', sender: 'First' }]);
});

t.test('CLI-12 CLI-26: watch restores a lost connection by itself, and ends at Ctrl-C', async (t) => {
  const sockets: { close(code: number, reason: string): void }[] = [];
  const tap = wiretap();
  const { open } = tap.platform.sockets;
  Object.assign(tap.platform.sockets, {
    open: (url: string, events: Parameters<typeof open>[1]) => {
      const socket = open(url, events);
      sockets.push(socket);
      return socket;
    },
  });
  const { desk, first } = await joinedDesk(t, tap);
  const watch = desk.start(['watch'], { answers: [] });
  await watch.line(/Watching/);
  sockets.at(-1)?.close(1000, 'cut');
  await watch.line(/connection is lost/);
  await first.device.put(note('while it was away'));
  await watch.line(/while it was away/);
  await watch.line(/Connected again/);
  watch.interrupt();
  t.equal((await watch.result).code, EXIT.interrupted);
});

t.test('CLI-19: a write without a server is kept, and reported as queued', async (t) => {
  const { desk, server } = await joinedDesk(t);
  await desk.json(['bins', 'add', 'Shopping', '--slug', 'shopping']);
  await desk.json(['list']);
  await server.stop();
  const put = await desk.call(['put', 'kept', '--bin', 'shopping', '--json']);
  t.match(put, { code: EXIT.ok, data: [{ queued: true, version: null }], notes: /queued/ });
  const told = await desk.call(['put', 'kept']);
  t.match(told, { code: EXIT.ok, out: /^Kept: / });
  t.match(await desk.call(['list']), { code: EXIT.ok, notes: /Not up to date: the server cannot be reached/ });
  t.match(await desk.json(['status']), { reachable: false, account: null });
  t.match(await desk.call(['sync', '--json']), { code: EXIT.unavailable, error: { code: 'network' } });
  t.match(await desk.call(['bins', 'add', 'x', '--json']), { code: EXIT.unavailable, error: { code: 'network' } });
  t.match(await desk.json(['devices']), { devices: { length: 2 } }, 'the devices that were last known are listed');
});

t.test('CLI-15: a command that the server refuses for now reports that, and a write is kept', async (t) => {
  const tap = wiretap();
  const { desk, first } = await joinedDesk(t, tap);
  const { fetch } = tap.platform;
  const busy = (): Response =>
    new Response(JSON.stringify({ error: { code: 'rate_limited', message: 'slow' } }), {
      status: 429,
      headers: { 'retry-after': '3600' },
    });
  Object.assign(tap.platform, {
    fetch: (url: string, init: RequestInit) =>
      url.includes('/api/items') ? Promise.resolve(busy()) : fetch(url, init),
  });
  const put = await desk.json(['put', 'x']);
  t.match(put, { queued: true });
  Object.assign(tap.platform, {
    fetch: (url: string) => (url.endsWith('health') ? fetch(url, {}) : Promise.resolve(busy())),
  });
  const { code, error } = await desk.call(['bins', 'add', 'x', '--json']);
  t.match({ code, error }, { code: EXIT.unavailable, error: { code: 'rate_limited', hint: /3600 s/ } });
  Object.assign(tap.platform, { fetch });
  // A call waits for what is to be sent, but not for ever: on a busy machine it may take another one.
  await until('the write is sent', async () => (await desk.json(['sync']))['pending'] === 0);
  await first.device.pull();
  t.match(await first.device.get(String(put['id'])), { payload: { text: 'x' } }, 'the write arrives once it may');
});

t.test(
  "CLI-30 ARCHIVE-06: sync and export compare with the server's count, and report that items are missing",
  async (t) => {
    const tap = wiretap();
    const { desk, first } = await joinedDesk(t, tap);
    await first.device.put(note('seen'));
    t.match(await desk.json(['sync']), { complete: true, items: 1, pending: 0 });
    t.match(await desk.call(['sync', '--full']), { code: EXIT.ok, out: /Up to date/ });
    const { id } = await first.device.put(note('hidden by the server'));
    await first.device.put(note('after it'));
    tap.alterReply = ({ path }, answer) =>
      path.startsWith('/items?')
        ? { ...answer, items: (answer['items'] as Json[]).filter((row) => row['id'] !== id) }
        : undefined;
    tap.alterFrame = (frame) =>
      (frame['item'] as Json | undefined)?.['id'] === id || frame['id'] === id ? null : frame;
    t.match(await desk.call(['sync', '--json']), {
      code: EXIT.untrusted,
      error: { code: 'incomplete', message: /counts 3 items and 2 can/ },
    });
    const exported = await desk.call(['export', join(desk.home, 'plain.json'), '--plain']);
    t.match(exported, { code: EXIT.untrusted, notes: /the export is incomplete/ });
  },
);

t.test(
  'ARCHIVE-22: an export that the server leaves before it is compared has what is here, and says so',
  async (t) => {
    const tap = wiretap();
    const { desk, first } = await joinedDesk(t, tap);
    await first.device.put(note('here'));
    const { fetch } = tap.platform;
    Object.assign(tap.platform, {
      fetch: (url: string, init: RequestInit) =>
        url.endsWith('/api/me') ? Promise.reject(new TypeError('gone')) : fetch(url, init),
    });
    const file = join(desk.home, 'plain.json');
    const exported = await desk.call(['export', file, '--plain']);
    t.match(exported, { code: EXIT.untrusted, notes: /could not be compared with the server/ });
    t.match(JSON.parse(readFileSync(file, 'utf8')), { items: [{ payload: { text: 'here' } }] });
  },
);

t.test('CLI-67: a device that joins or recovers under a taken name is proposed a free one', async (t) => {
  const { desk, url, phrase } = await joinedDesk(t);
  const other = await machine(t);
  const pairing = desk.start(['pair', '--no-qr'], { answers: [[/same digits/, 'y']] });
  const [, words = ''] = await pairing.line(/^Six words: +(.*)/);
  const { deviceId } = await other.json(['join', url, ...words.split(' '), '--name', 'Desk']);
  const { notes } = await pairing.result;
  t.match(notes, `Another of your devices is "Desk" too.`);
  t.match(notes, `service-device rename ${String(deviceId)} "Desk 2"`);
  const back = await machine(t);
  const file = join(back.home, 'phrase');
  writeFileSync(file, phrase, { mode: 0o600 });
  const recovered = await back.call(['recover', url, '--name', 'First', '--phrase-file', file]);
  t.match(recovered, { code: EXIT.ok, notes: /service-device rename \w{26} "First 2"/ });
  const again = await machine(t);
  const free = await again.call(['recover', url, '--name', 'Back', '--phrase-file', file]);
  t.match(free, { code: EXIT.ok });
  t.notMatch(free.notes, 'Another of your devices');
});

t.test('CLI-27: an uncertified device stops writes until its own fingerprint is given', async (t) => {
  const tap = wiretap();
  const { desk, first } = await joinedDesk(t, tap);
  // To this machine the server shows no certificate.
  let stripped = true;
  tap.alterReply = ({ path }, answer) => {
    if (path !== '/devices' || !stripped) return undefined;
    const devices = (answer['devices'] as Json[]).map((entry) =>
      entry['id'] === first.device.id ? { ...entry, cert: null } : entry,
    );
    return { ...answer, devices };
  };
  const put = await desk.call(['put', 'x', '--json']);
  t.match(put, { code: EXIT.untrusted, error: { code: 'uncertified_device', hint: /certify ID FINGERPRINT/ } });
  t.match(put.notes, /no device of yours vouches for/);
  const listed = await desk.call(['devices']);
  t.match(listed.out, /First {2}laptop.*not certified/);
  const wrong = await desk.call(['certify', 'first', '0000 0000', '--json']);
  t.match(wrong, { code: EXIT.untrusted, error: { code: 'fingerprint' } });
  t.notOk(
    tap.calls.some(({ method, path, body }) => method === 'PATCH' && path.includes(first.device.id) && body !== null),
  );
  t.match(await desk.json(['certify', 'first', ...first.device.fingerprint.split(' ')]), { certified: true });
  stripped = false;
  t.match(await desk.json(['put', 'x']), { queued: false });
});

t.test(
  'CLI-21 CLI-25: devices are listed, renamed and revoked; a revoked one says so, and one that signs out leaves nothing',
  async (t) => {
    const { desk, first, url } = await joinedDesk(t);
    const other = await machine(t);
    const pairing = desk.start(['pair', '--no-qr'], { answers: [[/same digits/, 'y']] });
    const [, words = ''] = await pairing.line(/^Six words: +(.*)/);
    await other.json(['join', url, ...words.split(' '), '--name', 'Third', '--glyph', 'phone']);
    await pairing.result;
    const { devices } = (await desk.json(['devices'])) as { devices: Json[] };
    t.match(
      devices.map(({ name, glyph, thisDevice, certified }) => ({ name, glyph, thisDevice, certified })),
      [
        { name: 'First', glyph: 'laptop', thisDevice: false, certified: true },
        { name: 'Desk', thisDevice: true, certified: true },
        { name: 'Third', glyph: 'phone', thisDevice: false, certified: true },
      ],
    );
    t.equal(devices[0]?.['fingerprint'], first.device.fingerprint, 'the one that the device itself shows');
    t.match(await desk.json(['rename', 'third', 'Phone']), { name: 'Phone' });
    t.match(await other.json(['status']), { name: 'Phone', fingerprint: devices[2]?.['fingerprint'] });
    t.match(await desk.call(['rename', 'nobody', 'x', '--json']), { code: EXIT.notFound });
    t.match(await desk.call(['rename', 'phone', 'a\u202eb', '--json']), { code: EXIT.usage });

    const watching = other.start(['watch', '--json']);
    await watching.line(/ready/);
    t.equal((await desk.call(['revoke', 'Phone', '--json'])).code, EXIT.usage, 'no terminal to confirm at');
    t.equal((await desk.call(['revoke', 'Phone'], { answers: [[/Revoke "Phone"/, 'yes']] })).code, EXIT.ok);
    t.match(await watching.result, { code: EXIT.refused, error: { code: 'revoked' } });
    t.match(await other.call(['put', 'x', '--json']), {
      code: EXIT.refused,
      error: { code: /revoked/, hint: /forget/ },
    });
    t.match(await desk.json(['devices', '--all']), { devices: { length: 3 } });
    t.match(await desk.json(['devices']), { devices: { length: 2 } });
    t.match(await other.json(['forget', '--yes']), { forgotten: true });
    t.equal((await other.call(['list', '--json'])).code, EXIT.notFound);

    t.match(await desk.json(['revoke', 'Desk', '--yes']), { thisDevice: true, revoked: true });
    t.throws(() => readFileSync(join(desk.folder, 'identity')), { code: 'ENOENT' });
    t.match(await first.device.devices.refresh(), { length: 3 });
  },
);

t.test('CLI-25: the last device cannot be revoked, and is referred to `forget`', async (t) => {
  const { desk, first } = await joinedDesk(t);
  await desk.json(['revoke', first.device.id, '--yes']);
  const { deviceId } = await desk.json(['status']);
  const last = await desk.call(['revoke', String(deviceId), '--yes', '--json']);
  t.match(last, { code: EXIT.refused, error: { code: 'last_device', hint: /forget/ } });
  t.match(await desk.json(['status']), { deviceId }, 'the device is still there');
});

t.test('CLI-20 CLI-28: only the identity has secrets in clear; a damaged one is reported with a remedy', async (t) => {
  const { desk, first } = await joinedDesk(t);
  await desk.json(['put', 'x']);
  await desk.json(['sync']);
  const secrets = [first.identity().masterKey, first.identity().keys.secretKey].map(toBase64Url);
  const stored = JSON.parse(readFileSync(join(desk.folder, 'known.json'), 'utf8')) as Json;
  t.match(stored, { devices: { length: 2 }, bins: [{ slug: 'inbox' }] });
  for (const secret of secrets) t.notMatch(JSON.stringify(stored), secret);
  const path = join(desk.folder, 'identity');
  const whole = readFileSync(path);
  for (const damaged of ['', '{}', 'nonsense', whole.subarray(0, 40), Buffer.alloc(100_000)]) {
    writeFileSync(path, damaged);
    const { code, error, notes } = await desk.call(['list', '--json']);
    t.equal(code, EXIT.failure);
    t.match(error, { message: String });
    for (const secret of secrets) t.notMatch(JSON.stringify(error) + notes, secret);
  }
  writeFileSync(path, '{}');
  t.match(await desk.call(['status']), { notes: /damaged.*\n.*(pair|recover)/ });
  writeFileSync(path, whole);
  writeFileSync(join(desk.folder, 'known.json'), 'nonsense');
  t.equal((await desk.call(['list'])).code, EXIT.ok, 'a damaged list of devices and bins fails no command');
});

t.test('CLI-15: a command that is done does not fail because its lists cannot be stored', async (t) => {
  const { desk } = await joinedDesk(t);
  const known = join(desk.folder, 'known.json');
  desk.tap.alterReply = () => {
    rmSync(known, { force: true, recursive: true });
    mkdirSync(known);
    return undefined;
  };
  const listed = await desk.call(['list']);
  t.match(listed, { code: EXIT.ok, notes: /Warning: devices and bins are not kept for use without the server/ });
  desk.tap.alterReply = () => undefined;
  rmSync(known, { recursive: true });
  t.match(await desk.call(['list']), { code: EXIT.ok, notes: /^(?!.*Warning)/s });
});
