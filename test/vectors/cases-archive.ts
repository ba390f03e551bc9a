/** Vectors of the archive. */
import { fixed, MASTER_KEY, refused, spoilt, TENANT_ID, valid, type Vector } from './cases.js';
import { aead, argon2, auth, b32, bip39Seed, hex, join, lp, utf8, words, type Bytes } from './reference.js';

const SMALL_CHUNK = 200;
const OWN_CHUNK = 64 * 1024;
const HEADER_LENGTH = 56 + 32;

const fingerprint = (masterKey: Bytes): string =>
  (hex(b32(utf8('service-master-fingerprint-v1'), masterKey).slice(0, 16)).match(/.{4}/g) ?? []).join(' ');

function u32(value: number): Bytes {
  const out = Buffer.alloc(4);
  out.writeUInt32BE(value);
  return new Uint8Array(out);
}

function u64(value: number): Bytes {
  const out = Buffer.alloc(8);
  out.writeBigUInt64BE(BigInt(value));
  return new Uint8Array(out);
}

interface Parts {
  readonly header: Bytes;
  readonly chunks: readonly Bytes[];
}

const hexOf = ({ header, chunks }: Parts): string => hex(join(header, ...chunks));

/** An archive, by a second, plain implementation. */
async function archive(phrase: string, plain: Bytes, chunkBytes: number): Promise<Parts> {
  const salt = fixed('archive salt', 16);
  const prefix = fixed('archive nonce prefix', 16);
  const magic = new Uint8Array([0x89, 0x56, 0x4c, 0x54, 0x0d, 0x0a, 0x1a, 0x0a]);
  const header = join(magic, new Uint8Array([1, 1, 1, 0]), u32(3), u32(65_536), u32(chunkBytes), salt, prefix);
  const stretched = await argon2(32, bip39Seed(phrase), lp('service-archive-salt-v1', salt));
  const tag = auth(header, b32(utf8('service-archive-header-v1'), stretched));
  const key = b32(lp('service-archive-chunk-v1', header), stretched);
  const count = Math.max(1, Math.ceil(plain.length / chunkBytes));
  const chunks = Array.from({ length: count }, (_, at) => {
    const message = plain.slice(at * chunkBytes, (at + 1) * chunkBytes);
    const aad = join(new Uint8Array([at === count - 1 ? 1 : 0]), u32(message.length + 16));
    return join(aad, aead(message, { aad, nonce: join(prefix, u64(at)), key }));
  });
  return { header: join(header, tag), chunks };
}

const manifest = {
  record: 'manifest',
  format: 1,
  createdAt: 1_760_000_000_000,
  tenantId: TENANT_ID,
  masterFingerprint: fingerprint(MASTER_KEY),
};
const records = [
  manifest,
  { record: 'bin', id: 'inbox', slug: 'inbox', label: null },
  { record: 'bin', id: 'garden', slug: 'garden', label: { name: 'Gärten', emoji: '🌱' } },
  {
    record: 'item',
    id: '01JAB0ARCH1VE0000000000001',
    bin: 'garden',
    type: 'text',
    ts: 1_750_000_000_000,
    payload: { text: 'zwölf Äpfel\nund ein Korb' },
    blob: false,
    content: null,
  },
  {
    record: 'item',
    id: '01JAB0ARCH1VE0000000000002',
    bin: 'inbox',
    type: 'file',
    ts: 1_750_000_000_001,
    payload: { name: 'plan.pdf', size: 123456, mime: 'application/pdf' },
    blob: true,
    content: null,
  },
  {
    record: 'item',
    id: '01JAB0ARCH1VE0000000000003',
    bin: 'inbox',
    type: 'file',
    ts: 1_750_000_000_002,
    payload: { name: 'note.bin', size: 5, mime: 'application/octet-stream' },
    blob: true,
    content: 5,
  },
  { record: 'part', data: 'AAEC' },
  { record: 'part', data: '_v8' },
];
const end = { record: 'end', bins: 2, items: 3 };

const lines = (all: readonly object[]): Bytes => utf8(all.map((one) => `${JSON.stringify(one)}\n`).join(''));

/** archive.json */
export async function archives(): Promise<Vector[]> {
  const phrase = words(fixed('phrase', 16));
  const other = words(fixed('another phrase', 16));
  const own = await archive(phrase, lines([...records, end]), OWN_CHUNK);
  const small = await archive(phrase, lines([...records, end]), SMALL_CHUNK);
  const [first, second, ...rest] = small.chunks;
  if (first === undefined || second === undefined || rest.length === 0) throw new Error('too few chunks');
  const of = (parts: Parts): Vector['input'] => ({ phrase, archive: hexOf(parts) });
  const { header } = small;
  const spoiltHeader = new Uint8Array(header);
  spoiltHeader[50] = (spoiltHeader[50] ?? 0) ^ 1;
  const cut = { header, chunks: small.chunks.slice(0, -1) };
  const wrongEnd = await archive(phrase, lines([...records, { ...end, items: 2 }]), OWN_CHUNK);
  const lessContent = await archive(phrase, lines([...records.slice(0, -1), end]), OWN_CHUNK);
  const moreContent = await archive(phrase, lines([...records, records.at(-1) ?? {}, end]), OWN_CHUNK);
  const noEnd = await archive(phrase, lines(records), OWN_CHUNK);
  return [
    valid('two bins and three items, one with its content, in one chunk', of(own), { records, rewritten: true }),
    valid('the same in chunks of 200 bytes', of(small), { records }),
    refused('other words', { phrase: other, archive: hexOf(own) }, 'wrong_words'),
    refused('a changed nonce prefix', of({ header: spoiltHeader, chunks: small.chunks }), 'wrong_words'),
    refused('a changed last chunk', { phrase, archive: spoilt(hexOf(small)) }, 'damaged'),
    refused('two chunks in each other’s place', of({ header, chunks: [second, first, ...rest] }), 'damaged'),
    refused('a chunk left out', of({ header, chunks: [first, ...rest] }), 'damaged'),
    refused('the last chunk left out', of(cut), 'truncated'),
    refused('the header alone', { phrase, archive: hexOf(own).slice(0, HEADER_LENGTH * 2) }, 'truncated'),
    refused('a byte behind the end', { phrase, archive: `${hexOf(small)}00` }, 'damaged'),
    refused('an end that counts another number of items', of(wrongEnd), 'bad_record'),
    refused('content with a part too few', of(lessContent), 'bad_record'),
    refused('content with a part too many', of(moreContent), 'bad_record'),
    refused('no end record', of(noEnd), 'truncated'),
    refused(
      'another version',
      { phrase, archive: `${hexOf(own).slice(0, 16)}02${hexOf(own).slice(18)}` },
      'unsupported',
    ),
    refused('no archive', { phrase, archive: hex(utf8('{"items": []}')) }, 'not_archive'),
  ];
}
