/** The kinds of items: their icons, their order, and their fields while they are edited. */
import * as icons from 'lucide-preact';
import type { JsonObject } from '../../crypto/payload.js';
import type { ContentType } from '../../protocol/item.js';
import type { ItemDetail } from '../link/messages.js';
import type { TextKind } from './detect.js';
import { Field, type FieldProps } from './kit.js';
import * as text from './strings.js';

/** A field of the edit form. */
interface FieldSpec extends Pick<FieldProps, 'kind' | 'mono'> {
  readonly name: string;
  /** The text is a number, with a decimal point or comma. */
  readonly number?: boolean;
  readonly required?: boolean;
}

/** Fields that can be edited; for a file, only its name. */
const FIELDS: Readonly<Record<ContentType, readonly FieldSpec[]>> = {
  password: [{ name: 'service' }, { name: 'user' }, { name: 'secret', kind: 'secret', required: true }],
  link: [{ name: 'url', kind: 'url', required: true }, { name: 'title' }, { name: 'desc', kind: 'lines' }],
  text: [{ name: 'text', kind: 'lines', required: true }],
  code: [{ name: 'label' }, { name: 'lang' }, { name: 'text', kind: 'lines', required: true, mono: true }],
  image: [{ name: 'label', required: true }],
  file: [{ name: 'name', required: true }],
  audio: [{ name: 'label', required: true }],
  video: [{ name: 'title', required: true }],
  contact: [
    { name: 'name', required: true },
    { name: 'role' },
    { name: 'email', kind: 'email' },
    { name: 'phone', kind: 'tel' },
  ],
  location: [
    { name: 'name' },
    { name: 'addr', kind: 'lines' },
    { name: 'lat', number: true },
    { name: 'lng', number: true },
  ],
};

/** A payload's fields as texts, while they are edited. */
export type Draft = Readonly<Record<string, string>>;

/** A form of an item. `from`: its fields as they were filled. */
export interface Edit extends Pick<ItemDetail, 'binId' | 'type'> {
  readonly from: Draft;
  readonly draft: Draft;
}

/** A field of a payload as text; empty where it is absent or of another type. */
export const fieldOf = (payload: JsonObject, name: string): string => {
  const value = Object.hasOwn(payload, name) ? payload[name] : undefined;
  return typeof value === 'string' || typeof value === 'number' ? String(value) : '';
};

export const draftOf = (type: ContentType, payload: JsonObject): Draft =>
  Object.fromEntries(FIELDS[type].map(({ name }) => [name, fieldOf(payload, name)]));

/** Error messages by field; a field without a key is valid. */
export type DraftErrors = Readonly<Record<string, string>>;

/** The payload of an edited draft, with everything that is not edited as it is in `over` now; and the errors. */
export function editedPayload({ type, from, draft }: Edit, over: JsonObject) {
  const edited = Object.entries(draft).filter(([name, value]) => value !== from[name]);
  return payloadOf(type, { ...draftOf(type, over), ...Object.fromEntries(edited) }, over);
}

/** The payload of a draft, keeping what `over` has beside its fields; and the errors. */
export function payloadOf(type: ContentType, draft: Draft, over: JsonObject = {}) {
  // An emptied number is removed from the payload.
  const numbers = FIELDS[type].filter(({ number }) => number === true).map(({ name }) => name);
  const payload: Record<string, unknown> = Object.fromEntries(
    Object.entries(over).filter(([name]) => !numbers.includes(name)),
  );
  const errors: Record<string, string> = {};
  for (const { name, number, required } of FIELDS[type]) {
    const value = draft[name] ?? '';
    if (number === true) {
      const parsed = Number(value.trim().replace(',', '.'));
      if (value.trim() !== '' && Number.isFinite(parsed)) payload[name] = parsed;
      else if (value.trim() !== '') errors[name] = text.fields.notNumber;
    } else payload[name] = value;
    if (required === true && value.trim() === '') errors[name] = text.fields.missing;
  }
  if (type === 'link') linkErrors(payload, errors);
  if (type === 'location') placeErrors(payload, errors);
  return { payload, errors };
}

function linkErrors(payload: Record<string, unknown>, errors: Record<string, string>): void {
  const given = String(payload['url']).trim();
  const url = URL.canParse(given) || given === '' ? given : `https://${given}`;
  payload['url'] = url;
  // Some browsers accept an address with spaces in its host.
  if (url !== '' && (/\s/.test(url) || !URL.canParse(url))) errors['url'] = text.fields.notAddress;
  else if (url !== '') payload['site'] = new URL(url).hostname;
}

function placeErrors(payload: Record<string, unknown>, errors: Record<string, string>): void {
  const { lat, lng } = payload;
  if ((lat === undefined) !== (lng === undefined))
    errors[lat === undefined ? 'lat' : 'lng'] ??= text.fields.bothNumbers;
  if (typeof lat === 'number' && Math.abs(lat) > 90) errors['lat'] = text.fields.latRange;
  if (typeof lng === 'number' && Math.abs(lng) > 180) errors['lng'] = text.fields.lngRange;
  if (lat === undefined && lng === undefined && payload['name'] === '' && payload['addr'] === '')
    errors['name'] = text.fields.noPlace;
}

interface KindFieldsProps {
  readonly type: ContentType;
  readonly draft: Draft;
  readonly onDraft: (draft: Draft) => void;
  readonly errors: DraftErrors;
}

/** The fields of a kind, one by one; the first one takes the focus. */
export function KindFields({ type, draft, onDraft, errors }: KindFieldsProps) {
  return (
    <div class={`kind-fields of-${type}`}>
      {FIELDS[type].map(({ name, kind, mono, number }, at) => (
        <Field
          key={name}
          label={text.fields.labels[name] ?? name}
          kind={kind}
          mono={mono}
          inputMode={number === true ? 'decimal' : undefined}
          value={draft[name] ?? ''}
          error={errors[name]}
          autoFocus={at === 0}
          onValue={(value) => onDraft({ ...draft, [name]: value })}
        />
      ))}
    </div>
  );
}

export const KIND_ICONS: Readonly<Record<ContentType, icons.LucideIcon>> = {
  password: icons.KeyRound,
  link: icons.LinkIcon,
  text: icons.Text,
  code: icons.Code,
  image: icons.Image,
  file: icons.File,
  audio: icons.Music,
  video: icons.Video,
  contact: icons.UserRound,
  location: icons.MapPin,
};

/** Kinds that text can become, the likeliest first. */
export const TEXT_KINDS: readonly TextKind[] = ['text', 'link', 'password', 'code', 'contact', 'location'];
