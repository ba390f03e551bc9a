/** Exports of other programs, made by hand from their published formats. Every secret in them is made up. */
import { createCipheriv, createHash, createHmac, pbkdf2Sync, randomBytes } from 'node:crypto';
import { argon2id } from 'hash-wasm';

const made = (day: number): string => new Date(Date.UTC(2024, 0, day)).toISOString();

/** Every type of Bitwarden's JSON, with all it can hold. Eight entries, one of them in the trash. */
export const bitwardenJson = {
  encrypted: false,
  folders: [{ id: 'f-1', name: 'Work/Code' }],
  items: [
    {
      ...{ id: 'i-1', organizationId: null, folderId: 'f-1', type: 1, reprompt: 1, name: 'Code host', favorite: true },
      ...{
        notes: 'Ask Ada first',
        collectionIds: null,
        creationDate: made(1),
        revisionDate: made(2),
        deletedDate: null,
      },
      fields: [
        { name: 'PIN', value: 'fake-pin', type: 1, linkedId: null },
        { name: 'Team', value: 'blue', type: 0, linkedId: null },
      ],
      login: {
        fido2Credentials: [{ credentialId: 'fake-passkey', rpId: 'code.example' }],
        uris: [{ match: null, uri: 'https://code.example/login' }, { uri: 'https://alt.example' }],
        ...{ username: 'ada', password: 'fake-secret-1', totp: 'otpauth://totp/x?secret=FAKESEED' },
      },
      passwordHistory: [{ lastUsedDate: made(1), password: 'fake-earlier' }],
    },
    {
      ...{
        id: 'i-2',
        folderId: null,
        type: 1,
        name: 'plain.example',
        notes: null,
        creationDate: made(3),
        revisionDate: made(3),
      },
      login: { uris: [{ uri: 'https://plain.example/' }], username: 'bob', password: 'fake-secret-2', totp: null },
    },
    {
      ...{ id: 'i-3', type: 2, name: 'Wifi of the office', notes: 'Ask at the desk', secureNote: { type: 0 } },
      ...{ creationDate: made(4), revisionDate: made(4) },
    },
    {
      ...{ id: 'i-4', type: 3, name: 'Visa', notes: null, creationDate: made(5), revisionDate: made(5) },
      card: {
        cardholderName: 'Ada L',
        brand: 'Visa',
        number: '4000000000000002',
        expMonth: '1',
        expYear: '2030',
        code: '737',
      },
    },
    {
      ...{ id: 'i-5', type: 4, name: 'Me', notes: null, creationDate: made(6), revisionDate: made(6) },
      identity: {
        firstName: 'Ada',
        lastName: 'Lovelace',
        company: 'Engines',
        email: 'ada@engines.example',
        phone: '+44 1',
        ssn: 'fake-ssn',
      },
    },
    {
      ...{ id: 'i-6', type: 5, name: 'Deploy key', notes: null, creationDate: made(7), revisionDate: made(7) },
      sshKey: { privateKey: 'FAKE PRIVATE KEY', publicKey: 'ssh-ed25519 AAAA', keyFingerprint: 'SHA256:fake' },
    },
    {
      ...{
        id: 'i-7',
        type: 1,
        name: 'Thrown away',
        deletedDate: made(9),
        creationDate: made(8),
        revisionDate: made(8),
      },
      login: { username: 'x', password: 'fake-trash' },
    },
    {
      ...{ id: 'i-8', type: 1, name: 'A page', notes: null, creationDate: made(9), revisionDate: made(9) },
      login: { uris: [{ uri: 'https://page.example/a' }], username: null, password: null, totp: null },
    },
  ],
} as const;

/** Bitwarden's password-protected export of a document. */
export async function lockedBitwarden(
  document: unknown,
  password: string,
  kdf: 'pbkdf2' | 'argon2id',
): Promise<unknown> {
  const salt = randomBytes(16).toString('base64');
  const passes = kdf === 'pbkdf2' ? 5_000 : 2;
  const key =
    kdf === 'pbkdf2'
      ? pbkdf2Sync(password, salt, passes, 32, 'sha256')
      : await argon2id({
          ...{ password, salt: createHash('sha256').update(salt).digest(), iterations: passes, parallelism: 2 },
          ...{ memorySize: 16 * 1024, hashLength: 32, outputType: 'binary' },
        });
  const stretched = (info: string): Buffer => createHmac('sha256', key).update(`${info}\u0001`).digest();
  const sealed = (text: string): string => {
    const iv = randomBytes(16);
    const cipher = createCipheriv('aes-256-cbc', stretched('enc'), iv);
    const ct = Buffer.concat([cipher.update(text), cipher.final()]);
    const mac = createHmac('sha256', stretched('mac')).update(iv).update(ct).digest();
    return `2.${[iv, ct, mac].map((bytes) => bytes.toString('base64')).join('|')}`;
  };
  return {
    ...{ encrypted: true, passwordProtected: true, salt, kdfType: kdf === 'pbkdf2' ? 0 : 1, kdfIterations: passes },
    ...(kdf === 'pbkdf2' ? {} : { kdfMemory: 16, kdfParallelism: 2 }),
    encKeyValidation_DO_NOT_EDIT: sealed('00000000-0000-4000-8000-000000000000'),
    data: sealed(JSON.stringify(document, null, 2)),
  };
}

export const bitwardenCsv = [
  'folder,favorite,type,name,notes,fields,reprompt,login_uri,login_username,login_password,login_totp',
  'Work,1,login,Code host,"two\nlines","PIN: fake-pin\nTeam: blue",0,"https://code.example,https://alt.example",ada,fake-secret-1,FAKESEED',
  ',,note,Recipe,"1. Butter, 2. flour",,0,,,,',
  ',,login,Plain,,,0,https://plain.example,bob,"fake ""quoted"" secret",',
].join('\r\n');

/** With a byte order mark, as some tools add one. */
export const chromeCsv = `\ufeff${[
  'name,url,username,password,note',
  'code.example,https://code.example/login,ada,fake-secret-1,',
  'Mail,https://mail.example/,ada@example.org,"fake,secret",the note',
  'Mail,https://mail.example/,ada@example.org,fake-other,',
].join('\n')}\n`;

export const firefoxCsv = [
  '"url","username","password","httpRealm","formActionOrigin","guid","timeCreated","timeLastUsed","timePasswordChanged"',
  '"https://code.example","ada","fake-secret-1",,"https://code.example","{11111111-1111-4111-8111-111111111111}","1700000000000","1710000000000","1705000000000"',
  '"https://router.example","admin","fake-secret-2","Router",,"{22222222-2222-4222-8222-222222222222}","1700000000001","1710000000000","1700000000001"',
].join('\r\n');

/** 4.0, 3.0 with a group, folded lines and a photo, and 2.1 with quoted-printable. */
export const vcards = [
  ...['BEGIN:VCARD', 'VERSION:4.0', 'UID:urn:uuid:1', 'FN:Ada Lovelace', 'N:Lovelace;Ada;;;', 'TITLE:Countess'],
  ...['EMAIL;TYPE=work:ada@engines.example', 'TEL;VALUE=uri;PREF=1:tel:+44-1', 'NOTE:likes\\, numbers\\nand looms'],
  ...[
    'END:VCARD',
    'BEGIN:VCARD',
    'VERSION:3.0',
    'N:Babbage;Charles;;Mr.;',
    'FN:Charles Babb',
    ' age',
    'ORG:Engines;Analytical',
  ],
  ...[
    'item1.EMAIL;type=INTERNET;type=pref:charles@engines.example',
    'item1.X-ABLabel:desk',
    'EMAIL:other@engines.example',
  ],
  ...[
    'ADR;TYPE=home:;;1 Dorset Street;London;;;UK',
    'BDAY:1791-12-26',
    'PHOTO;ENCODING=b;TYPE=JPEG:/9j/4AAQ',
    ' SkZJRg==',
  ],
  ...[
    'END:VCARD',
    '',
    'BEGIN:VCARD',
    'VERSION:2.1',
    'N;CHARSET=UTF-8;ENCODING=QUOTED-PRINTABLE:M=C3=BCller;J=',
    '=C3=BCrgen;;;',
  ],
  ...['TEL;CELL:+49 1', 'TEL;HOME:+49 2', 'END:VCARD', ''],
].join('\r\n');
