/** Status and identity (reference, HTTP, Status and identity). */
import { ServiceError } from '../../protocol/errors.js';
import type { Me, StatusDown, StatusUp } from '../../protocol/replies.js';
import { describe, errorFields } from '../http/fail.js';
import type { Handler } from '../http/route.js';
import type { HttpConfig, Log } from '../http/ports.js';
import type { Bootstrap } from './bootstrap.js';
import type { IdentityStore } from './identity-store.js';

/** What the handlers need. */
export interface StatusParts {
  readonly version: string;
  readonly config: Pick<HttpConfig, 'tenantMode' | 'region' | 'storageCapBytes'>;
  readonly log: Log;
  /** The epoch of the database as it is known now. */
  readonly epoch: () => string;
  readonly bootstrap: Pick<Bootstrap, 'claimed'>;
  readonly identities: Pick<IdentityStore, 'identity'>;
  /** Which devices hold a socket, on any instance. */
  readonly presence: { online(tenantId: string): Promise<ReadonlySet<string>> };
}

/** `GET /service/status`. While the database is down it is a refusal that still says what is known. */
export const serviceStatus: Handler<StatusParts, StatusUp | StatusDown> = async (
  call,
  { bootstrap, config, version, epoch, log },
) => {
  const { tenantId, requestId } = call;
  const about = { version, mode: config.tenantMode };
  try {
    const claimed = await bootstrap.claimed(tenantId);
    return { ok: true, ...about, claimed, tenantId, epoch: epoch(), database: 'up' };
  } catch (error) {
    if (!(error instanceof ServiceError) || error.error !== 'unavailable') throw error;
    log.warn({ requestId, cause: describe(error) }, 'the database is down');
    call.status = 503;
    const refusal = errorFields(error, call.shape);
    return { ok: false, ...about, claimed: null, tenantId, epoch: epoch(), database: 'down', error: refusal };
  }
};

/** `GET /me`. */
export const me: Handler<StatusParts, Me> = async (call, { identities, presence, config, version, epoch }) => {
  const { tenantId, deviceId } = call;
  const [found, online] = await Promise.all([identities.identity(tenantId, deviceId), presence.online(tenantId)]);
  // Wiped between the check of the token and now.
  if (found === undefined) throw new ServiceError('bad_token');
  const { id, name, glyph, pairedAt } = found.device;
  const history = {
    headVersion: found.summary.version,
    versionSum: found.summary.versionSum,
    epoch: epoch(),
    tenantId,
  };
  const server = {
    version,
    region: config.region,
    storageUsedBytes: found.storageUsedBytes,
    storageCapBytes: config.storageCapBytes,
    itemCount: found.summary.itemCount,
    deviceCount: found.deviceCount,
    devicesOnline: online.size,
    ...history,
  };
  // The history stands at both levels: whoever looks finds it.
  return { device: { id, name, glyph, pairedAt }, server, ...history };
};
