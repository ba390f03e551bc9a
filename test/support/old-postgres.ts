/** A PostgreSQL of an older major version than the package's, as Debian has it; tests without one are skipped. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { binariesIn } from '../../src/server/storage/embedded/binaries.js';
import { EmbeddedPostgres } from '../../src/server/storage/embedded/embedded.js';
import { databasePassword, type WithTeardown } from './postgres.js';

const MAJORS = [15, 16, 17, 14];
const major = MAJORS.find((one) => existsSync(`/usr/lib/postgresql/${one}/bin/initdb`));

/** Its folder and version; undefined where there is none. */
export const oldPostgres =
  major === undefined ? undefined : { major, folder: join('/usr/lib/postgresql', String(major)) };

/** For tap's `skip`. */
export const withoutOld: string | false =
  oldPostgres === undefined ? 'no older PostgreSQL here (apt-get install postgresql-15)' : false;

/** A cluster of the old version under `dataDir`, made on first use and stopped after the test. */
export async function startOld(t: WithTeardown, dataDir: string): Promise<EmbeddedPostgres> {
  const binaries = await binariesIn(oldPostgres?.folder ?? '');
  if (binaries === undefined) throw new Error('there is no older PostgreSQL');
  const password = await databasePassword(dataDir);
  const old = await EmbeddedPostgres.start({ dataDir, password, onLog: () => undefined, binaries });
  t.teardown(() => old.stop());
  return old;
}
