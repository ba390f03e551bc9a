/** What a generated validator says, in words for people: `string & Pattern<...>` becomes "must be a ULID ...". */
import { BIN_ID, BIN_SLUG, ULID } from '../../protocol/ids.js';
import { TS_MIN } from '../../protocol/limits.js';

/** Keys of a map are the client's; a path shows so much of them. */
const PATH_MAX = 200;
const ROOT = '$input';

/** `$input.payloadEnc.ct` as `payloadEnc.ct`; the whole value is `body`. */
export function pathOf(path: string): string {
  const inner = path.startsWith(ROOT) ? path.slice(ROOT.length).replace(/^\./, '') : path;
  if (inner === '') return 'body';
  return inner.length > PATH_MAX ? `${inner.slice(0, PATH_MAX)}...` : inner;
}

type Phrase = readonly [mark: RegExp, phrase: string | ((n: string) => string)];

const literal = (text: string): RegExp => new RegExp(text.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&'));

/** What a person should write, by what stands in the validator's text; the first that fits. */
const PHRASES: readonly Phrase[] = [
  [literal(ULID.source), 'a ULID: 26 characters of upper-case Crockford base32, the first at most 7'],
  [literal(BIN_ID.source), 'a bin id: 1 to 64 of A-Z a-z 0-9 _ -'],
  [literal(BIN_SLUG.source), 'a slug: 1 to 63 of a-z 0-9 -, the first not -'],
  [literal(`Minimum<${TS_MIN}>`), 'integer milliseconds, not seconds'],
  [literal('^[!-~]+( [!-~]+)*$'), 'a media type such as image/jpeg: 1 to 127 visible ASCII characters'],
  [/Minimum<1>/, 'a whole number of bytes, at least 1'],
  [/Minimum<0>/, 'an integer from 0 to 2^53-1'],
  [/Maximum<|Type<"int64">/, 'an integer of at most 2^53-1'],
  [/Record</, 'an object that maps device ids to base64'],
  [/MaxItems<(\d+)>/, (n) => `a list of at most ${n}`],
  [/MaxLength<(\d+)>/, (n) => `text of at most ${n} characters`],
  [/MinLength</, 'text that is not empty'],
  [/Array</, 'a list'],
  [/\bboolean\b/, 'true or false'],
  [/\bnumber\b/, 'a number'],
  [/\bstring\b/, 'text'],
];

function phraseOf(expected: string): string {
  for (const [mark, phrase] of PHRASES) {
    const found = mark.exec(expected);
    if (found !== null) return typeof phrase === 'string' ? phrase : phrase(found[1] ?? '');
  }
  const choices = [...expected.matchAll(/"([^"]*)"/g)].map(([, choice]) => choice);
  if (choices.length === 0) return 'an object';
  return choices.length === 1 ? `"${choices[0]}"` : `one of ${choices.join(', ')}`;
}

/** The rule that a value breaks. Never shows the value. */
export function ruleOf(expected: string, value: unknown): string {
  const phrase = phraseOf(expected);
  if (value === undefined) return `required, must be ${phrase}`;
  return `must be ${phrase}${/\bnull\b/.test(expected) ? ' or null' : ''}`;
}
