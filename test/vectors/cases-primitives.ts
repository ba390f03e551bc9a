/** Vectors of the primitives, of LP and of words. */
import { boxKeys, fixed, LOW_ORDER_POINTS, miscounted, refused, spoilt, valid, type Vector } from './cases.js';
import {
  aead,
  auth,
  b32,
  blake2b,
  ed25519Public,
  ed25519Sign,
  hex,
  hmacSha256,
  lp,
  seal,
  secretbox,
  sha256,
  unhex,
  utf8,
  words,
  x25519,
  x25519Public,
  type Bytes,
} from './reference.js';

function hashes(): Vector[] {
  const message = fixed('message', 57);
  const key = fixed('hash key');
  const context = utf8('service-item-mac-v1');
  const hashed = (call: string, input: Record<string, Bytes>, out: Bytes): Vector =>
    valid(call, { call, ...Object.fromEntries(Object.entries(input).map(([k, v]) => [k, hex(v)])) }, { out: hex(out) });
  return [
    hashed('sha256', { message }, sha256(message)),
    hashed('hmacSha256', { message, key }, hmacSha256(message, key)),
    hashed('auth', { message, key }, auth(message, key)),
    hashed('auth', { message: new Uint8Array(0), key }, auth(new Uint8Array(0), key)),
    { ...hashed('blake2b', { message }, blake2b(16, message)), comment: 'BLAKE2b-16, no key' },
    { ...hashed('blake2b', { message, key }, b32(message, key)), comment: 'BLAKE2b-32, key of 32 bytes' },
    { ...hashed('blake2b', { message, key: context }, b32(message, context)), comment: 'BLAKE2b-32, key of 19 bytes' },
    refused(
      'a BLAKE2b key under 16 bytes',
      { call: 'blake2b', message: hex(message), key: '00'.repeat(15) },
      'bad_length',
    ),
    refused(
      'an HMAC key of another length',
      { call: 'hmacSha256', message: hex(message), key: '00'.repeat(31) },
      'bad_length',
    ),
    valid(
      'the tag holds',
      { call: 'authVerify', message: hex(message), key: hex(key), tag: hex(auth(message, key)) },
      { out: true },
    ),
    valid(
      'an altered tag does not',
      { call: 'authVerify', message: hex(message), key: hex(key), tag: spoilt(hex(auth(message, key))) },
      { out: false },
    ),
    valid(
      'a short tag does not',
      { call: 'authVerify', message: hex(message), key: hex(key), tag: 'aa' },
      { out: false },
    ),
  ];
}

/** draft-irtf-cfrg-xchacha-03, A.3.1. */
const DRAFT_AEAD = {
  message: hex(
    utf8(
      "Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it.",
    ),
  ),
  aad: '50515253c0c1c2c3c4c5c6c7',
  nonce: '404142434445464748494a4b4c4d4e4f5051525354555657',
  key: '808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f',
};
const DRAFT_AEAD_OUT =
  'bd6d179d3e83d43b9576579493c0e939572a1700252bfaccbed2902c21396cbb731c7f1b0b4aa6440bf3a82f4eda7e39ae64c6708c54c216' +
  'cb96b72e1213b4522f8c9ba40db5d945b11b69b982c1bb9e3f3fac2bc369488f76b2383565d3fff921f9664c97637da9768812f615c68b13' +
  'b52ec0875924c1c7987947deafd8780acf49';

/** "Cryptography in NaCl", section 10. */
const NACL_BOX = {
  message:
    'be075fc53c81f2d5cf141316ebeb0c7b5228c52a4c62cbd44b66849b64244ffce5ecbaaf33bd751a1ac728d45e6c61296cdc3c01233561f4' +
    '1db66cce314adb310e3be8250c46f06dceea3a7fa1348057e2f6556ad6b1318a024a838f21af1fde048977eb48f59ffd4924ca1c60902e52' +
    'f0a089bc76897040e082f937763848645e0705',
  nonce: '69696ee955b62b73cd62bda875fc73d68219e0036b7a0b37',
  key: '1b27556473e985d462cd51197a9a46c76009549eac6474f206c4ee0844f68389',
};
const NACL_BOX_OUT =
  'f3ffc7703f9400e52a7dfb4b3d3305d98e993b9f48681273c29650ba32fc76ce48332ea7164d96a4476fb8c531a1186ac0dfc17c98dce87b' +
  '4da7f011ec48c97271d2c20f9b928fe2270d6fb863d51738b48eeee314a7cc8ab932164548e526ae90224368517acfeabd6bb3732bc0e9da' +
  '99832b61ca01b6de56244a9e88d5f9b37973f622a43d14a6599b1f654cb45a74e355a5';

/** A published vector. Throws where the reference implementation does not reproduce it. */
function published(
  source: string,
  input: Vector['input'],
  result: { readonly out: string; readonly here: Bytes },
): Vector {
  if (hex(result.here) !== result.out) throw new Error(`the reference does not reproduce ${source}`);
  return valid(`published: ${source}`, input, { out: result.out });
}

const unhexed = (input: { aad: string; nonce: string; key: string }): { aad: Bytes; nonce: Bytes; key: Bytes } => ({
  aad: unhex(input.aad),
  nonce: unhex(input.nonce),
  key: unhex(input.key),
});

function boxes(): Vector[] {
  const key = fixed('box key');
  const nonce = fixed('box nonce', 24);
  const message = fixed('box message', 40);
  const aad = utf8('text|1760000000000');
  const keys = boxKeys('sealed to');
  const aeadInput = { aad: hex(aad), nonce: hex(nonce), key: hex(key) };
  const sealed = hex(seal(message, keys.publicKey, fixed('ephemeral')));
  const own = { publicKey: hex(keys.publicKey), secretKey: hex(keys.secretKey) };
  const box = hex(secretbox(message, nonce, key));
  const encrypted = hex(aead(message, { aad, nonce, key }));
  const shut = { out: null };
  return [
    published(
      'draft-irtf-cfrg-xchacha-03, A.3.1',
      { call: 'aead', ...DRAFT_AEAD },
      { out: DRAFT_AEAD_OUT, here: aead(unhex(DRAFT_AEAD.message), unhexed(DRAFT_AEAD)) },
    ),
    valid('XChaCha20-Poly1305', { call: 'aead', message: hex(message), ...aeadInput }, { out: encrypted }),
    valid('of nothing', { call: 'aead', message: '', ...aeadInput }, { out: hex(aead(utf8(''), { aad, nonce, key })) }),
    valid('altered', { call: 'aeadDecrypt', message: spoilt(encrypted), ...aeadInput }, shut),
    valid(
      'other AAD',
      { call: 'aeadDecrypt', message: encrypted, ...aeadInput, aad: hex(utf8('text|1760000000001')) },
      shut,
    ),
    valid('shorter than a tag', { call: 'aeadDecrypt', message: encrypted.slice(0, 30), ...aeadInput }, shut),
    refused(
      'a nonce of 12 bytes',
      { call: 'aead', message: '', ...aeadInput, nonce: hex(nonce).slice(0, 24) },
      'bad_length',
    ),
    published(
      'Cryptography in NaCl, 10',
      { call: 'secretbox', ...NACL_BOX },
      { out: NACL_BOX_OUT, here: secretbox(unhex(NACL_BOX.message), unhex(NACL_BOX.nonce), unhex(NACL_BOX.key)) },
    ),
    valid(
      'XSalsa20-Poly1305',
      { call: 'secretbox', message: hex(message), nonce: hex(nonce), key: hex(key) },
      { out: box },
    ),
    valid('altered', { call: 'secretboxOpen', message: spoilt(box), nonce: hex(nonce), key: hex(key) }, shut),
    valid(
      'shorter than a tag',
      { call: 'secretboxOpen', message: box.slice(0, 30), nonce: hex(nonce), key: hex(key) },
      shut,
    ),
    valid('a sealed box opens', { call: 'sealOpen', sealed, ...own }, { out: hex(message) }),
    valid('altered', { call: 'sealOpen', sealed: spoilt(sealed), ...own }, shut),
    valid('shorter than an empty box', { call: 'sealOpen', sealed: sealed.slice(0, 94), ...own }, shut),
    ...LOW_ORDER_POINTS.map(([name, point]) =>
      refused(
        `sealing to a low-order key: ${name}`,
        { call: 'seal', message: hex(message), publicKey: point },
        'low_order',
      ),
    ),
  ];
}

function curves(): Vector[] {
  const secret = fixed('x25519 secret');
  const secretKey = hex(secret);
  const other = boxKeys('other side').publicKey;
  const rfc = {
    secretKey: 'a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4',
    publicKey: 'e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c',
  };
  const signSeed = unhex('4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb');
  const message = fixed('signed', 30);
  const signature = hex(ed25519Sign(message, signSeed));
  const publicKey = hex(ed25519Public(signSeed));
  const verify = { call: 'signVerify', message: hex(message), publicKey };
  return [
    published(
      'RFC 7748, 5.2',
      { call: 'scalarmult', ...rfc },
      {
        out: 'c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552',
        here: x25519(unhex(rfc.secretKey), unhex(rfc.publicKey)),
      },
    ),
    valid('X25519', { call: 'scalarmult', secretKey, publicKey: hex(other) }, { out: hex(x25519(secret, other)) }),
    valid('X25519 public key', { call: 'scalarmultBase', secretKey }, { out: hex(x25519Public(secret)) }),
    ...LOW_ORDER_POINTS.map(([name, point]) =>
      refused(`low order: ${name}`, { call: 'scalarmult', secretKey, publicKey: point }, 'low_order'),
    ),
    refused('a short public key', { call: 'scalarmult', secretKey, publicKey: '09' }, 'bad_length'),
    valid(
      'published: RFC 8032, 7.1, test 2',
      { call: 'sign', message: '72', seed: hex(signSeed) },
      {
        out:
          '92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aee' +
          'b00d291612bb0c00',
        publicKey: '3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c',
      },
    ),
    valid('Ed25519', { call: 'sign', message: hex(message), seed: hex(signSeed) }, { out: signature, publicKey }),
    valid('the signature holds', { ...verify, signature }, { out: true }),
    valid('an altered one does not', { ...verify, signature: spoilt(signature) }, { out: false }),
    valid('a short one does not', { ...verify, signature: 'aa' }, { out: false }),
    valid('over another message it does not', { ...verify, message: '00', signature }, { out: false }),
  ];
}

/** primitives.json: single calls of the primitives. */
export const primitives = (): Vector[] => [...hashes(), ...boxes(), ...curves()];

/** lp.json: length-prefixed lists. */
export function lengthPrefixes(): Vector[] {
  const lists: readonly (readonly [comment: string, parts: readonly ({ text: string } | { hex: string })[]])[] = [
    ['no part', []],
    ['one empty part is not no part', [{ text: '' }]],
    ['text is UTF-8', [{ text: 'naïve ☃ 🔑' }]],
    ['text and bytes', [{ text: 'service-item-delete-v1' }, { hex: '00ff10' }]],
    ['the same letters, cut elsewhere: ab, c', [{ text: 'ab' }, { text: 'c' }]],
    ['the same letters, cut elsewhere: a, bc', [{ text: 'a' }, { text: 'bc' }]],
    ['300 bytes: the length is big-endian', [{ hex: '5a'.repeat(300) }]],
  ];
  return lists.map(([comment, parts]) => {
    const raw = parts.map((part) => ('text' in part ? part.text : unhex(part.hex)));
    return valid(comment, { parts }, { bytes: hex(lp(...raw)) });
  });
}

/** words.json: bytes to words, and typed words back to bytes. */
export function wordCases(): Vector[] {
  const read = (comment: string, typed: string, bytes: Bytes): Vector =>
    valid(comment, { typed, count: (bytes.length / 4) * 3 }, { text: words(bytes), bytes: hex(bytes) });
  const code = fixed('code', 8);
  const six = words(code);
  const list = six.split(' ');
  const swapped = [list[1], list[0], ...list.slice(2)].join(' ');
  const wrong = (comment: string, typed: string, count = 6): Vector => refused(comment, { typed, count }, 'bad_words');
  return [
    read('six words', six, code),
    read('all zeros', words(new Uint8Array(8)), new Uint8Array(8)),
    read('all ones', words(new Uint8Array(8).fill(255)), new Uint8Array(8).fill(255)),
    read('upper case', six.toUpperCase(), code),
    read('hyphens', list.join('-'), code),
    read('runs of hyphens and white space', `  ${list.join(' -\t\n ')} `, code),
    read('a no-break space and an en dash', list.join('\u00a0\u2013'), code),
    ...['\u2010', '\u2011', '\u2012', '\u2014', '\u2015', '\u2e3a', '\u301c', '\uff0d'].map((dash) =>
      read(`the dash U+${(dash.codePointAt(0) ?? 0).toString(16).toUpperCase()}`, list.join(dash), code),
    ),
    read(
      'full-width letters, which NFKD folds',
      six.replace(/[a-z]/g, (c) => String.fromCharCode(c.charCodeAt(0) + 0xfee0)),
      code,
    ),
    read(
      'twelve words (published: the first BIP39 English vector)',
      `${'abandon '.repeat(11)}about`,
      new Uint8Array(16),
    ),
    read(
      'twelve words (published: the second BIP39 English vector)',
      'legal winner thank year wave sausage worth useful legal winner thank yellow',
      new Uint8Array(16).fill(0x7f),
    ),
    wrong('two words changed places: the checksum is wrong', swapped),
    wrong('a wrong checksum', miscounted(six)),
    wrong('a word outside the list', `${list.slice(0, 5).join(' ')} servicing`),
    wrong('five words', list.slice(0, 5).join(' ')),
    wrong('seven words', `${six} ${list[0]}`),
    wrong('no word', ' - '),
    wrong('minus signs (U+2212), which are no dashes', list.join('\u2212')),
    wrong('soft hyphens (U+00AD), which are no dashes', list.join('\u00ad')),
    wrong('low lines, which are no dashes', list.join('_')),
    wrong('words cut to three letters', list.map((word) => word.slice(0, 3)).join(' ')),
    wrong('twelve words with a wrong checksum', `${'abandon '.repeat(11)}abandon`, 12),
  ];
}
