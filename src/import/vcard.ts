/** vCards 2.1, 3.0 (RFC 2426) and 4.0 (RFC 6350): several in a file, folded lines, quoted-printable, groups. */
import { text as utf8 } from '../protocol/bytes.js';
import * as foreign from './entries.js';

/** A line of a card: `item1.TEL;TYPE=cell,pref:+49 ...`. */
interface Property {
  readonly name: string;
  readonly params: ReadonlyMap<string, string>;
  /** Decoded from quoted-printable; escapes are still in it. */
  readonly value: string;
}

interface Card {
  readonly line: number;
  readonly text: string;
  readonly properties: readonly Property[];
}

/** Most lines of a file: each may become a property, which takes a few hundred bytes of memory. */
const LINES_MAX = 2_000_000;

/** The contacts of a file. Throws `ForeignError`. */
export function readVcards(text: string): readonly foreign.Entry[] {
  const numbered = foreign.keyCounter();
  return foreign.entriesOf(cardsOf(text).map((card, at) => draftOf(card, at + 1, numbered)));
}

function cardsOf(text: string): readonly Card[] {
  // The last line may end with a line break.
  const lines = text.split(/\r\n|\r|\n/, LINES_MAX + 2);
  if (lines.length > LINES_MAX + 1) throw new foreign.ForeignError('', `it has more than ${LINES_MAX} lines`);
  const cards: Card[] = [];
  let begun: { readonly at: number; readonly properties: Property[] } | undefined;
  for (let at = 0; at < lines.length;) {
    const where = `line ${at + 1}`;
    const { line, next } = unfolded(lines, at);
    const sign = line.trim().toUpperCase();
    if (sign === 'BEGIN:VCARD') {
      if (begun !== undefined) throw new foreign.ForeignError(where, 'a card begins within another one');
      if (cards.length >= foreign.ENTRIES_MAX)
        throw new foreign.ForeignError(where, `it has more than ${foreign.ENTRIES_MAX} cards`);
      begun = { at, properties: [] };
    } else if (sign === 'END:VCARD' && begun !== undefined) {
      const { at: first, properties } = begun;
      cards.push({ line: first + 1, text: `${lines.slice(first, next).join('\r\n')}\r\n`, properties });
      begun = undefined;
    } else if (sign !== '') {
      if (begun === undefined) throw new foreign.ForeignError(where, 'it is outside any card');
      begun.properties.push(propertyOf(line, where));
    }
    at = next;
  }
  if (begun !== undefined)
    throw new foreign.ForeignError(`line ${begun.at + 1}`, 'the card has no end: the file is cut short');
  return cards;
}

/** A line with its continuations: those that begin with white space, and in quoted-printable those after a `=`. */
function unfolded(lines: readonly string[], at: number): { readonly line: string; readonly next: number } {
  const parts = [lines[at] ?? ''];
  let next = at + 1;
  const quoted = /^[^:]*;(?:ENCODING=)?QUOTED-PRINTABLE[;:]/i.test(parts[0] ?? '');
  for (; next < lines.length; next++) {
    const following = lines[next] ?? '';
    const last = parts.at(-1) ?? '';
    if (quoted && last.endsWith('=')) parts.push(following);
    else if (/^[ \t]/.test(following)) parts.push(following.slice(1));
    else break;
  }
  const ending = parts.pop() ?? '';
  return { line: parts.map((part) => (quoted ? part.replace(/=$/, '') : part)).join('') + ending, next };
}

function propertyOf(line: string, where: string): Property {
  const colon = colonOf(line);
  const [head, raw] = [line.slice(0, colon), line.slice(colon + 1)];
  const [full = '', ...given] = head.match(/(?:[^";]|"[^"]*")+/g) ?? [];
  const name = full.replace(/^[\w-]+\./, '').toUpperCase();
  if (!/^[A-Z0-9-]+$/.test(name)) throw new foreign.ForeignError(where, 'it is not a line of a vCard');
  const params = new Map<string, string>();
  for (const param of given) {
    // In 2.1 a parameter may be its value alone.
    const [, key = 'TYPE', value = param] = /^([\w-]+)=(.*)$/s.exec(param) ?? [];
    const bare = /^(?:quoted-printable|base64|8bit)$/i.test(param) ? 'ENCODING' : key.toUpperCase();
    const [before, plain] = [params.get(bare), value.replaceAll('"', '')];
    params.set(bare, before === undefined ? plain : `${before},${plain}`);
  }
  const quoted = /^quoted-printable$/i.test(params.get('ENCODING') ?? '');
  return { name, params, value: quoted ? unquoted(raw, params.get('CHARSET') ?? 'utf-8', where) : raw };
}

const HEAD_MAX = 10_000;

/** The colon behind name and parameters; one within quotation marks belongs to a parameter. 0: there is none. */
function colonOf(line: string): number {
  let quoted = false;
  for (let at = 0; at < Math.min(line.length, HEAD_MAX); at++) {
    if (line[at] === '"') quoted = !quoted;
    else if (line[at] === ':' && !quoted) return at;
  }
  return 0;
}

const EQUALS = 0x3d;
const HEX = /^[0-9A-F]{2}$/i;

function unquoted(raw: string, charset: string, where: string): string {
  // What a program left as it is, is UTF-8, like the file. Decoded in place: a value may be as long as the file.
  const bytes = utf8(raw);
  let size = 0;
  for (let at = 0; at < bytes.length; at++) {
    const hex = bytes[at] === EQUALS ? String.fromCharCode(bytes[at + 1] ?? 0, bytes[at + 2] ?? 0) : '';
    const isByte = HEX.test(hex);
    bytes[size++] = isByte ? Number.parseInt(hex, 16) : (bytes[at] ?? 0);
    if (isByte) at += 2;
  }
  try {
    return new TextDecoder(charset, { fatal: true }).decode(bytes.subarray(0, size));
  } catch (error) {
    throw new foreign.ForeignError(where, 'its character set is not the one it declares', undefined, { cause: error });
  }
}

const BACKSLASH = 0x5c;
const [LINE_FEED, SMALL_N, LARGE_N] = [0x0a, 0x6e, 0x4e];

/** Without escapes: `\n`, `\,`, `\;`, `\\`. In place, as above. */
function unescaped(value: string): string {
  if (!value.includes('\\')) return value;
  const bytes = utf8(value);
  let size = 0;
  for (let at = 0; at < bytes.length; at++) {
    const escapes = bytes[at] === BACKSLASH && at + 1 < bytes.length;
    const byte = bytes[escapes ? ++at : at] ?? 0;
    bytes[size++] = escapes && (byte === SMALL_N || byte === LARGE_N) ? LINE_FEED : byte;
  }
  return new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes.subarray(0, size));
}

/** Most parts of a value; a name has five, and an organisation one for each of its units. */
const PARTS_MAX = 1_000;

/** The parts between semicolons that are not escaped, unescaped. */
function parts(value: string, where: string): string[] {
  const found: string[] = [];
  let begin = 0;
  for (let at = 0; at <= value.length; at++) {
    if (value[at] === '\\' && at + 1 < value.length) at++;
    else if (at === value.length || value[at] === ';') {
      if (found.length >= PARTS_MAX) throw new foreign.ForeignError(where, `a value has more than ${PARTS_MAX} parts`);
      found.push(unescaped(value.slice(begin, at)));
      begin = at + 1;
    }
  }
  return found;
}

/** Properties without personal content, and those that are read. */
const SILENT: ReadonlySet<string> = new Set([
  ...['VERSION', 'PRODID', 'REV', 'UID', 'N', 'FN', 'KIND', 'NOTE', 'EMAIL', 'TEL', 'TITLE', 'ROLE', 'ORG', 'PROFILE'],
  ...['X-ABUID', 'X-ABLABEL', 'X-ABSHOWAS', 'CLIENTPIDMAP', 'SORT-STRING', 'MAILER', 'CLASS'],
]);
const WORDS: Readonly<{ [name: string]: string }> = {
  ...{ ADR: 'address', BDAY: 'birthday', PHOTO: 'photo', URL: 'web address', LABEL: 'address label', GEO: 'position' },
  ...{ NICKNAME: 'nickname', IMPP: 'messenger', CATEGORIES: 'category', ANNIVERSARY: 'anniversary', LOGO: 'logo' },
  ...{ RELATED: 'relation', KEY: 'key', SOUND: 'sound', TZ: 'time zone', MEMBER: 'member', LANG: 'language' },
};

function draftOf(card: Card, number: number, numbered: (key: string) => string): foreign.Draft {
  const { properties } = card;
  const where = `card ${number} (line ${card.line})`;
  const all = (name: string): Property[] =>
    properties.filter((property) => property.name === name && property.value.trim() !== '');
  const first = (name: string): string => unescaped(preferred(all(name))?.value ?? '').trim();
  const [family = '', given = '', middle = '', before = '', after = ''] = parts(all('N')[0]?.value ?? '', where);
  const structured = [before, given, middle, family, after].map((part) => part.trim());
  const org = foreign.joined(', ', ...parts(all('ORG')[0]?.value ?? '', where).map((part) => part.trim()));
  const email = first('EMAIL').replace(/^mailto:/i, '');
  const phone = first('TEL').replace(/^tel:/i, '');
  const name = first('FN') || foreign.joined(' ', ...structured) || org || email || phone;
  const roles = new Set([first('TITLE'), first('ROLE'), org]);
  roles.delete(name);
  return {
    ...{ program: 'vcard', where, kind: 'contact', name, folder: '' },
    key: numbered(first('UID') || JSON.stringify([name, email, phone])),
    changed: revision(first('REV')),
    main:
      name === ''
        ? undefined
        : { type: 'contact', payload: { name, role: foreign.joined(', ', ...roles), email, phone } },
    notes: all('NOTE').map(({ value }) => unescaped(value)).join('\n\n'), // prettier-ignore
    unplaced: name === '' ? ['a card without a name'] : restOf(properties, all),
    original: () => ({ text: card.text, ending: 'vcf' }),
  };
}

/** `20260102T030405Z` and `2026-01-02T03:04:05Z`. */
const revision = (value: string): number | undefined =>
  foreign.timeOf(value.replace(/^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)/, '$1-$2-$3T$4:$5:$6'));

/** The one that is marked as preferred, else the first. */
const preferred = (properties: readonly Property[]): Property | undefined =>
  properties.find(({ params }) => params.has('PREF') || /\bpref\b/i.test(params.get('TYPE') ?? '')) ?? properties[0];

function restOf(properties: readonly Property[], all: (name: string) => readonly Property[]): readonly string[] {
  const others = new Map<string, number>();
  for (const { name, value } of properties)
    // Google puts each contact into a group of this name.
    if (!SILENT.has(name) && value !== 'myContacts' && value.replaceAll(';', '').trim() !== '')
      others.set(name, (others.get(name) ?? 0) + 1);
  return [
    ...foreign.some(all('TEL').length - 1, 'further phone number'),
    ...foreign.some(all('EMAIL').length - 1, 'further mail address', 'further mail addresses'),
    ...foreign.some(all('TITLE').length - 1, 'further title'),
    ...foreign.some(all('ROLE').length - 1, 'further role'),
    ...foreign.some(all('ORG').length - 1, 'further organisation'),
    ...[...others].map(([name, count]) => {
      const word = WORDS[name] ?? name.slice(0, 40);
      return count === 1 ? `the ${word}` : `${count} × ${word}`;
    }),
  ];
}
