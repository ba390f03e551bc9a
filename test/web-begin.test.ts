/** The start of the web app: words as people type them, the picture of the digits, what a browser must have. */
import t from 'tap';
import { encode } from 'uqr';
import { encodeWords } from '../src/crypto/words.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { offerText } from '../src/sdk/address.js';
import { takeFragment } from '../src/web/ui/begin.js';
import { pictureOf, THINGS } from '../src/web/ui/compare.js';
import { qrPath } from '../src/web/ui/qr-code.js';
import { saveStream } from '../src/web/ui/settings-archive.js';
import { text } from '../src/web/ui/strings.js';
import { browserOf, placesToAsk, readFragment, readJoin, wordsIn, type BrowserSelf } from '../src/web/ui/typed.js';
import { wayToHttps, whatIsMissing, type Surroundings } from '../src/web/ui/unable.js';

const ORIGIN = 'https://sync.example.org';
const words = encodeWords(nodeSodium, Uint8Array.from([1, 2, 3, 4, 5, 6, 7, 8])).split(' ');

t.test(
  'WEB-30: six words are read alike when typed, pasted from a numbered list, with hyphens, or in the link',
  async (t) => {
    const forms = [
      words.join(' '),
      `  ${words.join('-').toUpperCase()}\n`,
      words.map((word, at) => `${at + 1}. ${word}`).join('\n'),
      words.join('\u2011'),
      offerText(ORIGIN, words.join(' ')),
      `${ORIGIN}:443/#pair=${words.join('-')}`,
      `#pair=${words.join('-')}`,
    ];
    for (const form of forms) t.same(readJoin(form, ORIGIN), { words, elsewhere: null }, form);
    t.same(wordsIn(''), []);
  },
);

t.test('WEB-30: the link of another server is reported as such, where its address is http or https', async (t) => {
  const of = (address: string): string | null => readJoin(`${address}/#pair=${words.join('-')}`, ORIGIN).elsewhere;
  t.equal(of('https://other.example.org'), 'https://other.example.org');
  t.equal(of('http://sync.example.org'), 'http://sync.example.org');
  t.equal(of('https://sync.example.org:8443/x'), 'https://sync.example.org:8443');
  t.equal(of('javascript:alert(1)//'), null);
  t.equal(of('see here'), null);
});

t.test('WEB-31: words and a claim token are removed from the address, any other fragment stays', async (t) => {
  const visit = (hash: string): string[] => {
    const replaced: string[] = [];
    t.intercept(globalThis, 'location', { value: { hash, pathname: '/', search: '?a=1' } as never });
    t.intercept(globalThis, 'history', {
      value: { replaceState: (...[, , url]: unknown[]) => replaced.push(String(url)) } as never,
    });
    takeFragment();
    return replaced;
  };
  t.same(visit(`#pair=${words.join('-')}`), ['/?a=1']);
  t.same(visit('#claim=sb_claim_abc'), ['/?a=1']);
  t.same(visit('#/devices'), []);
  t.same(visit(''), []);
  t.same(readFragment(`#pair=${words.join('-')}`), { words: words.join(' ') });
  t.same(readFragment('#claim=a%2Bb'), { token: 'a+b' });
  t.same(readFragment('#claim=%zz'), { token: '%zz' });
});

t.test('WEB-32: all six digits have a picture of their own, and the next digits a dissimilar one', async (t) => {
  const seen = new Set<number>();
  let far = 0;
  const numberOf = (digits: number): number[] =>
    pictureOf(`${digits}`.padStart(6, '0')).map((thing) => THINGS.indexOf(thing));
  let before = numberOf(0);
  for (let digits = 0; digits < 1_000_000; digits++) {
    const picture = numberOf(digits);
    seen.add(picture.reduce((sum, thing) => sum * 10 + thing, 0));
    far += picture.filter((thing, at) => thing !== before[at]).length;
    before = picture;
  }
  t.equal(seen.size, 1_000_000);
  t.ok(far / 1_000_000 > 4, 'the next digits differ in most of the picture');
  t.same(
    pictureOf('048213'),
    ['house', 'umbrella', 'fish', 'anchor', 'house', 'bell'],
    'the picture of these digits never changes',
  );
  for (const wrong of ['', '12345', '1234567', '12a456']) t.throws(() => pictureOf(wrong), RangeError);
});

t.test('WEB-33: two different ones of the twelve words are asked for, and every pair occurs', async (t) => {
  const pairs = new Set<string>();
  for (let one = 0; one < 12; one++) {
    for (let other = 0; other < 11; other++) {
      const drawn = [one + 12 * 7, other + 11 * 5];
      const [first, second] = placesToAsk(() => drawn.shift() ?? 0);
      t.ok(first >= 0 && first < second && second < 12);
      pairs.add(`${first},${second}`);
    }
  }
  t.equal(pairs.size, (12 * 11) / 2);
});

t.test('WEB-34: the proposed name contains browser and platform', async (t) => {
  const name = (userAgent: string, more: Partial<BrowserSelf> = {}): string =>
    browserOf({ userAgent, maxTouchPoints: 0, ...more }).join('|');
  const webkit = 'AppleWebKit/537.36 (KHTML, like Gecko)';
  const safari = 'AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.0';
  t.equal(name('Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0'), 'Firefox|Linux');
  t.equal(
    name(`Mozilla/5.0 (Windows NT 10.0; Win64; x64) ${webkit} Chrome/140.0 Safari/537.36 Edg/140.0`),
    'Edge|Windows',
  );
  t.equal(name(`Mozilla/5.0 (Linux; Android 10; K) ${webkit} Chrome/140.0 Mobile Safari/537.36`), 'Chrome|Android');
  t.equal(
    name(`Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) ${safari} Mobile Safari/604.1`),
    'Safari|iPhone',
  );
  const mac = `Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) ${safari} Safari/605.1.15`;
  t.equal(name(mac), 'Safari|Mac');
  t.equal(name(mac, { maxTouchPoints: 5 }), 'Safari|iPad');
  const brands = ['Not A Brand', 'Chromium', 'Brave'].map((brand) => ({ brand }));
  t.equal(
    name(`Mozilla/5.0 (X11; CrOS x86_64) ${webkit} Chrome/140.0`, { userAgentData: { brands, platform: 'Chrome OS' } }),
    'Brave|Chromebook',
  );
  t.equal(name(''), '|');
  t.equal(text.begin.browserOn('Firefox', 'Linux'), 'Firefox on Linux');
  t.equal(text.begin.browserOn('', ''), 'Browser', 'there is always a name');
});

t.test('WEB-35: what a browser lacks is named, and a page without https lacks only that', async (t) => {
  const whole: Surroundings = {
    isSecureContext: true,
    WebAssembly: {},
    Worker: {},
    BroadcastChannel: {},
    ReadableStream: {},
    indexedDB: {},
    crypto: { subtle: {}, randomUUID: {} },
    navigator: { locks: {} },
  };
  t.same(whatIsMissing(whole), []);
  t.same(whatIsMissing({}), ['insecure']);
  t.same(whatIsMissing({ ...whole, isSecureContext: false, crypto: {}, navigator: {} }), ['insecure']);
  t.same(whatIsMissing({ ...whole, indexedDB: null, navigator: {}, crypto: { subtle: {} } }), [
    'storage',
    'locks',
    'crypto',
  ]);
  t.same(whatIsMissing({ ...whole, WebAssembly: undefined, Worker: undefined }), ['wasm', 'workers']);
  t.same(whatIsMissing({ ...whole, BroadcastChannel: undefined, ReadableStream: undefined }), ['channels', 'streams']);
});

t.test(
  'WEB-36: the suggested route to https fits the address: an own authority at home, a known one otherwise',
  async (t) => {
    const home = wayToHttps({ hostname: '192.168.1.20', port: '8080' });
    t.equal(home.proxy, 'sudo caddy reverse-proxy --from https://192.168.1.20 --to :8080 --internal-certs');
    t.match(
      home.certificate,
      /install -Dm644 \S+\/root\.crt ~\/ca\/root\.crt && caddy file-server --root ~\/ca --listen :2080$/,
    );
    t.notMatch(home.certificate, /root\.key/);
    t.equal(home.certificateUrl, 'http://192.168.1.20:2080/root.crt');
    for (const hostname of ['nas', 'nas.local', 'nas.lan', 'x.home.arpa', '[fd00::1]']) {
      t.match(wayToHttps({ hostname, port: '8080' }).proxy, /--internal-certs$/, hostname);
    }
    const known = wayToHttps({ hostname: 'sync.example.org', port: '8080' });
    t.same(known, {
      proxy: 'sudo caddy reverse-proxy --from https://sync.example.org --to :8080',
      certificate: null,
      certificateUrl: null,
      address: 'https://sync.example.org',
    });
    t.equal(wayToHttps({ hostname: 'nas', port: '' }).proxy, null, 'no proxy is suggested where one exists');
  },
);

t.test('WEB-37: the drawn QR code has the modules that the encoder gives, and a white border', async (t) => {
  const link = offerText(ORIGIN, words.join(' '));
  const { size, path } = qrPath(link);
  const drawn = Array.from({ length: size }, () => new Array<boolean>(size).fill(false));
  for (const [, x, y, run, back] of path.matchAll(/M(\d+) (\d+)h(\d+)v1h(-\d+)z/g)) {
    t.equal(Number(run), -Number(back));
    for (let at = 0; at < Number(run); at++) (drawn[Number(y)] as boolean[])[Number(x) + at] = true;
  }
  t.same(drawn, encode(link, { ecc: 'M', border: 4 }).data);
  t.equal(path.replace(/M\d+ \d+h\d+v1h-\d+z/g, ''), '');
  const edge = [0, 1, 2, 3, size - 4, size - 3, size - 2, size - 1];
  t.notOk(edge.some((at) => drawn[at]?.includes(true) === true || drawn.some((row) => row[at] === true)));
});

t.test('WEB-38: a saved file is complete; a stream that fails or is stopped leaves none', async (t) => {
  const target = () => {
    const did: (string | number)[] = [];
    const say = (what: string) => () => Promise.resolve(void did.push(what));
    const write = (bytes: Uint8Array) => Promise.resolve(void did.push(bytes.length));
    return { did, write, close: say('close'), abort: say('abort') };
  };
  async function* pieces(end?: () => void): AsyncGenerator<Uint8Array> {
    yield new Uint8Array(3);
    yield new Uint8Array(4);
    end?.();
  }
  const never = new AbortController().signal;
  const heard: number[] = [];
  const whole = target();
  t.equal(await saveStream(pieces(), whole, { onBytes: (n) => void heard.push(n), stop: never }), 7);
  t.same(
    [whole.did, heard],
    [
      [3, 4, 'close'],
      [3, 7],
    ],
  );

  const broken = target();
  const fail = (): never => {
    throw new Error('cut');
  };
  await t.rejects(saveStream(pieces(fail), broken, { onBytes: () => undefined, stop: never }), { message: 'cut' });
  t.same(broken.did, [3, 4, 'abort']);

  const stop = new AbortController();
  const stopped = target();
  await t.rejects(saveStream(pieces(), stopped, { onBytes: () => stop.abort(), stop: stop.signal }));
  t.same(stopped.did, [3, 'abort']);

  const late = new AbortController();
  const last = target();
  await t.rejects(
    saveStream(
      pieces(() => late.abort()),
      last,
      { onBytes: () => undefined, stop: late.signal },
    ),
  );
  t.same(last.did, [3, 4, 'abort'], 'a stop at the end leaves no file either');
});
