/** Items as tables and as JSON. */
import { isVisible } from '../protocol/ids.js';
import type { BinView, ItemView } from '../sdk/events.js';
import type { DeviceEntry } from '../sdk/replies.js';
import type { Context, OpenDevice } from './context.js';
import { NUMBERS_MAX, shortIds } from './find.js';
import { binsOf, type AccountCache, readAccountCache } from './account-cache.js';
import { type Column, counted, sanitizeText, paletteOf, relative, show, table } from '../terminal/output.js';
import { fieldText, titleOf } from '../sdk/payloads/shapes.js';
import type { Terminal } from '../terminal/terminal.js';
import { sizeText } from './transfer.js';

/** Bins and devices, for the names that are shown with items. */
export type Surroundings = Required<AccountCache>;

/** Reads them from the server, or from the last command; an unknown one is shown by its id. */
export async function surroundings(context: Context, open: OpenDevice): Promise<Surroundings> {
  const bins = await binsOf(context, open);
  const devices = open.current
    ? await open.device.devices.list()
    : (await readAccountCache(context.profile.folder)).devices;
  return { bins, devices: devices ?? [] };
}

/** A bin's emoji and name, or its slug. */
export const binName = (bins: readonly BinView[], id: string): string => {
  const bin = bins.find((one) => one.id === id);
  if (bin === undefined) return id;
  // Another client may have left the name empty.
  const name = bin.label !== null && isVisible(bin.label.name) ? bin.label.name : bin.slug;
  return [bin.label?.emoji, name].filter(Boolean).join(' ');
};

const deviceName = (devices: readonly DeviceEntry[], id: string): string =>
  devices.find((one) => one.id === id)?.name ?? id;

/** An item as JSON, without its content. Times are ms. */
export const itemFacts = (item: ItemView, { bins, devices }: Surroundings) => ({
  id: item.id,
  binId: item.binId,
  bin: bins.find(({ id }) => id === item.binId)?.slug ?? item.binId,
  type: item.type,
  title: titleOf(item.type, item.payload),
  ts: item.ts,
  senderDevice: item.senderDevice,
  sender: deviceName(devices, item.senderDevice),
  version: item.version,
  pending: item.pending,
  blob: item.blob?.holds ?? null,
  size: sizeOf(item),
});

/** Size of an item's file or text; null for other types, or where it is not known locally. */
function sizeOf({ type, payload, blob }: ItemView): number | null {
  const size = type === 'file' ? payload?.['size'] : undefined;
  if (typeof size === 'number' && Number.isSafeInteger(size) && size >= 0) return size;
  const text = blob === null && (type === 'text' || type === 'code') ? fieldText(payload, 'text') : undefined;
  return text === undefined ? null : Buffer.byteLength(text);
}

/** Most columns for the name of a bin or a device. */
const NAME_WIDTH = 12;

/**
 * Prints items as a table with their numbers, or as `{items}`. `all`: every item; short ids are unique among them. `oneBin`:
 * all are of one bin, which the user has named.
 */
export function showItems(
  { terminal, platform }: Context,
  items: readonly ItemView[],
  around: Surroundings & { readonly all: readonly ItemView[]; readonly empty: string; readonly oneBin: boolean },
): void {
  const short = shortIds(around.all);
  const { dim, accent } = paletteOf(terminal);
  show(terminal, { items: items.map((item) => itemFacts(item, around)) }, () => {
    if (items.length === 0) {
      terminal.note(around.empty);
      return [];
    }
    const columns: (Column & { readonly of: (item: ItemView, at: number) => string })[] = [
      { title: '#', paint: dim, of: (_, at) => (at < NUMBERS_MAX ? String(at + 1) : '') },
      { title: 'ID', paint: accent, of: ({ id }) => short.of(id) },
      { title: 'WHEN', paint: dim, spare: 1, of: ({ ts }) => relative(ts, platform.clock.now()) },
      { title: 'BIN', most: NAME_WIDTH, spare: 2, of: ({ binId }) => binName(around.bins, binId) },
      { title: 'TYPE', spare: 5, of: ({ type }) => type },
      { title: 'SIZE', spare: 3, of: (item) => sizeText(sizeOf(item)) },
      { title: 'FROM', most: NAME_WIDTH, spare: 4, of: ({ senderDevice }) => deviceName(around.devices, senderDevice) },
      { title: 'WHAT', of: (item) => `${item.pending ? '(queued) ' : ''}${titleOf(item.type, item.payload)}` },
    ];
    const shown = around.oneBin ? columns.filter(({ title }) => title !== 'BIN') : columns;
    const rows = items.map((item, at) => shown.map(({ of }) => of(item, at)));
    return table(terminal, shown, rows);
  });
}

/** Reports items that are hidden because they do not verify: otherwise they would look lost. */
export async function noteHidden(terminal: Terminal, { device }: OpenDevice): Promise<void> {
  const hidden = await device.hidden();
  if (hidden.length === 0) return;
  const reasons = [...new Set(hidden.map(({ reason }) => reason))].join(', ');
  const many = counted(hidden.length, 'item');
  terminal.note(`${many} not shown: not verified (${sanitizeText(reasons)}). See \`doctor\`.`);
}
