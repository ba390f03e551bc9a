/** Status and identity (reference, HTTP, Status and identity). */
import { ServiceError } from '../../protocol/errors.js';
import { SERVICE_NAME } from '../../protocol/limits.js';
import type { Health, Me, StatusDown, StatusUp } from '../../protocol/replies.js';
import { describe, errorFields } from '../fail.js';
import { Text } from '../reply.js';
import type { Handler } from '../route.js';

/** `GET /`: for whoever opens the address in a browser. */
export const welcome: Handler<Text> = (_, { version }) =>
  new Text(
    `${SERVICE_NAME} ${version}: encrypted multi-device sync. This server holds ciphertext only.\n` +
      'The API is under /api, live changes come over the WebSocket /ws, the reference is under /docs.\n' +
      'Is it up and claimed? GET /api/service/status\n',
    'text/plain; charset=utf-8',
  );

/** `GET /health`: the process lives; nothing else is asked. */
export const health: Handler<Health> = (_, { version }) => ({ ok: true, version });

/** `GET /service/status`. While the database is down it is a refusal that still says what is known. */
export const serviceStatus: Handler<StatusUp | StatusDown> = async (
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
export const me: Handler<Me> = async (call, { identities, presence, config, version, epoch }) => {
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
