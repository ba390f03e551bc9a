/** Does the server still know this device, and whom else does it list? */
import { DeviceApi } from '../../../client/api.js';
import { ApiError, isPassing, isRevoked } from '../../../client/errors.js';
import { Http, type Call } from '../../../client/http.js';
import type { Identity, Token } from '../../../client/identity.js';
import { count, nonEmpty, object } from '../../../client/reader.js';
import { fingerprintOfDevice } from '../../../client/roster.js';
import { Session } from '../../../client/session.js';
import { isCertified } from '../../../crypto/device.js';
import { CryptoRefusal } from '../../../crypto/refusal.js';
import { equalBytes } from '../../../protocol/bytes.js';
import { SERVICE_NAME } from '../../../protocol/limits.js';
import type { Context } from '../context.js';
import { failureOf } from '../failure.js';
import { ok, problem, span, warning, type Finding, type Patient } from './finding.js';

/** The server's figures, as `/me` gives them. */
export const readFigures = object({
  headVersion: count,
  versionSum: count,
  epoch: nonEmpty,
  server: object({ itemCount: count }),
});

/** See above. */
export type Figures = ReturnType<typeof readFigures>;

/** What the token opens. */
export interface TokenLook {
  readonly findings: Finding[];
  /** Absent where the server lets this device do nothing. */
  readonly session?: { readonly call: Call; readonly figures: Figures };
}

const ME = { method: 'GET', path: '/me', repeatable: true } as const;
const AGAIN = `\`${SERVICE_NAME}-device pair\` beside another device of yours, or \`recover\` with the twelve words.`;

/** Tries the token as it is; where it is refused, renews it by the device's own key, and keeps the new one. */
export async function checkToken({ context, platform, identity }: Patient): Promise<TokenLook> {
  const http = new Http({ ...platform, baseUrl: identity.serverUrl });
  const fresh: Token[] = [];
  const session = new Session({
    http,
    sodium: platform.sodium,
    clock: platform.clock,
    identity,
    onToken: (token) => {
      fresh.push(token);
    },
    onRevoked: () => undefined,
  });
  try {
    const refused = await refusalOf(http.send(ME, identity.token.text));
    if (refused !== undefined) await session.renew();
    const figures = readFigures((await session.call(ME)).body, '/me');
    const findings = [refused === undefined ? standing(identity.token, platform.clock.now()) : renewed(refused)];
    for (const token of fresh) findings.push(...(await saved(context, { ...identity, token })));
    return { findings, session: { call: session.call, figures } };
  } catch (error) {
    return { findings: [tokenFinding(error)] };
  }
}

/** Nothing to say where the token is saved. Where the keychain is away everything works until the command ends. */
async function saved({ profile }: Context, identity: Identity): Promise<Finding[]> {
  try {
    await profile.renew(identity);
    return [];
  } catch (error) {
    const { message, hint } = failureOf(error);
    const what = `The renewed token could not be saved: ${message}`;
    return [warning('token', what, hint ?? 'The next command renews it again; see to what stands in the way.')];
  }
}

/** The refusal of the token itself; anything else is thrown. */
async function refusalOf(asked: Promise<unknown>): Promise<ApiError | undefined> {
  try {
    await asked;
    return undefined;
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return error;
    throw error;
  }
}

const standing = ({ expiresAt }: Token, now: number): Finding =>
  ok(
    'token',
    expiresAt === null || expiresAt < now ? 'The token is valid.' : `The token is valid for ${span(expiresAt - now)}.`,
  );

function renewed(refused: ApiError): Finding {
  if (refused.code === 'expired_token')
    return ok('token', "The token had expired, and was renewed by this device's key.");
  return ok('token', "The token was refused, and renewed by this device's key: the server's secret was changed.");
}

function tokenFinding(error: unknown): Finding {
  if (isRevoked(error)) {
    const what = 'This device was revoked: another device, or this one, has signed it out.';
    return problem(
      'token',
      what,
      `If that was not you, look at the device list of another device. To come back: ${AGAIN}`,
    );
  }
  if (error instanceof CryptoRefusal)
    return problem(
      'token',
      'The server sent a challenge that is not for this device: nothing was answered.',
      'Is it your server? Do not go on before you know.',
    );
  if (!(error instanceof ApiError))
    return problem(
      'token',
      'The server did not answer as it should when asked about this device.',
      'Run doctor again; update this program or the server.',
    );
  const { code } = error;
  if (error.code === 'device_not_found' || error.status === 401)
    return problem(
      'token',
      'The server does not know this device (any more).',
      `Its devices were wiped, or another server answers there. ${AGAIN}`,
    );
  if (error.code === 'payment_required')
    return problem(
      'token',
      'The account of this server is not paid for: nothing but its status is answered.',
      'Open the billing page.',
    );
  if (isPassing(error))
    return problem('token', `The server is in trouble (${code}).`, 'Wait a little and try again; its log says why.');
  return problem('token', `The server refuses this device (${code}).`, AGAIN);
}

/** Every device in the server's list must bear a certificate of this vault. */
export async function checkDevices({ platform, identity }: Patient, call: Call): Promise<Finding[]> {
  const { sodium } = platform;
  const { masterKey, deviceId, keys } = identity;
  const active = (await new DeviceApi(call).devices()).filter(({ revokedAt }) => revokedAt === null);
  const findings: Finding[] = [];
  for (const device of active) {
    const { id, name, pubkey, cert } = device;
    const fingerprint = fingerprintOfDevice(sodium, device);
    if (id === deviceId) {
      if (!equalBytes(pubkey, keys.publicKey))
        findings.push(
          problem(
            'devices',
            "The server lists another key under this device's id: other devices would seal for that key.",
            'Do not certify it anywhere. Revoke this device and pair it again; ask whoever runs the server.',
          ),
        );
      else if (!isCertified(sodium, masterKey, { id, publicKey: pubkey, cert }))
        findings.push(
          warning(
            'devices',
            'The server lists this device without its certificate.',
            'It is put there at the next command; if it stays away, the server loses or refuses it.',
          ),
        );
      continue;
    }
    if (isCertified(sodium, masterKey, { id, publicKey: pubkey, cert })) continue;
    const what = `Nobody of yours vouches for the device ${JSON.stringify(name)} (${id}, fingerprint ${fingerprint}): nothing is written while it is listed.`;
    const mend = `Is it yours? Compare the fingerprint with the one it shows, then certify it. If it is not: \`${SERVICE_NAME}-device revoke ${id}\`.`;
    findings.push(problem('devices', what, mend));
  }
  if (!active.some(({ id }) => id === deviceId))
    findings.push(problem('devices', 'The server does not list this device.', AGAIN));
  return findings.length > 0
    ? findings
    : [ok('devices', `${active.length} devices, each vouched for by this vault's key.`)];
}
