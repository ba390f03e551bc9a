/** Bounds on the XML in a KeePass database, checked before the library parses it: its parser has none. */
import { ForeignError } from './entries.js';

/** Largest database after unpacking, attachments included. */
export const UNPACKED_MAX = 256 * 1024 * 1024;
/** Largest XML in the database, and most tags in it: each tag takes a few hundred bytes of memory. */
const XML_MAX = 128 * 1024 * 1024;
const TAGS_MAX = 3_000_000;
/** Most names of elements, of which the format has about 70: the parser searches the whole XML once for each. */
const NAMES_MAX = 1_000;
/** Most levels: 64 groups, and the elements of an entry's history. The library reads them by recursion. */
const LEVELS_MAX = 256;
/** Longest list of tags: the library splits it in quadratic time. */
const TAG_LIST_MAX = 10_000;

/** The characters that the library removes before it parses: without this a name could be hidden by one. */
const REMOVED = /[\x00-\x09\x0b\x0c\x0e-\x1f]/g;
const DECLARATION = /^[^<]{0,16}<\?xml[^<>]{0,200}\?>/;
/** A tag as KeePass programs write it. Quotation marks are matched: a `>` within them does not end the tag. */
const TAG = /<(\/?)([\w.-]{1,64})((?:[ \r\n]{1,8}[\w:.-]{1,64}="[^"<]{0,256}"){0,8})[ \r\n]{0,8}(\/?)>/y;

const unusual = (): ForeignError => new ForeignError('', 'its XML has parts that no KeePass program writes');

/**
 * Throws `ForeignError` for XML over a bound, and for a document type, entities, comments, CDATA and instructions: no
 * program writes them, and they would hide from these checks what a compressed attachment unpacks to.
 */
export function expectPlainXml(bytes: Uint8Array): void {
  if (bytes.length > XML_MAX) throw new ForeignError('', `its XML has more than ${XML_MAX / 1024 / 1024} MiB`);
  // As the library decodes it: what is no UTF-8 is replaced, and every tag stays where it is.
  const xml = new TextDecoder().decode(bytes).replace(REMOVED, '');
  const names = new Set<string>();
  let [tags, level, room] = [0, 0, UNPACKED_MAX];
  for (let at = xml.indexOf('<', DECLARATION.exec(xml)?.[0].length ?? 0), next = 0; at >= 0; at = next) {
    next = xml.indexOf('<', at + 1);
    if (++tags > TAGS_MAX) throw new ForeignError('', 'it has too many entries');
    TAG.lastIndex = at;
    const [tag, closes, name = '', attributes = '', empty] = TAG.exec(xml) ?? [];
    // Below the first element a name space costs time with each of them, and none is in use.
    if (tag === undefined || (level > 0 && attributes.includes('xmlns'))) throw unusual();
    level += closes !== '' ? -1 : empty !== '' ? 0 : 1;
    if (names.add(name).size > NAMES_MAX || level > LEVELS_MAX) throw unusual();
    // MacPass writes `False` where it does not compress.
    const isCompressed = attributes.replace(' Compressed="False"', '').includes('Compressed');
    if (closes !== '' || empty !== '' || !(isCompressed || name === 'Tags')) continue;
    // The library joins the texts around elements inside, so that there must be none.
    if (xml[next + 1] !== '/') throw unusual();
    const value = xml.slice(at + tag.length, next);
    if (isCompressed) room -= unpackedSize(value);
    else if (value.length > TAG_LIST_MAX) throw new ForeignError('', 'an entry has too many tags');
    if (room < 0) throw tooMuch();
  }
}

const tooMuch = (): ForeignError => new ForeignError('', 'an attachment unpacks to too much');

/** The last four bytes of a packed attachment state its length; the library allocates that, and accepts no more. */
function unpackedSize(value: string): number {
  if (value.includes('&')) throw tooMuch();
  let bytes: string;
  try {
    // As the library decodes it, with white space in it.
    bytes = atob(value);
  } catch {
    throw tooMuch();
  }
  const end = [4, 3, 2, 1].map((back) => bytes.charCodeAt(bytes.length - back));
  return bytes.length < 4 ? 0 : end.reduce((sum, byte, at) => sum + byte * 256 ** at, 0);
}
