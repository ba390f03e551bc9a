/**
 * Items as agents get them: structured, and as text. Secrets are withheld unless the user allowed them. The size of an
 * answer is bounded: longer texts are cut, and their fields listed as cut.
 */
import type { ItemView } from '../sdk/events.js';
import { SEARCHED } from '../sdk/query.js';
import { REASONS } from '../sdk/reasons.js';
import type { JsonObject } from '../crypto/payload.js';
import { jsonLine } from '../terminal/output.js';
import { binText, type Bins } from './bin-scope.js';
import type { ItemOutput } from './schemas.js';
import type { Card } from './vault-store.js';

/** Characters of payload JSON that a page shows uncut. Its first item is never cut; it has at most 64 KB. */
const WHOLE_MAX = 50_000;
/** Characters of the JSON of all items of a page, some 20,000 tokens; the first that does not fit ends the page. */
export const PAGE_MAX = 80_000;
/** Characters that are kept of each text of an item beyond `WHOLE_MAX`. */
const CUT_TO = 300;
/** Characters reserved for the URL of a blob. */
export const ADDRESS = 1_000;

/** Replaces a withheld secret. A new item with it as its secret is refused. */
export const MASK = '********';
/** The only fields shown of a password whose secret is withheld: any other field may repeat the secret. */
const OPEN: ReadonlySet<string> = new Set(SEARCHED.password);
/** Most withheld fields that are listed; further ones are omitted. */
const REDACTED_MAX = 20;
/** The latest time that `Date` can represent; only a lying server or a wrong clock yields a later one. */
const TIME_MAX = 8.64e15;

export const isoOf = (ms: number): string => new Date(Math.min(ms, TIME_MAX)).toISOString();

/** An item that opened when it arrived but no longer does. */
const DAMAGED = {
  meaning: 'The copy in memory can no longer be opened.',
  whatToDo: 'Restart this program: it reads everything again.',
};

export class Sheet {
  private readonly items: ItemOutput[] = [];
  /** The items with a blob whose URL the agent may get. */
  readonly linked: ItemView[] = [];
  private whole = WHOLE_MAX;
  private left = PAGE_MAX;

  constructor(
    private readonly bins: Bins,
    /** True: secrets of passwords are shown. */
    private readonly passwords: boolean,
  ) {}

  /** Adds an item that opened. False: the page is full, and ends before it. */
  add(view: ItemView): boolean {
    const { payload, redacted } = this.masked(view);
    const { payload: fitting, cut, whole } = this.fitted(payload);
    const item = {
      ...this.head(view),
      payload: fitting,
      ...(redacted.length === 0 ? {} : { redacted }),
      ...(cut.length === 0 ? {} : { cut }),
      ...(view.version === 0 ? { onServer: false as const } : {}),
    };
    // The blob of a large password contains its secret: no URL for it while passwords are withheld.
    const linked = view.blob !== null && (view.type !== 'password' || this.passwords);
    if (!this.push(item, linked ? ADDRESS : 0)) return false;
    this.whole -= whole;
    if (linked) this.linked.push(view);
    return true;
  }

  /** Adds an item that does not verify or no longer opens. False: the page is full, and ends before it. */
  addUnreadable(card: Card): boolean {
    const { reason } = card;
    const { meaning, whatToDo } = reason === null ? DAMAGED : REASONS[reason];
    const unreadable = { reason: reason ?? 'damaged_item', meaning, whatToDo };
    return this.push({ ...this.head(card), payload: null, unreadable }, 0);
  }

  /** `blobs`: the URLs of the linked items, by id. */
  output(blobs: ReadonlyMap<string, ItemOutput['blob']>): ItemOutput[] {
    return this.items.map((item) => (blobs.has(item.id) ? { ...item, blob: blobs.get(item.id) } : item));
  }

  private push(item: ItemOutput, more: number): boolean {
    // The length in the text, in which an invisible character is an escape of six characters.
    const size = jsonLine(item).length + more;
    if (size > this.left && this.items.length > 0) return false;
    this.left -= size;
    this.items.push(item);
    return true;
  }

  private head(of: Pick<Card, 'id' | 'version' | 'binId' | 'type' | 'ts'>) {
    const { id, version, binId, type, ts } = of;
    const { slug = null, name = null } = this.bins.factsOf(binId) ?? {};
    return { id, bin: binId, binSlug: slug, binName: name, type, ts: isoOf(ts), version };
  }

  private masked({ type, payload }: ItemView): { readonly payload: JsonObject | null; readonly redacted: string[] } {
    if (payload === null || type !== 'password' || this.passwords) return { payload, redacted: [] };
    const shown = Object.entries(payload).filter(([field]) => OPEN.has(field));
    // A password of our clients has few fields; one of another program may have thousands.
    const redacted = Object.keys(payload)
      .filter((field) => !OPEN.has(field))
      .slice(0, REDACTED_MAX);
    const masks = redacted.map((field): [string, string] => [field, MASK]);
    return { payload: Object.fromEntries([...shown, ...masks]), redacted };
  }

  /** The payload, uncut or with its long texts cut. `whole`: characters that count against `WHOLE_MAX`. */
  private fitted(payload: JsonObject | null) {
    if (payload === null) return { payload, cut: [], whole: 0 };
    const size = jsonLine(payload).length;
    if (size <= this.whole || this.items.length === 0) return { payload: { ...payload }, cut: [], whole: size };
    const cut: string[] = [];
    const fields = Object.entries(payload).flatMap(([field, value]): [string, unknown][] => {
      const text = typeof value === 'string' ? value : JSON.stringify(value);
      if (text.length <= CUT_TO) return [[field, value]];
      cut.push(field);
      return [[field, `${text.slice(0, CUT_TO)}…`]];
    });
    return { payload: Object.fromEntries(fields), cut, whole: 0 };
  }
}

/** Names of fields, quoted where needed: another device chose them. */
const namesText = (names: readonly string[]): string =>
  names.map((name) => (/^\w{1,32}$/.test(name) ? name : jsonLine(name.slice(0, 32)))).join(', ');

/** One item as text: a line of metadata, then its content as a line of JSON, which cannot imitate metadata. */
export function itemText(item: ItemOutput, at: number): string {
  const { id, bin, binSlug, binName, type, ts, version, payload, redacted, cut, blob, unreadable, onServer } = item;
  const where = bin === null ? 'unknown bin' : `bin ${binText({ id: bin, slug: binSlug, name: binName })}`;
  const marks = [
    ...(redacted === undefined ? [] : [`withheld: ${namesText(redacted)}`]),
    ...(cut === undefined ? [] : [`cut: ${namesText(cut)}`]),
    ...(onServer === false ? ['no longer on the server'] : []),
  ];
  const lines = [
    `${at}. ${id} ${type ?? 'unknown type'}, ${where}, ${ts}, version ${version}${marks.length === 0 ? '' : ` (${marks.join('; ')})`}`,
  ];
  if (unreadable === undefined) lines.push(`   ${jsonLine(payload)}`);
  else lines.push(`   unreadable (${unreadable.reason}): ${unreadable.meaning} ${unreadable.whatToDo}`);
  if (blob !== undefined) {
    const { url, size, expiresAt, problem, holds } = blob;
    lines.push(
      url === null
        ? `   large content (${holds}), no URL: ${problem ?? ''}`
        : `   large content (${holds}), encrypted: ${url} (${size ?? 'unknown'} bytes, until ${expiresAt ?? 'unknown'})`,
    );
  }
  return lines.join('\n');
}
