/** Every command, in the order in which help lists them. */
import { registerBins } from './commands/bins.js';
import { registerCertify } from './commands/certify.js';
import { registerClaim } from './commands/claim.js';
import { registerCompletion } from './commands/completion.js';
import { registerDevices } from './commands/devices.js';
import { registerDoctor } from './commands/doctor.js';
import { registerExport } from './commands/export.js';
import { registerForget } from './commands/forget.js';
import { registerGet } from './commands/get.js';
import { registerImport } from './commands/import.js';
import { registerJoin } from './commands/join.js';
import { registerList } from './commands/list.js';
import { registerMove } from './commands/move.js';
import { registerPair } from './commands/pair.js';
import { registerPassword } from './commands/password.js';
import { registerPut } from './commands/put.js';
import { registerRecover } from './commands/recover.js';
import { registerRename } from './commands/rename.js';
import { registerRevoke } from './commands/revoke.js';
import { registerRm } from './commands/rm.js';
import { registerSearch } from './commands/search.js';
import { registerStatus } from './commands/status.js';
import { registerSync } from './commands/sync.js';
import { registerWatch } from './commands/watch.js';
import type { Register } from './run.js';

/** See above. */
export const COMMANDS: readonly Register[] = [
  registerClaim,
  registerPair,
  registerJoin,
  registerRecover,
  registerPut,
  registerGet,
  registerList,
  registerSearch,
  registerWatch,
  registerMove,
  registerRm,
  registerBins,
  registerDevices,
  registerCertify,
  registerRevoke,
  registerRename,
  registerPassword,
  registerStatus,
  registerSync,
  registerExport,
  registerImport,
  registerDoctor,
  registerForget,
  registerCompletion,
];
