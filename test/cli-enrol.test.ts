/** Becoming a device at the command line: claim, pair and join, recover; a newcomer with two machines, and what can go wrong. */
import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import t from 'tap';
import { qrLines } from '../src/cli/commands/pair.js';
import { EXIT } from '../src/terminal/terminal.js';
import { toBase64Url } from '../src/protocol/base64.js';
import type { Answers } from './support/answers.js';
import { identityIn, machine, mistyped, type Machine, type Result } from './support/cli.js';
import { wiretap } from './support/client-world.js';
import { soon } from './support/events.js';
import type { WithTeardown } from './support/postgres.js';
import { runServer } from './support/server.js';

const PHRASE = /(?:\s*\d+ [a-z]+){12}/;

/** The twelve words as they are shown on a screen. */
const wordsIn = (text: string): string[] =>
  [...text.matchAll(/\d+ ([a-z]+)/g)].map(([, word]) => word ?? '').slice(0, 12);

interface Scene {
  readonly url: string;
  readonly first: Machine;
  readonly phrase: string;
}

async function claimed(t: WithTeardown): Promise<Scene> {
  const { port } = await runServer(t);
  const url = `http://127.0.0.1:${port}`;
  const first = await machine(t);
  const result = await first.call(['claim', url, '--name', 'First', '--json', '--show-phrase']);
  return { url, first, phrase: String(result.data[0]?.['phrase']) };
}

const count = (machine: Machine, path: string): number => machine.tap.calls.filter((call) => call.path === path).length;

t.test('CLI-01: claim shows twelve words once, asks for two of them, and registers only then', async (t) => {
  const { port } = await runServer(t);
  const desk = await machine(t);
  let words: string[] = [];
  let before = -1;
  const claim = desk.start(['claim', `http://127.0.0.1:${port}`, '--name', 'Desk'], {
    answers: [
      [/^Word number/, 'wrong'],
      [/^Word number/, () => answer()],
      [/^Word number/, () => answer()],
    ],
  });
  const rows: string[] = [];
  let asked = 0;
  const answer = async (): Promise<string> => {
    before = count(desk, '/devices/bootstrap');
    if (rows.length === 0)
      for (const number of [1, 5, 9]) rows.push((await claim.line(new RegExp(`^ +${number} .*`)))[0]);
    words = wordsIn(rows.join(' '));
    const questions = await claim.line(/^Word number (\d+)/);
    asked++;
    // After the wrong answer the same word is asked for again; the second one is half the list further on.
    const first = Number(questions[1]);
    return words[(asked === 1 ? first - 1 : first + Math.floor(0.5 * 11)) % 12] ?? '';
  };
  const result = await claim.result;
  t.equal(result.code, EXIT.ok, result.notes);
  t.equal(before, 0, 'nothing is registered before both words are right');
  t.equal(result.questions.length, 3);
  t.equal(new Set(words).size >= 11, true, 'twelve words are shown');
  t.equal(result.out.match(new RegExp(PHRASE, 'g'))?.length, 1, 'the words are shown once');
  t.equal((await desk.json(['status']))['name'], 'Desk');
  const stored = readdirSync(desk.home, { recursive: true, encoding: 'utf8' });
  const files = stored.filter((name) => statSync(join(desk.home, name)).isFile());
  for (const name of files) t.notMatch(readFileSync(join(desk.home, name), 'utf8'), words.slice(0, 3).join(' '), name);
});

t.test('CLI-01: a person who has not written the words down claims nothing', async (t) => {
  const { port } = await runServer(t);
  const desk = await machine(t);
  const url = `http://127.0.0.1:${port}`;
  const wrong: Answers = [1, 2, 3].map(() => [/^Word number/, 'wrong'] as const);
  const result = await desk.call(['claim', url], { answers: wrong });
  t.equal(result.code, EXIT.usage);
  t.match(result.notes, /nothing was claimed/);
  t.equal(count(desk, '/devices/bootstrap'), 0);
  t.equal((await desk.call(['claim', url, '--json', '--show-phrase'])).code, EXIT.ok, 'the server is still unclaimed');
});

t.test(
  'CLI-02 CLI-03: a script needs --show-phrase for a claim, and may leave the address to SERVICE_HOST',
  async (t) => {
    const { port } = await runServer(t);
    const env = { SERVICE_HOST: `127.0.0.1:${port}` };
    const desk = await machine(t);
    for (const argv of [['claim'], ['claim', '--json']]) {
      const result = await desk.call(argv, { env });
      t.equal(result.code, EXIT.usage, argv.join(' '));
      t.notMatch(result.out, PHRASE);
    }
    t.equal(desk.tap.calls.length, 0, 'the server was not contacted');
    const claim = desk.start(['claim', '--json', '--show-phrase'], { env });
    let before: string[] = [];
    desk.tap.alterReply = ({ path }) => {
      if (path === '/devices/bootstrap') before = claim.printed();
      return undefined;
    };
    const [line] = await claim.line(/.*"phrase".*/);
    t.match(JSON.parse(line), { phrase: /^([a-z]+ ){11}[a-z]+$/ });
    const result = await claim.result;
    t.match(result.data, [
      { event: 'phrase' },
      { event: 'claimed', server: `http://127.0.0.1:${port}`, profile: 'default' },
    ]);
    t.ok(before.includes(line), 'the words are printed before anything is registered');
    const again = await desk.call(['claim', '--json', '--show-phrase'], { env });
    t.match(again, { code: EXIT.refused, error: { code: 'device_here' } });
    const other = await desk.call(['--profile', 'two', 'claim', '--json', '--show-phrase'], { env });
    t.match(other, { code: EXIT.refused, error: { code: 'bootstrap_already_done' } });
    t.match(await desk.call(['claim', '--show-phrase']), { code: EXIT.usage, notes: /which server/ });
  },
);

t.test('CLI-02: a claim token is passed on; a wrong one is refused', async (t) => {
  const { port } = await runServer(t, { env: { BOOTSTRAP_TOKEN: 'let-me-in-let-me-in-let-me-in-42' } });
  const desk = await machine(t);
  const claim = ['claim', `http://127.0.0.1:${port}`, '--json', '--show-phrase'];
  const refusal = { code: EXIT.refused, error: { code: 'forbidden', hint: /^Nothing was claimed: .*--claim-token/ } };
  const wrong = await desk.call([...claim, '--claim-token', 'wrong']);
  t.match(wrong, { ...refusal, error: { ...refusal.error, message: 'the claim token is not the right one' } });
  const none = await desk.call(claim);
  t.match(none, { ...refusal, error: { ...refusal.error, message: 'the server requires a claim token' } });
  const env = { SERVICE_CLAIM_TOKEN: 'let-me-in-let-me-in-let-me-in-42' };
  t.equal((await desk.call(claim, { env })).code, EXIT.ok);
});

/** A machine on which the first two answers to these calls are lost after the server acted on them. */
async function forgetful(t: WithTeardown, calls: RegExp): Promise<Machine & { readonly lost: string[] }> {
  const tap = wiretap();
  const lost: string[] = [];
  const platform = {
    ...tap.platform,
    fetch: async (url: string, init: RequestInit) => {
      const response = await tap.platform.fetch(url, init);
      if (!calls.test(url) || lost.length >= 2) return response;
      lost.push(url);
      return new Response('<h1>bad gateway</h1>', { status: 502 });
    },
  };
  return { ...(await machine(t, { ...tap, platform })), lost };
}

t.test('CLI-29: a claim or a recovery whose answer was lost is retried with the same keys', async (t) => {
  const { port } = await runServer(t);
  const url = `http://127.0.0.1:${port}`;
  // The first attempt to find out by re-authentication is lost too.
  const twin = await forgetful(t, /(bootstrap|reauth)$/);
  const claim = await twin.call(['claim', url, '--json', '--show-phrase']);
  const back = await forgetful(t, /(recover|reauth)$/);
  const phrase = join(back.home, 'phrase');
  writeFileSync(phrase, String(claim.data[0]?.['phrase']), { mode: 0o600 });
  const recovery = await back.call(['recover', url, '--json', '--phrase-file', phrase]);
  for (const [{ tap, folder, lost }, { code, notes, error }, path] of [
    [twin, claim, '/devices/bootstrap'],
    [back, recovery, '/devices/recover'],
  ] as const) {
    t.equal(code, EXIT.ok, JSON.stringify(error));
    t.equal(lost.length, 2);
    t.match(notes, /Trying again/);
    const { deviceId, keys } = await identityIn(folder);
    const sent = tap.calls.flatMap(({ body }) => (body?.['deviceId'] === undefined ? [] : [body]));
    t.ok(tap.calls.filter((call) => call.path === path).length > 1, `${path} is sent again`);
    t.same(new Set(sent.map((body) => body['deviceId'])), new Set([deviceId]), 'every call is for the same device');
    t.same(
      new Set(sent.flatMap(({ pubkey }) => (pubkey === undefined ? [] : [pubkey]))),
      new Set([toBase64Url(keys.publicKey)]),
      'with the key that the device has in the end',
    );
  }
  t.match(await back.json(['devices']), { devices: { length: 2 } });
});

t.test(
  'CLI-26: an interrupted claim says that it may have gone through, and a script gets `interrupted`',
  async (t) => {
    const { port } = await runServer(t);
    const away = (desk: Machine, path: RegExp, onAway: () => void = () => undefined): void => {
      const { fetch: send } = desk.tap.platform;
      Object.assign(desk.tap.platform, {
        fetch: async (url: string, init: RequestInit) => {
          if (!path.test(url)) return send(url, init);
          onAway();
          throw new TypeError('away');
        },
      });
    };
    const desk = await machine(t);
    away(desk, /bootstrap|reauth/);
    const claim = desk.start(['claim', `http://127.0.0.1:${port}`, '--show-phrase']);
    await claim.line(/Trying again/);
    claim.interrupt();
    t.match(await claim.result, { code: EXIT.interrupted, notes: /Interrupted\.\nIt may have gone through/ });
    const { first } = await claimed(t);
    const list = first.start(['--json', 'list']);
    away(first, /items/, list.interrupt);
    t.match(await list.result, { code: EXIT.interrupted, error: { code: 'interrupted' } });
  },
);

/** Pairs a new machine with `first`, as two people at two screens do. */
async function paired(t: WithTeardown, first: Machine, joining: (offer: Result['data'][number]) => readonly string[]) {
  const second = await machine(t);
  const pairing = first.start(['pair', '--json', '--yes', '--digits', '-'], { input: '' });
  pairing.result.catch(() => undefined);
  const offer = JSON.parse((await pairing.line(/.*"offer".*/))[0]) as Result['data'][number];
  return { second, pairing, offer, argv: joining(offer) };
}

t.test('CLI-04 CLI-05: two machines are paired by the words, and by the digits on both screens', async (t) => {
  const { url, first } = await claimed(t);
  await first.json(['put', 'milk']);
  const second = await machine(t);
  let digits = '';
  const pairing = first.start(['pair', '--no-qr'], { answers: [[/same digits/, () => 'yes']] });
  const [, words = ''] = await pairing.line(/^Six words: +(.*)/);
  const [, text = ''] = await pairing.line(/^Both in one text: +(.*)/);
  t.equal(text, `${url}/#pair=${words.replaceAll(' ', '-')}`);
  const joining = second.start(['join', url, '--name', 'Second'], {
    answers: [
      [/six words/, 'one two three'],
      [/six words/, words.toUpperCase()],
    ],
  });
  [, digits = ''] = await joining.line(/^Digits: (\d{3} \d{3})/);
  await pairing.line(new RegExp(`^Digits: ${digits}`));
  const results = await Promise.all([pairing.result, joining.result]);
  t.same(
    results.map(({ code }) => code),
    [EXIT.ok, EXIT.ok],
    results.map(({ notes }) => notes).join('\n'),
  );
  t.match(results[0].out, /called "Second" knows the words/);
  t.match(results[1].notes, /expected 6 words, got 3/, 'the words are checked before anything is sent');
  t.match(await second.json(['list']), { items: [{ title: 'milk', sender: 'First' }] });
  t.match(await first.json(['devices']), {
    devices: [
      { certified: true, thisDevice: true },
      { name: 'Second', certified: true },
    ],
  });
});

t.test('CLI-04: a QR code is shown, and join accepts its text', async (t) => {
  const { first } = await claimed(t);
  const second = await machine(t);
  const pairing = first.start(['pair'], { answers: [[/same digits/, 'y']] });
  const [, text = ''] = await pairing.line(/^Both in one text: +(.*)/);
  await pairing.line(/[█▀▄]{5}/);
  const joined = await second.call(['join', text, '--name', 'Second', '--json']);
  t.match(joined.data, [
    { event: 'digits', digits: /^\d{6}$/ },
    { event: 'joined', name: 'Second' },
  ]);
  const { code, out } = await pairing.result;
  t.equal(code, EXIT.ok);
  t.ok(out.includes(qrLines(text, false).join('\n')), 'the code is that of the text');
});

t.test('CLI-05: no device is admitted without a yes, or without exactly its digits', async (t) => {
  const { url, first } = await claimed(t);
  t.equal((await first.call(['pair'])).code, EXIT.usage, 'no terminal to confirm at');
  t.equal((await first.call(['pair', '--yes'])).code, EXIT.usage, '--yes alone is not enough');
  t.equal((await first.call(['pair', '--digits', '123456'])).code, EXIT.usage);
  t.equal(count(first, '/devices/pair-init'), 0);

  const no = first.start(['pair'], { answers: [[/same digits/, 'no']] });
  const [, words = ''] = await no.line(/^Six words: +(.*)/);
  const refused = (await machine(t)).call(['join', url, ...words.split(' '), '--json']);
  t.match(await refused, { code: EXIT.refused, error: { code: 'pairing_rejected' } });
  t.equal((await no.result).code, EXIT.refused);

  const { pairing, second, argv } = await paired(t, first, ({ text }) => ['join', String(text), '--json']);
  const other = second.call(argv);
  t.match(
    await pairing.result,
    { code: EXIT.untrusted, error: { code: 'digits_differ' } },
    'digits other than those shown end the pairing',
  );
  t.match(await other, { code: EXIT.refused });
  t.match(await first.json(['devices']), { devices: { length: 1 } });
});

t.test('CLI-26: Ctrl-C while a device that has joined gets its keys ends `pair`', async (t) => {
  const { url, first } = await claimed(t);
  await first.json(['put', 'milk']);
  const second = await machine(t);
  const pairing = first.start(['pair', '--no-qr'], { answers: [[/same digits/, () => 'yes']] });
  const [, words = ''] = await pairing.line(/^Six words: +(.*)/);
  first.tap.alterRequest = ({ method, path }) => {
    if (method === 'POST' && path.startsWith('/items')) pairing.interrupt();
    return undefined;
  };
  const joining = second.call(['join', url, ...words.split(' '), '--name', 'Second']);
  t.match(await soon(pairing.result, 'the end of `pair`'), {
    code: EXIT.interrupted,
    out: /"Second" is one of your devices\. Its keys are still being added; `sync` finishes that\./,
  });
  t.match(await joining, { code: EXIT.ok });
});

t.test('CLI-05: a script that is given the digits admits the device', async (t) => {
  const { first } = await claimed(t);
  const second = await machine(t);
  let digits = '';
  let told = (): void => undefined;
  const there = new Promise<void>((resolve) => (told = resolve));
  const pairing = first.start(['pair', '--json', '--yes', '--digits', '-'], {
    get input() {
      return digits;
    },
  });
  const offer = JSON.parse((await pairing.line(/.*"offer".*/))[0]) as Result['data'][number];
  // The digits come from the new machine's screen; its request reaches the other one after that.
  const fetchAfter = second.tap.platform.fetch;
  Object.assign(second.tap.platform, {
    fetch: async (url: string, init: RequestInit) => {
      if (url.includes('pair-fetch-npk')) await there;
      return fetchAfter(url, init);
    },
  });
  const joining = second.start(['join', String(offer['text']), '--json', '--name', 'Script']);
  digits = String((await joining.line(/"digits":"(\d{6})"/))[1]);
  told();
  t.match(await pairing.result, {
    code: EXIT.ok,
    data: [{ event: 'offer' }, { event: 'request', digits }, { event: 'joined', name: 'Script' }],
  });
  t.equal((await joining.result).code, EXIT.ok);
});

t.test(
  'CLI-22 CLI-23: recovery takes the phrase, not printed and checked locally, and the password where one is set',
  async (t) => {
    const { url, first, phrase } = await claimed(t);
    await first.json(['put', 'still here']);
    const set: Answers = [
      [/^New account password/, 'correct horse'],
      [/^Once more/, 'correct horse'],
    ];
    t.equal((await first.call(['password', 'set'], { answers: set })).code, EXIT.ok);
    const again = await first.call(['password', 'set'], { answers: set });
    t.equal(again.code, EXIT.refused);
    t.match(again.notes, /already set[^]*password change/);
    const differ: Answers = [
      [/^Current/, 'correct horse'],
      [/^New account password/, 'a'],
      [/^Once more/, 'b'],
    ];
    t.equal((await first.call(['password', 'change'], { answers: differ })).code, EXIT.usage);

    const pairing = first.start(['pair', '--no-qr'], { answers: [[/same digits/, 'yes']] });
    const [, words = ''] = await pairing.line(/^Six words: +(.*)/);
    const guest = await machine(t);
    const answers: Answers = [
      [/^Account password/, 'battery staple'],
      [/^Account password/, 'correct horse'],
    ];
    const joined = await guest.call(['join', url, ...words.split(' '), '--name', 'Guest'], { answers });
    t.match(joined, { code: EXIT.ok, notes: /not the account password/ }, 'the words are still valid');
    // Without the words it would wait for another device.
    if (joined.code === EXIT.ok) await pairing.result;

    const desk = await machine(t);
    const recovered = await desk.call(['recover', url, '--name', 'Back'], {
      answers: [
        [/twelve words/, mistyped(phrase)],
        [/twelve words/, ` ${phrase.toUpperCase().replaceAll(' ', '  ')} `],
        [/^Account password/, 'battery staple'],
        [/^Account password/, 'correct horse'],
      ],
    });
    t.equal(recovered.code, EXIT.ok, recovered.notes);
    t.match(recovered.notes, /not the account password/);
    t.notMatch(recovered.out + recovered.notes, phrase.split(' ').slice(0, 2).join(' '));
    t.match(await desk.json(['list']), { items: [{ title: 'still here' }] });
    t.notMatch(desk.tap.sent(), /correct horse|battery/);

    const script = await machine(t);
    const file = join(script.home, 'secrets');
    writeFileSync(file, `${mistyped(phrase)}\n`, { mode: 0o600 });
    t.match(await script.call(['recover', url, '--json', '--phrase-file', file]), {
      code: EXIT.usage,
      error: { code: 'bad_words', hint: /Compare the words/ },
    });
    writeFileSync(file, 'x'.repeat(5_000));
    t.match(await script.call(['recover', url, '--json', '--phrase-file', file]), {
      code: EXIT.usage,
      error: { code: 'usage', message: `the first line of ${file} is longer than 4096 bytes` },
    });
    t.match(await script.call(['recover', url, '--json', '--phrase-file', '/dev/zero']), {
      code: EXIT.usage,
      error: { code: 'usage', message: 'the first line of /dev/zero is longer than 4096 bytes' },
    });
    t.equal(script.tap.calls.length, 0, 'the phrase is checked before anything is sent');
    writeFileSync(file, `${phrase}\n`);
    t.match(await script.call(['recover', url, '--json', '--phrase-file', file]), {
      error: { code: 'password_required' },
    });
    const wrong = join(script.home, 'wrong');
    writeFileSync(wrong, 'battery staple\n');
    const attended = ['recover', url, '--json', '--phrase-file', file, '--password-file', wrong];
    t.match(await script.call(attended, { answers: [] }), {
      error: { code: 'password_invalid', hint: /password-reset/ },
    });
    const tries = script.tap.calls.filter(({ path }) => path === '/password/verify');
    t.equal(tries.length, 1, 'a password from a file is not tried again');
    const both = ['recover', url, '--json', '--phrase-file', file, '--password-file', '-'];
    t.equal((await script.call(both, { input: 'correct horse\n' })).code, EXIT.ok);
  },
);

t.test('CLI-03 CLI-15: an address where there is no server is reported as such', async (t) => {
  const desk = await machine(t);
  const closed = await desk.call(['join', 'http://127.0.0.1:9', 'abandon', '--json']);
  t.match(closed, { code: EXIT.usage, error: { code: 'bad_words' } }, 'the words are checked first');
  const nobody = await desk.call(['claim', 'http://127.0.0.1:9', '--json', '--show-phrase']);
  t.match(nobody, { code: EXIT.unavailable, error: { code: 'network', message: /cannot be reached/ } });
  t.match(await desk.call(['list', '--json']), { code: EXIT.notFound, error: { code: 'no_device' } });
});
