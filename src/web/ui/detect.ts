/** Detects the kind of a typed or pasted text, and its fields. Pure; fast enough for each key press. */
import type { JsonObject } from '../../crypto/payload.js';
import type { ContentType } from '../../protocol/item.js';
import { percentDecoded } from '../../protocol/percent.js';
import { codeIn } from './detect-code.js';

/** A kind that text can become; files have kinds of their own. */
export type TextKind = Extract<ContentType, 'password' | 'link' | 'text' | 'code' | 'contact' | 'location'>;

interface Detection {
  readonly type: TextKind;
  readonly payload: JsonObject;
}

/** Longer texts are notes or code: nobody types a password or an address of this length. */
const SHORT_MAX = 2_000;

/** The kind of a text and its fields. */
export function detect(raw: string): Detection {
  const trimmed = raw.trim();
  const short = trimmed !== '' && trimmed.length <= SHORT_MAX;
  const found = short ? (placeIn(trimmed) ?? contactIn(trimmed) ?? secretIn(trimmed) ?? linkIn(trimmed)) : undefined;
  if (found !== undefined) return found;
  const code = codeIn(raw);
  if (code === undefined) return { type: 'text', payload: { text: raw } };
  return { type: 'code', payload: { lang: code.lang, label: '', text: code.text } };
}

/** The fields of a text for a kind chosen by hand, filled as far as the text allows. */
export function convert(raw: string, type: TextKind): JsonObject {
  const trimmed = raw.trim();
  const found = detect(raw);
  if (found.type === type) return found.payload;
  const url = /https?:\/\/\S+/i.exec(trimmed)?.[0] ?? trimmed;
  const payloads: Readonly<Record<TextKind, JsonObject>> = {
    password: { service: '', user: '', secret: trimmed },
    link: { url, title: trimmed.replace(url, '').trim(), site: siteOf(url) },
    code: { lang: '', label: '', text: raw },
    contact: { name: trimmed, role: '', email: '', phone: '' },
    location: { name: '', addr: trimmed },
    text: { text: raw },
  };
  return payloads[type];
}

/** The text that fields of one kind give when another kind is chosen. */
export function textOf(type: TextKind, payload: JsonObject): string {
  const field = (name: string): string => (typeof payload[name] === 'string' ? payload[name] : '');
  const lines: Readonly<Record<TextKind, readonly string[]>> = {
    password: [field('service'), field('user'), field('secret')],
    link: [field('title'), field('url'), field('desc')],
    text: [field('text')],
    code: [field('text')],
    contact: [field('name'), field('role'), field('email'), field('phone')],
    location: [
      field('name'),
      field('addr'),
      [payload['lat'], payload['lng']].filter((part) => typeof part === 'number').join(', '),
    ],
  };
  return lines[type].filter((line) => line !== '').join('\n');
}

const siteOf = (url: string): string => (URL.canParse(url) ? new URL(url).hostname.replace(/^www\./, '') : '');

function webAddress(text: string): URL | undefined {
  if (/\s/.test(text)) return undefined;
  const bare = /^www\.[\w-]+\.\w/i.test(text) || /^[a-z\d-]+(\.[a-z\d-]+)*\.[a-z]{2,24}\/\S*$/i.test(text);
  const whole = bare ? `https://${text}` : text;
  return /^https?:\/\//i.test(whole) && URL.canParse(whole) ? new URL(whole) : undefined;
}

/** An address alone, or a title and an address as "share" menus give them. */
function linkIn(text: string): Detection | undefined {
  const lines = text.split('\n').map((line) => line.trim());
  const last = lines.at(-1) ?? '';
  const address = webAddress(last);
  const title = lines.slice(0, -1).join(' ').trim();
  if (address === undefined || lines.length > 3 || title.length > 200) return undefined;
  const url = /^https?:/i.test(last) ? last : address.href;
  return { type: 'link', payload: { url, title, site: siteOf(address.href) } };
}

// Places.

const place = (lat: string, lng: string, name = ''): Detection | undefined => {
  const [north, east] = [Number(lat), Number(lng)];
  if (!(Math.abs(north) <= 90 && Math.abs(east) <= 180)) return undefined;
  return { type: 'location', payload: { name, addr: '', lat: north, lng: east } };
};

const NUMBER = String.raw`(-?\d{1,3}(?:\.\d+)?)`;
const PAIR = new RegExp(`^${NUMBER}\\s*[,;]\\s*${NUMBER}$`);
/** Requires decimals, because a pair of small integers is more likely a score or a date than a place. */
const EXACT_PAIR = /^-?\d{1,3}\.\d{2,}\s*[,;]\s*-?\d{1,3}\.\d{2,}$/;
const DEGREES = /^(\d{1,3}(?:\.\d+)?)°?\s*([NS])[,\s]+(\d{1,3}(?:\.\d+)?)°?\s*([EW])$/i;

function placeIn(text: string): Detection | undefined {
  const uri = new RegExp(`^geo:${NUMBER},${NUMBER}(?:[,;?]\\S*)?$`, 'i').exec(text);
  if (uri !== null) return place(uri[1] ?? '', uri[2] ?? '', labelOf(text));
  const pair = EXACT_PAIR.test(text) ? PAIR.exec(text) : null;
  if (pair !== null) return place(pair[1] ?? '', pair[2] ?? '');
  const degrees = DEGREES.exec(text);
  if (degrees !== null) {
    const [, lat = '', north = '', lng = '', east = ''] = degrees;
    return place(`${/s/i.test(north) ? '-' : ''}${lat}`, `${/w/i.test(east) ? '-' : ''}${lng}`);
  }
  const address = webAddress(text);
  return address && placeOfLink(address);
}

/** `geo:0,0?q=1,2(Name)`: the name in brackets. */
const labelOf = (uri: string): string => spaced(/\(([^)]*)\)/.exec(uri)?.[1] ?? '');

/** Decodes a part of an address in which `+` is a space. */
const spaced = (part: string): string => percentDecoded(part.replaceAll('+', ' '));

const MAPS = /^(www\.|maps\.)?(google\.[a-z.]{2,6}|apple\.com|openstreetmap\.org|osm\.org)$/i;

function placeOfLink({ hostname, pathname, searchParams, hash }: URL): Detection | undefined {
  if (!MAPS.test(hostname)) return undefined;
  if (/google|apple/.test(hostname) && !/^maps\./.test(hostname) && !pathname.startsWith('/maps')) return undefined;
  const param = (name: string): string => searchParams.get(name) ?? '';
  const asked = ['ll', 'q', 'query', 'destination', 'coordinate'].map((name) => PAIR.exec(param(name)));
  const marked = PAIR.exec(`${param('mlat')},${param('mlon')}`);
  const shown = new RegExp(`/@${NUMBER},${NUMBER}`).exec(pathname);
  const map = new RegExp(`map=\\d+/${NUMBER}/${NUMBER}`).exec(hash);
  const found = [...asked, marked, shown, map].find((match) => match !== null);
  const name = spaced(/\/place\/([^/@]{1,200})/.exec(pathname)?.[1] ?? '');
  return found == null ? undefined : place(found[1] ?? '', found[2] ?? '', name);
}

// Contacts.

const MAIL = /^[^\s@<>"(),:;]{1,64}@[a-z\d-]+(\.[a-z\d-]+)*\.[a-z]{2,24}$/i;
/** Begins like a phone number, so that ids and card numbers do not match. */
const PHONE = /^(\+|0|\()[\d\s()./-]{5,24}$/;
/** Begins with a day, a month and a year of now, in either order. */
const DATE = /^\(?(?:\d{1,2}([./-]) ?\d{1,2}\1 ?(?:19|20)\d\d|(?:19|20)\d\d([./-])\d{1,2}\2\d{1,2})(?!\d)/;
const isPhone = (text: string): boolean => {
  const digits = text.replace(/\D/g, '').length;
  return PHONE.test(text) && digits >= 7 && digits <= 15 && !DATE.test(text);
};
const isName = (line: string): boolean => /^\p{L}[\p{L}\p{M}'’. -]{1,59}$/u.test(line) && line.split(/\s+/).length <= 5;

const contact = (fields: Readonly<Record<string, string>>): Detection => ({
  type: 'contact',
  payload: { name: '', role: '', email: '', phone: '', ...fields },
});

function contactIn(text: string): Detection | undefined {
  if (/^begin:vcard/i.test(text)) return cardIn(text);
  const scheme = /^(mailto|tel):([^?\s]+)/i.exec(text);
  const bare = scheme === null ? text : percentDecoded(scheme[2] ?? '');
  if (MAIL.test(bare)) return contact({ name: bare, email: bare });
  if (isPhone(bare)) return contact({ name: bare, phone: bare });
  const named = /^"?([^"<>\n]{1,80}?)"?\s*<([^<>\s]{3,254})>$/.exec(text);
  if (named !== null && MAIL.test(named[2] ?? '')) return contact({ name: named[1] ?? '', email: named[2] ?? '' });
  return signatureIn(text);
}

/** A name, then lines with mail and phone, and at most one other line: the role. */
function signatureIn(text: string): Detection | undefined {
  const [name = '', ...others] = text
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '');
  if (others.length === 0 || others.length > 4 || !isName(name)) return undefined;
  const values = others.map((line) =>
    line.replace(/^(e-?mail|mail|tel|phone|mobile|fon|telefon|t|m|e|p)\.?\s*:\s*/i, ''),
  );
  const email = values.find((line) => MAIL.test(line)) ?? '';
  const phone = values.find(isPhone) ?? '';
  const rest = values.filter((line) => !MAIL.test(line) && !isPhone(line));
  if ((email === '' && phone === '') || rest.length > 1 || rest.some((line) => line.length > 60 || strength(line) >= 2))
    return undefined;
  return contact({ name, email, phone, role: rest[0] ?? '' });
}

function cardIn(text: string): Detection | undefined {
  // A continuation of a folded line begins with a space or tab.
  const lines = text.replace(/\r?\n[ \t]/g, '').split(/\r?\n/);
  const field = (name: string): string => {
    const line = lines.find((one) => new RegExp(`^(?:[\\w-]+\\.)?${name}[;:]`, 'i').test(one)) ?? '';
    return line
      .slice(line.indexOf(':') + 1)
      .replace(/\\n/gi, ' ')
      .replace(/\\([,;\\])/g, '$1')
      .trim();
  };
  const name = field('FN') || field('N').split(';').slice(0, 2).reverse().join(' ').trim();
  const email = field('EMAIL');
  const phone = field('TEL').replace(/^tel:/i, '');
  const role = field('TITLE') || field('ORG').replaceAll(';', ' ').trim();
  if (name === '' && email === '' && phone === '') return undefined;
  return contact({ name: name || email || phone, email, phone, role });
}

// Secrets.

const secret = (fields: Readonly<Record<string, string>>): Detection => ({
  type: 'password',
  payload: { service: '', user: '', secret: '', ...fields },
});

/** Prefixes that issuers give their tokens. */
const TOKEN =
  /^(gh[opusr]_|github_pat_|glpat-|sk-|sk_live_|rk_live_|xox[abps]-|AKIA|ya29\.|npm_|eyJ[\w-]+\.eyJ)[\w.-]{12,}$/;
const PRIVATE_KEY = /^-----BEGIN [A-Z ]*PRIVATE KEY( BLOCK)?-----/;

function secretIn(text: string): Detection | undefined {
  if (/^otpauth:\/\//i.test(text) && URL.canParse(text)) return oneTimeIn(text);
  if (PRIVATE_KEY.test(text)) return secret({ secret: text });
  const labelled = labelledIn(text);
  if (labelled !== undefined) return labelled;
  const pair =
    /^(\S{1,100})(?:\s+\/\s+|\s*\n\s*)(\S{6,200})$/.exec(text) ?? /^([\w.@+-]{2,100}):([^\s/]{8,200})$/.exec(text);
  if (pair !== null) {
    const [, user = '', word = ''] = pair;
    const likely = strength(word) >= (MAIL.test(user) ? 1 : 2);
    if (likely && webAddress(user) === undefined && webAddress(word) === undefined)
      return secret({ user, secret: word });
  }
  if (/\s/.test(text) || webAddress(text) !== undefined) return undefined;
  return TOKEN.test(text) || strength(text) >= 2 ? secret({ secret: text }) : undefined;
}

function oneTimeIn(text: string): Detection {
  const uri = new URL(text);
  const label = spaced(/^otpauth:\/\/[^/]*\/([^?]*)/i.exec(text)?.[1] ?? '');
  const colon = label.indexOf(':');
  const service = uri.searchParams.get('issuer') ?? (colon < 0 ? '' : label.slice(0, colon));
  return secret({ service, user: label.slice(colon + 1).trim(), secret: text });
}

const LABELS: readonly (readonly [string, RegExp])[] = [
  [
    'secret',
    /^(password|passwort|passwd|passphrase|pass|pw|kennwort|secret|pin|mot de passe|contraseña|senha|wachtwoord)$/i,
  ],
  ['user', /^(user ?name|user|login|e-?mail|account|benutzer(name)?|nutzername|utilisateur|usuario)$/i],
  ['service', /^(for|service|site|web ?site|url|host|server|app|name|title|dienst)$/i],
];

/** `user: anna`, `password: x`, on separate lines or on one. */
function labelledIn(text: string): Detection | undefined {
  const parts = text
    .split(/\n|,\s+|;\s+|\s+\|\s+|\s+(?=(?:password|passwort|pass|pw)\s*[:=])/i)
    .map((part) => part.trim())
    .filter((part) => part !== '');
  if (parts.length > 5) return undefined;
  const fields: Record<string, string> = {};
  for (const [at, part] of parts.entries()) {
    const [, label = '', value = ''] = /^([\p{L} -]{2,20}?)\s*[:=]\s*(\S.*)$/u.exec(part) ?? [];
    const field = LABELS.find(([, words]) => words.test(label))?.[0];
    // A first line without a label is the service.
    if (field === undefined && at === 0 && parts.length > 1 && part.length <= 60) fields['service'] = part;
    else if (field === undefined || fields[field] !== undefined) return undefined;
    else fields[field] = value;
  }
  return fields['secret'] === undefined ? undefined : secret(fields);
}

/** Character classes. Marks common in names, paths and sentences (`-`) are not counted as a class. */
const SIGNS: readonly (readonly [string, RegExp])[] = [
  ['a', /[a-z]/],
  ['A', /[A-Z]/],
  ['0', /\d/],
  ['-', /[-_.,:;()[\]{}<>/\\'"`]/],
];

/**
 * How much a word looks like a secret: 0 not, 1 possibly, 2 very likely. Names in code have few changes between
 * letters, digits and marks; secrets have many. Ids (hex, uuid) and file names give 0.
 */
export function strength(word: string): 0 | 1 | 2 {
  if (word.length < 8 || word.length > 200 || /\s/.test(word) || /[^\x21-\x7e]/.test(word)) return 0;
  if (/^[\da-f-]+$/i.test(word) || MAIL.test(word) || /^[\w.@-]*[/\\][\w./\\@-]*$/.test(word)) return 0;
  const kinds = Array.from(word, (letter) => SIGNS.find(([, sign]) => sign.test(letter))?.[0] ?? '!');
  const classes = new Set(kinds.filter((kind) => kind !== '-')).size;
  if (classes === 4) return 2;
  const changes = kinds.filter(
    (kind, at) => at > 0 && kind !== kinds[at - 1] && !(kinds[at - 1] === 'A' && kind === 'a'),
  ).length;
  if (classes >= 3 && changes / (kinds.length - 1) >= 0.4) return 2;
  return classes >= 2 ? 1 : 0;
}
