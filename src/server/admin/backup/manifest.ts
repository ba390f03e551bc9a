/** What a backup says of itself, read with the distrust that a file deserves. */
import { blobNameIn } from '../../../protocol/ids.js';
import type { Manifest } from './ports.js';

/** Of the file as a whole. */
export const FORMAT = 1;

/** The file cannot be restored; the message says why. Nothing was touched. */
export class ArchiveError extends Error {
  override readonly name = 'ArchiveError';
}

/** Nothing else is ever written to a folder. */
const isBlobName = (name: unknown): boolean => typeof name === 'string' && blobNameIn(name) !== undefined;

const isTable = (value: unknown): boolean =>
  isRecord(value) &&
  Array.isArray(value['columns']) &&
  value['columns'].length > 0 &&
  value['columns'].every((column: unknown) => typeof column === 'string');

const isRecord = (value: unknown): value is Record<string, unknown> => typeof value === 'object' && value !== null;

const isBlob = (value: unknown): boolean =>
  isRecord(value) && isBlobName(value['name']) && typeof value['sha256'] === 'string';

const isPart = (value: unknown): boolean =>
  isRecord(value) && typeof value['name'] === 'string' && typeof value['sha256'] === 'string';

const isObjectList = (value: unknown): boolean =>
  isRecord(value) &&
  (value['store'] === 'gcs' || value['store'] === 's3') &&
  typeof value['bucket'] === 'string' &&
  (value['prefix'] === null || typeof value['prefix'] === 'string') &&
  Number.isSafeInteger(value['count']) &&
  Number.isSafeInteger(value['size']) &&
  Array.isArray(value['parts']) &&
  value['parts'].every(isPart);

/** The manifest in these bytes. Throws `ArchiveError` for another format, and for what is none. */
export function manifestOf(bytes: Buffer): Manifest {
  let value: unknown;
  try {
    value = JSON.parse(bytes.toString('utf8'));
  } catch (error) {
    throw new ArchiveError('the manifest cannot be read', { cause: error });
  }
  if (!isRecord(value) || value['format'] !== FORMAT) {
    throw new ArchiveError('this is no backup of a format that this version knows; use the version that wrote it');
  }
  const { parts, tables, schema, blobs = [], objects } = value;
  const fine =
    Number.isSafeInteger(schema) &&
    isRecord(tables) &&
    Object.values(tables).every(isTable) &&
    Array.isArray(blobs) &&
    blobs.every(isBlob) &&
    (objects === undefined || isObjectList(objects)) &&
    Array.isArray(parts) &&
    parts.every(
      (part: unknown) => isRecord(part) && typeof part['name'] === 'string' && typeof part['table'] === 'string',
    );
  if (!fine) throw new ArchiveError('the manifest is damaged');
  return value as unknown as Manifest;
}
