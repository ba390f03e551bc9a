/**
 * A vault as a plain folder: one folder per bin, one file per item, passwords in one table, and a manifest that lists
 * every item with what its file cannot hold. The folder gets its name when it is complete.
 */
import { mkdir, open, readdir, rename, rm, rmdir, writeFile, type FileHandle } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { FILE_MODE, FOLDER_MODE, syncFolder, tempSibling } from '../../files/durable.js';
import { ifThere } from '../../files/there.js';
import type { JsonObject } from '../../crypto/payload.js';
import type { ContentType } from '../../protocol/item.js';
import { SERVICE_NAME } from '../../protocol/limits.js';
import type { ArchivedBin, ArchivedItem, ArchivedPart, ArchiveManifest } from '../../sdk/archive/records.js';
import { fieldText, holdsFile, titleOf } from '../../sdk/payloads/shapes.js';
import { writingTo } from '../../terminal/new-file.js';
import { CommandError, EXIT, usageError } from '../../terminal/terminal.js';
import type { Output } from '../export-document.js';
import { nameField, safeFileName, TITLE_BYTES } from '../item-content.js';
import { serviceParts } from '../../import/entries.js';

/** Identifies the manifest of such a folder. */
export const FOLDER_FORMAT = `${SERVICE_NAME}-folder`;
export const MANIFEST = 'manifest.json';
const PASSWORDS = 'passwords.csv';

/** Throws `CommandError` where the path exists and is no empty folder. */
export async function expectNoFolder(path: string): Promise<void> {
  const found = await ifThere(() => readdir(path)).catch((cause: unknown) => {
    throw new CommandError(EXIT.usage, `${path} is not a folder, or cannot be read.`, undefined, { cause });
  });
  if (found === undefined || found.length === 0) return;
  throw usageError(`${path} already exists and is not empty.`, 'Give the name of a new folder.');
}

export async function folderOutput(name: string, manifest: ArchiveManifest): Promise<Output> {
  const path = resolve(name);
  const temporary = tempSibling(path, '.part');
  const writing = <T>(work: Promise<T>): Promise<T> => writingTo(name, work);
  await writing(mkdir(temporary, { mode: FOLDER_MODE }));
  const writer = new FolderWriter(temporary, manifest);
  return {
    content: 'files',
    add: (record) => writing(writer.add(record)),
    finish: async () => {
      await writing(writer.finish());
      await expectNoFolder(path);
      // An empty folder of that name gives way. If it cannot be removed, `rename` replaces it or reports why not.
      await rmdir(path).catch(() => undefined);
      await writing(rename(temporary, path));
      await syncFolder(dirname(path));
    },
    abandon: async () => {
      await writer.close();
      await rm(temporary, { recursive: true, force: true });
    },
  };
}

/** Some file systems ignore case and the Unicode form of accents. */
const keyOf = (name: string): string => name.normalize('NFC').toLowerCase();

/** Gives out unique names, per folder. */
class Names {
  /** Per folder, the names that are taken, with the number that was last given for each. */
  private readonly taken = new Map<string, Map<string, number>>();

  free(folder: string, name: string): string {
    const taken = this.taken.get(folder) ?? new Map<string, number>();
    this.taken.set(folder, taken);
    const [, stem = name, ending = ''] = /^(.+?)(\.[^.]{1,10})?$/su.exec(name) ?? [];
    const wanted = keyOf(name);
    // Continues after the last number: starting at 1, many items of one title would take quadratic time.
    for (let count = (taken.get(wanted) ?? 0) + 1; ; count++) {
      const tried = count === 1 ? name : `${stem} (${count})${ending}`;
      const key = keyOf(tried);
      if (count > 1 && taken.has(key)) continue;
      taken.set(key, 1);
      taken.set(wanted, count);
      return tried;
    }
  }
}

class FolderWriter {
  private readonly names = new Names();
  private readonly folders = new Map<string, string>();
  private readonly bins: JsonObject[] = [];
  private readonly items: JsonObject[] = [];
  private readonly passwords: string[][] = [];
  private file: FileHandle | undefined;

  constructor(
    private readonly root: string,
    private readonly manifest: ArchiveManifest,
  ) {
    for (const name of [MANIFEST, PASSWORDS]) this.names.free('', name);
  }

  async add(record: ArchivedBin | ArchivedItem | ArchivedPart): Promise<void> {
    if (record.record === 'item') return this.item(record);
    if (record.record === 'part') return this.file?.appendFile(record.data);
    const { id, slug, label } = record;
    this.bins.push({ id, slug, label, folder: await this.folderOf(id, label?.name ?? slug) });
  }

  private async item(item: ArchivedItem): Promise<void> {
    await this.close();
    const { id, bin, type, ts, payload } = item;
    const folder = this.folders.get(bin) ?? (await this.folderOf(bin, bin));
    const { name, text } = fileOf(item);
    // A file whose content is not in the export has no file here; its `file` in the manifest is null.
    const isLacking = item.blob && item.content === null;
    const file = isLacking ? null : type === 'password' ? PASSWORDS : `${folder}/${this.names.free(folder, name)}`;
    this.items.push({ id, bin, type, ts, file, payload: besideFile(type, payload) });
    if (file === PASSWORDS) this.passwords.push(passwordRow(payload ?? {}, folder));
    else if (file !== null) {
      this.file = await open(join(this.root, file), 'wx', FILE_MODE);
      if (text !== undefined) await this.file.appendFile(text);
    }
  }

  async finish(): Promise<void> {
    await this.close();
    if (this.passwords.length > 0) await this.write(PASSWORDS, [COLUMNS, ...this.passwords].map(csvLine).join(''));
    const { createdAt, tenantId, masterFingerprint } = this.manifest;
    const head = { format: FOLDER_FORMAT, version: 1, createdAt, tenantId, masterFingerprint };
    await this.write(MANIFEST, `${JSON.stringify({ ...head, bins: this.bins, items: this.items }, null, 1)}\n`);
    for (const folder of this.folders.values()) await syncFolder(join(this.root, folder));
    await syncFolder(this.root);
  }

  /** Closes the open file, whose content becomes durable. */
  async close(): Promise<void> {
    const { file } = this;
    this.file = undefined;
    await file?.sync().finally(() => file.close());
  }

  private async folderOf(bin: string, name: string): Promise<string> {
    // The table has it as a cell, which a spreadsheet would take for a formula: another device may have chosen the name.
    const safe = safeFileName(name, TITLE_BYTES).replace(/^[=+@]/, '_');
    const folder = this.names.free('', safe || bin);
    this.folders.set(bin, folder);
    await mkdir(join(this.root, folder), { mode: FOLDER_MODE });
    return folder;
  }

  private async write(name: string, text: string): Promise<void> {
    await writeFile(join(this.root, name), text, { flag: 'wx', mode: FILE_MODE, flush: true });
  }
}

/** The name of an item's file, and its text. `text` undefined: the content comes in parts. */
function fileOf({ id, type, payload }: ArchivedItem): { readonly name: string; readonly text?: string } {
  const value = (field: string): string => fieldText(payload, field) ?? '';
  const title = safeFileName(titleOf(type, payload), TITLE_BYTES) || id;
  if (holdsFile(type)) return { name: safeFileName(value(nameField(type))) || id };
  if (type === 'text') return { name: `${title}.md`, text: value('text') };
  if (type === 'code') return { name: safeFileName(value('label')) || `${id}.txt`, text: value('text') };
  if (type === 'link') return { name: `${title}.url`, text: `[InternetShortcut]\r\nURL=${oneLine(value('url'))}\r\n` };
  if (type === 'contact') return { name: `${title}.vcf`, text: vcardOf(value) };
  return { name: `${title}.json`, text: `${JSON.stringify(payload, null, 2)}\n` };
}

/** The field that a file or the table holds whole, by type. */
const HELD: Readonly<Partial<Record<ContentType, string>>> = { text: 'text', code: 'text', password: 'secret' };
/** UTF-8 has no half of a character, and no value but a text. */
const isHeld = (value: unknown): boolean => typeof value === 'string' && !/\p{Cs}/u.test(value);

/** What of the payload is not in the item's file. */
function besideFile(type: ContentType, payload: JsonObject | null): JsonObject | null {
  const held = HELD[type];
  if (held === undefined) return payload;
  return Object.fromEntries(Object.entries(payload ?? {}).filter(([name, value]) => name !== held || !isHeld(value)));
}

const oneLine = (text: string): string => text.replace(/\p{Cc}+/gu, ' ');

/** A vCard 3.0 (RFC 2426). */
function vcardOf(value: (field: string) => string): string {
  const escaped = (field: string): string =>
    value(field)
      .replace(/[\\,;]/g, '\\$&')
      .replace(/\r\n?|\n/g, '\\n');
  const lines = [`FN:${escaped('name')}`, `N:${escaped('name')};;;;`];
  for (const [property, field] of Object.entries({ TITLE: 'role', EMAIL: 'email', TEL: 'phone' }))
    if (value(field) !== '') lines.push(`${property}:${escaped(field)}`);
  return ['BEGIN:VCARD', 'VERSION:3.0', ...lines, 'END:VCARD', ''].join('\r\n');
}

/** The columns of Bitwarden's CSV, which other programs read too. */
const COLUMNS = [
  ...['folder', 'favorite', 'type', 'name', 'notes', 'fields', 'reprompt'],
  ...['login_uri', 'login_username', 'login_password', 'login_totp'],
];

function passwordRow(payload: JsonObject, folder: string): string[] {
  const { name, url } = serviceParts(fieldText(payload, 'service') ?? '');
  const [user = '', secret = ''] = [fieldText(payload, 'user'), fieldText(payload, 'secret')];
  return [folder, '', 'login', name, '', '', '', url, user, secret, ''];
}

const csvLine = (cells: readonly string[]): string =>
  `${cells.map((cell) => (/[",\r\n]|^\s|\s$/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell)).join(',')}\r\n`;
