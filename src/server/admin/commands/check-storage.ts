/** `service-admin check-storage`: tries the blob store as clients and as the server. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { sanitizeText, paletteOf, show } from '../../../terminal/output.js';
import { CommandError, EXIT, type ExitCode, type Terminal, usageError } from '../../../terminal/terminal.js';
import { localStore, withStore } from '../../app/object-store.js';
import { publicUrl, tenantUrl, type Config } from '../../config/config.js';
import { keptSecret } from '../../config/secrets.js';
import { type AdminContext, type AdminCommand } from '../context.js';
import { checkBucket } from '../storage/bucket-check.js';
import { checkLocal } from '../storage/local-check.js';
import type { Outcome, Verdict } from '../storage/verdict.js';

export function registerCheckStorage(program: AdminCommand): void {
  program
    .command('check-storage')
    .summary('test the blob store with real requests, and report what is wrong')
    .description(
      'Write, read and remove one small object in the blob store that the environment names, over signed URLs as clients ' +
        'do and with the calls of the server; try what must be refused; check clock and CORS rules. Leaves nothing behind. ' +
        'The local store is tested through the running server, as the user it runs as',
    )
    .option(
      '--url <url>',
      'local store: where the running server is reached (default: PUBLIC_URL, else DOMAIN, else this machine)',
    )
    .examples('check-storage', '--json check-storage')
    .does((context, options: { readonly url?: string }) => checkStorage(context, options));
}

async function checkStorage({ terminal, config }: AdminContext, options: { readonly url?: string }): Promise<ExitCode> {
  const read = config();
  const onVerdict = (verdict: Verdict): void => {
    if (!terminal.json) for (const line of linesOf(terminal, verdict)) terminal.print(line);
  };
  if (!terminal.json) terminal.note(`The blob store is ${nameOf(read)}.`);
  const origin = originOf(read, options.url);
  const { corsOrigins: origins } = read;
  const all = [...new Set([...origins, ...webOrigins(read)])];
  const verdicts =
    read.storageKind === 'local'
      ? await checkLocal({ store: localStore(read, await secretOf(read)), origins, origin, onVerdict })
      : await withStore(read, (store) => checkBucket({ store, origins: all, onVerdict }));
  const failed = verdicts.filter(({ outcome }) => outcome === 'failed');
  show(terminal, { kind: read.storageKind, sound: failed.length === 0, checks: verdicts }, () => [
    failed.length === 0 ? 'Blobs can be kept there.' : `${failed.length} of ${verdicts.length} checks failed.`,
  ]);
  return exitOf(failed);
}

/** Origins of the web app, as far as the configuration names them; in multi mode one tenant host stands for all. */
function webOrigins(config: Config): readonly string[] {
  const { webApp, publicUrl: url, domain, tenantMode } = config;
  if (webApp === 'off') return [];
  if (tenantMode === 'multi') return [tenantUrl(config, 'a-tenant')];
  if (url !== null) return [new URL(url).origin];
  return domain === null ? [] : [`https://${domain}`];
}

/** The server's secret for blob URLs. None is generated here: its file would belong to the user of this command. */
async function secretOf({ blobUrlSecret, dataDir }: Config): Promise<string> {
  if (blobUrlSecret !== null) return blobUrlSecret;
  const name = 'blob-url-secret';
  if (existsSync(join(dataDir, 'secrets', name))) return keptSecret(dataDir, name);
  throw new CommandError(
    EXIT.notFound,
    `no server has kept blobs in ${dataDir} yet`,
    'Start the server first, and give this command its environment (DATA_DIR, BLOB_URL_SECRET).',
    { code: 'no_store' },
  );
}

/** The address at which clients reach the server. */
function originOf({ publicUrl: url, domain, tenantMode, port }: Config, given: string | undefined): string {
  if (given !== undefined) {
    const origin = publicUrl(given);
    if (origin === undefined) throw usageError('--url takes an http or https URL');
    return origin;
  }
  if (url !== null) return url;
  return domain !== null && tenantMode === 'single' ? `https://${domain}` : `http://127.0.0.1:${port}`;
}

function nameOf({ storageKind, dataDir, gcsBucket, gcsEndpoint, s3Bucket, s3Endpoint }: Config): string {
  if (storageKind === 'local') return `the folder ${sanitizeText(localStore({ dataDir }, '').folder)}`;
  const gcs = storageKind === 'gcs';
  const endpoint = gcs ? (gcsEndpoint ?? 'Google Cloud Storage') : (s3Endpoint ?? 'AWS S3');
  return `the bucket ${gcs ? gcsBucket : s3Bucket} at ${endpoint}`;
}

const MARKS: Readonly<Record<Outcome, string>> = { ok: 'ok', weak: 'weak', failed: 'FAILED', skipped: '-' };
const CHECK_WIDTH = 14;
const MARK_WIDTH = 8;

function linesOf(terminal: Terminal, { check, outcome, seen, advice }: Verdict): string[] {
  const { good, bad, accent, dim } = paletteOf(terminal);
  const paint = { ok: good, weak: accent, failed: bad, skipped: dim }[outcome];
  const first = `${sanitizeText(check).padEnd(CHECK_WIDTH)} ${paint(MARKS[outcome].padEnd(MARK_WIDTH))} ${sanitizeText(seen)}`;
  return advice === undefined ? [first] : [first, `${' '.repeat(CHECK_WIDTH + MARK_WIDTH + 2)}${sanitizeText(advice)}`];
}

/** A store that cannot be reached may recover by itself; other failures need the operator. */
function exitOf(failed: readonly Verdict[]): ExitCode {
  if (failed.length === 0) return EXIT.ok;
  const away = failed.every(({ reason }) => reason === 'unreachable' || reason === 'timeout' || reason === 'broken');
  return away ? EXIT.unavailable : EXIT.refused;
}
