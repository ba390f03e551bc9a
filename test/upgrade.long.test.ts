/** An upgrade of the embedded database, killed before every step. */
import t from 'tap';
import { UPGRADE_STEPS } from '../src/server/storage/embedded/upgrade.js';
import { withoutOld } from './support/old-postgres.js';
import { killedBefore } from './support/upgrades.js';

t.test('OPER-24: killed at any step, and once more', { skip: withoutOld, timeout: 600_000 }, async (t) => {
  await killedBefore(t, [...UPGRADE_STEPS, 'middle']);
});
