/** The token and the device list: does the server still accept this device, and are all devices certified? */
import { DeviceApi } from '../../sdk/api.js';
import { ApiError, isTransient, isRevoked } from '../../sdk/errors.js';
import { Http } from '../../sdk/http.js';
import type { Identity, Token } from '../../sdk/identity.js';
import { fingerprintOfDevice } from '../../sdk/device-list.js';
import { Session } from '../../sdk/session.js';
import { isCertified } from '../../crypto/device.js';
import { CryptoRefusal } from '../../crypto/refusal.js';
import { equalBytes } from '../../protocol/bytes.js';
import { readAccountCache } from '../account-cache.js';
import { PROGRAM_NAME } from '../context.js';
import { failureOf } from '../failure.js';
import { about, REJOIN, span, type Finding, type DoctorContext } from './finding.js';

const ME = { method: 'GET', path: '/me', repeatable: true } as const;
const { ok, warning, problem } = about('token');

/** Tries the stored token. A refused one is renewed with the device's key, and the new one is stored. */
export async function checkToken(doctor: DoctorContext): Promise<readonly Finding[]> {
  const { platform, identity } = doctor;
  const { sodium, clock } = platform;
  const http = new Http({ ...platform, baseUrl: identity.serverUrl });
  const fresh: Token[] = [];
  const onToken = (token: Token): void => void fresh.push(token);
  const session = new Session({ http, sodium, clock, identity, onToken, onRevoked: () => undefined });
  try {
    const refused = await http.send(ME, identity.token.text).then(() => undefined, tokenRefusal);
    if (refused !== undefined) await session.renew();
    const { server: figures } = await new DeviceApi(session.call).me();
    const findings = [working(identity.token, refused, clock.now())];
    for (const token of fresh) findings.push(...(await saved(doctor, { ...identity, token })));
    doctor.session = { call: session.call, figures };
    return findings;
  } catch (error) {
    return [refusal(error)];
  }
}

/** Stores the renewed token; a finding only where that fails. The token then works until the command ends. */
async function saved({ profile }: DoctorContext, identity: Identity): Promise<readonly Finding[]> {
  try {
    await profile.renew(identity);
    return [];
  } catch (error) {
    const { message, hint } = failureOf(error);
    const what = `The renewed token could not be saved: ${message}`;
    return [warning(what, hint ?? 'The next command renews it again; fix what prevents the save.')];
  }
}

/** The refusal of the token; rethrows other errors. */
function tokenRefusal(error: unknown): ApiError {
  if (error instanceof ApiError && error.status === 401) return error;
  throw error;
}

/** The server accepts a token: the stored one, or a new one where that was refused. */
function working({ expiresAt }: Token, refused: ApiError | undefined, now: number): Finding {
  if (refused?.code === 'expired_token') return ok("The token had expired, and was renewed by this device's key.");
  if (refused !== undefined)
    return ok("The token was refused, and renewed by this device's key: the server's secret was changed.");
  if (expiresAt === null || expiresAt < now) return ok('The token is valid.');
  return ok(`The token is valid for ${span(expiresAt - now)}.`);
}

function refusal(error: unknown): Finding {
  if (isRevoked(error))
    return problem(
      'This device was revoked: another device, or this one, has signed it out.',
      `If that was not you, look at the device list of another device. To come back: ${REJOIN}`,
    );
  if (error instanceof CryptoRefusal)
    return problem(
      'The server sent a challenge that is not for this device: it was not answered.',
      'Is it your server? Do not continue until you know.',
    );
  if (!(error instanceof ApiError))
    return problem(
      'The server did not answer as it should when asked about this device.',
      'Run doctor again; update this program or the server.',
    );
  const { code, status } = error;
  if (code === 'device_not_found' || status === 401) {
    const advice = `Its devices were wiped, or another server answers there. ${REJOIN}`;
    return problem('The server does not know this device (any more).', advice);
  }
  if (code === 'payment_required') {
    const what = 'The account of this server is not paid for: only its status is available.';
    return problem(what, 'Open the billing page.');
  }
  if (isTransient(error))
    return problem(`The server is in trouble (${code}).`, 'Wait a little and try again; its log says why.');
  return problem(`The server refuses this device (${code}).`, REJOIN);
}

/** Every device in the server's list must have a certificate of this vault, and none may be listed as revoked before. */
export async function checkDevices(doctor: DoctorContext): Promise<readonly Finding[]> {
  const { platform, profile, identity, session } = doctor;
  if (session === undefined) return [];
  const { ok, warning, problem } = about('devices');
  const { masterKey, deviceId, keys } = identity;
  const active = (await new DeviceApi(session.call).devices()).filter(({ revokedAt }) => revokedAt === null);
  const stored = (await readAccountCache(profile.folder)).devices ?? [];
  const revoked = new Set(
    stored.filter((one) => (one.revokedAt ?? one.wasRevokedAt ?? null) !== null).map(({ id }) => id),
  );
  const findings: Finding[] = [];
  for (const device of active) {
    const { id, name, pubkey, cert } = device;
    const certified = isCertified(platform.sodium, masterKey, { id, publicKey: pubkey, cert });
    if (id === deviceId && !equalBytes(pubkey, keys.publicKey)) {
      const what = "The server lists another key under this device's id: other devices would seal for that key.";
      const advice =
        'Do not certify it anywhere. Revoke this device and pair it again; ask the operator of the server.';
      findings.push(problem(what, advice));
    } else if (id === deviceId && !certified) {
      const advice = 'The next command sends it; if it stays missing, the server loses or refuses it.';
      findings.push(warning('The server lists this device without its certificate.', advice));
    } else if (revoked.has(id)) {
      const what = `The device ${JSON.stringify(name)} (${id}) was revoked, and the server lists it as active: nothing is written while it does.`;
      const advice = `Revoke it again: \`${PROGRAM_NAME} revoke ${id}\`. If it is yours, pair it anew after that.`;
      findings.push(problem(what, advice));
    } else if (!certified) {
      const fingerprint = fingerprintOfDevice(platform.sodium, device);
      const what = `None of your devices vouches for the device ${JSON.stringify(name)} (${id}, fingerprint ${fingerprint}): nothing is written while it is listed.`;
      const advice = `Is it yours? Compare the fingerprint with the one it shows, then certify it. If it is not: \`${PROGRAM_NAME} revoke ${id}\`.`;
      findings.push(problem(what, advice));
    }
  }
  if (!active.some(({ id }) => id === deviceId))
    findings.push(problem('The server does not list this device.', REJOIN));
  return findings.length > 0 ? findings : [ok(`Devices: ${active.length}, each vouched for by this vault's key.`)];
}
