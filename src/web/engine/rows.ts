/** Items as lists and views show them. Pure. Payloads come from other devices: of a link, only http(s) may be opened. */
import type { ItemView } from '../../sdk/events.js';
import { fieldText, holdsFile, isSecretField, mainField, titleOf } from '../../sdk/payloads/shapes.js';
import type { ItemDetail, ItemRow } from '../link/messages.js';

/** Longest text that a row carries for the clipboard, characters; a longer one is read when it is copied. */
const COPY_MAX = 2_000;
const DETAIL_MAX = 300;
/** Longest address that is opened, and longest media type, characters; legitimate ones are shorter. */
const HREF_MAX = 8_192;
const MIME_MAX = 200;

/** An address that may be opened: http and https only. */
export function safeHref(url: string | undefined): string | null {
  if (url === undefined || url.length > HREF_MAX || !URL.canParse(url)) return null;
  return /^https?:$/.test(new URL(url).protocol) ? url : null;
}

/** The text that copying an item gives; undefined if there is none (a file). */
export function copyOf({ type, payload }: Pick<ItemView, 'type' | 'payload'>): string | undefined {
  if (holdsFile(type)) return undefined;
  if (type === 'location') {
    const named = fieldText(payload, 'addr') || fieldText(payload, 'name');
    return named || [fieldText(payload, 'lat'), fieldText(payload, 'lng')].join(', ');
  }
  if (type === 'contact')
    return fieldText(payload, 'email') || fieldText(payload, 'phone') || fieldText(payload, 'name');
  const field = mainField(type);
  return field === undefined ? undefined : fieldText(payload, field);
}

const sizeOf = ({ payload }: ItemView): number | null => {
  const value = payload?.['size'];
  return typeof value === 'number' && Number.isFinite(value) && value >= 0 ? value : null;
};

function detailOf(view: ItemView, title: string): string {
  const { type, payload } = view;
  const text = (field: string): string => fieldText(payload, field) ?? '';
  const joined = (...parts: string[]): string => parts.filter((part) => part !== '' && part !== title).join(' · ');
  switch (type) {
    case 'password':
      return joined(text('user'));
    case 'link':
      return joined(text('site') || text('url'), text('desc'));
    case 'text':
      return text('text').trim().split('\n').slice(1).join(' ').trim();
    case 'code':
      return joined(text('lang'), text('text').split('\n')[0] ?? '');
    case 'contact':
      return joined(text('role'), text('email'), text('phone'));
    case 'location':
      return joined(text('addr'), [text('lat'), text('lng')].filter((part) => part !== '').join(', '));
    default:
      return text('mime');
  }
}

/**
 * The first line of a row. Of a password without its user, whom the second line names: beside an address there would be
 * no room for it. Of an address `https://` and a slash at its end are left out.
 */
function rowTitleOf({ type, payload }: ItemView): string {
  const service = type === 'password' ? (fieldText(payload, 'service') ?? '') : '';
  if (service.trim() !== '') return titleOf(type, { service: service.replace(/^https:\/\/(.+?)\/?$/i, '$1') });
  return titleOf(type, payload);
}

/** `removeAt`: when the item will be deleted; null: no deletion is pending. */
export function rowOf(view: ItemView, removeAt: number | null): ItemRow {
  const { id, binId, type, ts, pending, payload, senderDevice: sender } = view;
  const title = rowTitleOf(view);
  const copy = copyOf(view);
  const isShort = copy !== undefined && copy.length <= COPY_MAX;
  // The payload of an item with a blob is truncated, and a row never holds a secret.
  const copyable = isShort && view.blob === null && !isSecretField(type, mainField(type) ?? '');
  const file = holdsFile(type)
    ? { name: title, mime: (fieldText(payload, 'mime') ?? '').slice(0, MIME_MAX), size: sizeOf(view) }
    : null;
  return {
    ...{ id, binId, type, ts, pending, sender, title, file, removeAt },
    detail: detailOf(view, title).slice(0, DETAIL_MAX),
    copy: copyable ? copy : null,
    href: type === 'link' ? safeHref(fieldText(payload, 'url')) : null,
  };
}

/** A whole item, secrets included. */
export const detailViewOf = (view: ItemView, removeAt: number | null): ItemDetail => ({
  ...rowOf(view, removeAt),
  payload: view.payload ?? {},
  cut: view.blob?.holds === 'payload',
  version: view.version,
});
