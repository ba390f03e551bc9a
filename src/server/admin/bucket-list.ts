/** The list of a bucket's objects: written into a backup, and compared with the bucket after a restore. */
import { counted, sanitizeText, table } from '../../terminal/output.js';
import { CommandError, EXIT, type ExitCode, type Terminal } from '../../terminal/terminal.js';
import { withStore } from '../app/object-store.js';
import { faultOf } from '../blobs/objects/fault.js';
import type { ObjectStore, StoredObject } from '../blobs/ports.js';
import type { Config } from '../config/config.js';
import { readObjectList, type ObjectsSource } from './backup/archive.js';
import { compareObjects, ObjectLedger, type ObjectComparison } from './backup/compare.js';
import type { BucketName, Manifest, ObjectList } from './backup/manifest.js';
import { ADMIN_NAME, throwIfInterrupted, type AdminContext } from './context.js';
import { adminFailureOf } from './failure.js';
import { sized, titled } from './progress.js';

/** The store's listing. A failure names the blob store, else it would be taken for one of the database. */
async function* listingOf(store: ObjectStore, hint: string): AsyncGenerator<readonly StoredObject[]> {
  try {
    yield* store.list();
  } catch (error) {
    const reason = faultOf(error)?.message ?? 'unknown error';
    throw new CommandError(EXIT.unavailable, `the blob store cannot be listed: ${sanitizeText(reason)}`, hint, {
      code: 'storage_unavailable',
      cause: error,
    });
  }
}

/** Runs `work` with the bucket's listing for a backup, or with undefined if no list is wanted or there is no bucket. */
export async function withBucketList<T>(
  settings: Config,
  wanted: boolean,
  work: (source: ObjectsSource | undefined) => Promise<T>,
): Promise<T> {
  const { storageKind: store, gcsBucket, s3Bucket, storagePrefix: prefix } = settings;
  if (store === 'local' || !wanted) return work(undefined);
  const bucket = (store === 'gcs' ? gcsBucket : s3Bucket) ?? '';
  const hint = `See \`${ADMIN_NAME} check-storage\`. Without the list: \`${ADMIN_NAME} backup --no-objects\`.`;
  return withStore(settings, (objects) => work({ store, bucket, prefix, pages: listingOf(objects, hint) }));
}

/** A comparison, or why it failed. */
type Compared = ObjectComparison | { readonly failed: string; readonly exitCode: ExitCode };

/**
 * Compares the list in the archive with the blob store; undefined if the archive has no list. The rows are already
 * restored into the database of this URL at this point, so a failure is part of the result instead of an error.
 */
export async function compareWithStore(
  { terminal, config }: AdminContext,
  file: string,
  manifest: Manifest,
  url: string,
): Promise<Compared | undefined> {
  const { objects } = manifest;
  if (objects === undefined) return undefined;
  let ledger: ObjectLedger | undefined;
  try {
    const held = (ledger = await ObjectLedger.open(url));
    return await withStore(config(), (store) =>
      compareObjects(readObjectList(file, manifest), listingOf(store, ''), held, (done) => {
        throwIfInterrupted(terminal);
        terminal.progress(`Comparing the blob store  ${done} of ${objects.count}`);
      }),
    );
  } catch (error) {
    const { message, exitCode } = adminFailureOf(error);
    // Rethrown, so that an unexpected error keeps its stack trace.
    if (exitCode === EXIT.failure) throw error;
    return { failed: message, exitCode };
  } finally {
    terminal.progress('');
    await ledger?.close();
  }
}

/** The exit code of a comparison. Objects added since the backup do not count as differences. */
export function exitOf(found: Compared | undefined): ExitCode {
  if (found === undefined) return EXIT.ok;
  if ('failed' in found) return found.exitCode;
  return found.missing + found.otherSize + found.otherChecksum === 0 ? EXIT.ok : EXIT.untrusted;
}

/** `S3 bucket photos, below of/mine`. */
const nameOf = ({ store, bucket, prefix }: BucketName): string =>
  `${store === 'gcs' ? 'Google' : 'S3'} bucket ${sanitizeText(bucket)}${prefix === null ? '' : `, below ${sanitizeText(prefix)}`}`;

/** `list of 3 objects (1.5 MiB) of the S3 bucket photos`. */
export const aboutList = (list: ObjectList): string =>
  `list of ${counted(list.count, 'object')} (${sized(list.size)}) of the ${nameOf(list)}`;

/** The list for `--json`, without its parts. */
export const listData = (list: ObjectList | undefined): object | undefined => list && { ...list, parts: undefined };

/** Output lines for a comparison. */
export function comparedLines(
  terminal: Terminal,
  { objects }: Manifest,
  found?: Compared,
): readonly (string | false)[] {
  if (objects === undefined || found === undefined) return [];
  const list = aboutList(objects);
  if ('failed' in found) {
    return [
      `The ${list} was not compared: ${found.failed}.`,
      `See \`${ADMIN_NAME} check-storage\`; then \`${ADMIN_NAME} verify\` names blobs that are missing or have another size.`,
    ];
  }
  const { same, sizeOnly, added, missing, missingNamed, otherSize, otherChecksum, examples } = found;
  const wrong = exitOf(found) !== EXIT.ok;
  const more = sizeOnly === 0 ? '' : ` ${sizeOnly} have the right size, but no checksum of the same kind to compare.`;
  const named =
    missingNamed === missing ? 'an item names each' : `items name ${missingNamed}; the others are not needed`;
  const columns = titled('Tenant', 'Object', 'Differs', 'Item', 'Listed; found');
  const rows = examples.map(({ tenantId, ref, difference, itemId, listed, found: there }) => [
    ...[tenantId, ref, difference, itemId ?? ''],
    there === '' ? listed : `${listed}; ${there}`,
  ]);
  return [
    `The backup has the ${list}: ${wrong ? `${same} of them are as listed.` : 'nothing differs.'}${more}`,
    missing > 0 && `${counted(missing, 'object')} missing (${named}).`,
    otherSize > 0 && `${counted(otherSize, 'object')} with another size.`,
    otherChecksum > 0 && `${counted(otherChecksum, 'object')} with another checksum: the bytes were changed.`,
    added > 0 &&
      `${counted(added, 'object')} added since: not a difference, the nightly job removes what no item needs.`,
    ...(wrong ? table(terminal, columns, rows) : []),
    wrong &&
      'Put these objects back from a copy or an older version of the bucket. Until then devices cannot get them.',
  ];
}
