/** All cases. Those that set a password or claim the tenant anew come last, because they slow down the others. */
import type { Case } from '../stage.js';
import { batch } from './batch.js';
import { bins } from './bins.js';
import { blobs } from './blobs.js';
import { bootstrap } from './bootstrap.js';
import { deletes } from './deletes.js';
import { devices } from './devices.js';
import { errors } from './errors.js';
import { http } from './http.js';
import { items } from './items.js';
import { keys } from './keys.js';
import { lists } from './list.js';
import { moves } from './moves.js';
import { pairing } from './pairing.js';
import { passwords } from './password.js';
import { rates } from './rates.js';
import { reauth } from './reauth.js';
import { recovery } from './recovery.js';
import { refusals } from './refusals.js';
import { replays } from './replay.js';
import { retry } from './retry.js';
import { shapes } from './shapes.js';
import { sockets } from './socket.js';
import { statuses } from './status.js';
import { tokens } from './tokens.js';

export const CASES: readonly Case[] = [
  ...statuses,
  ...shapes,
  ...refusals,
  ...errors,
  ...http,
  ...tokens,
  ...reauth,
  ...items,
  ...keys,
  ...retry,
  ...batch,
  ...lists,
  ...deletes,
  ...moves,
  ...bins,
  ...blobs,
  ...pairing,
  ...devices,
  ...sockets,
  ...replays,
  ...recovery,
  ...passwords,
  ...rates,
  ...bootstrap,
];
