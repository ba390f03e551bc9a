/** All checks in order. What builds on a check that failed is not made, and named as not made. */
import { readFile } from 'node:fs/promises';
import { asError } from '../../../client/events.js';
import { fingerprintOfMaster } from '../../../crypto/fingerprint.js';
import type { Context } from '../context.js';
import { CHECKS, isProblem, ok, problem, type CheckName, type Finding, type Patient } from './finding.js';
import { checkAddress, checkConnection, checkName, checkTls, targetOf } from './network.js';
import { checkDisk, checkIdentity, checkPermissions, checkSecrets } from './place.js';
import { checkClock, checkServer, type TimeProbe } from './server.js';
import { checkSocket } from './socket.js';
import { checkDevices, checkToken } from './token.js';
import { checkVault, type Live } from './vault.js';

/** What was found. */
export interface Report {
  readonly findings: readonly Finding[];
  /** Checks that build on one that failed. */
  readonly notChecked: readonly CheckName[];
  /** False: nobody has claimed or paired here yet. */
  readonly deviceHere: boolean;
}

/** Told of each finding as it is made. */
export type OnFinding = (finding: Finding) => void;

/** Runs all checks. `idleMs`: how long an idle connection is watched. Throws only what is a fault of the program. */
export async function examine(context: Context, idleMs: number, onFinding: OnFinding): Promise<Report> {
  const findings: Finding[] = [];
  const add = (more: readonly Finding[]): boolean => {
    for (const finding of more) {
      findings.push(finding);
      onFinding(finding);
    }
    return !more.some(isProblem);
  };
  const { platform } = context;
  add(await checkSecrets(context, { readText: (path) => readFile(path, 'utf8') }));
  add(await checkPermissions(context));
  add(await checkDisk(context));
  const { identity, here, findings: found } = await checkIdentity(context);
  add(found);
  if (identity !== undefined) {
    const fingerprint = fingerprintOfMaster(platform.sodium, identity.masterKey);
    add([
      ok('fingerprint', `The vault's key has the fingerprint ${fingerprint}. It must be the same on all your devices.`),
    ]);
    const patient: Patient = { context, platform, identity, idleMs };
    const live = await overTheNet(patient, add);
    add(await checkVault(patient, live));
  }
  const made = new Set(findings.map(({ check }) => check));
  const silent: ReadonlySet<CheckName> = new Set(['tls', 'secrets', 'disk', 'clock']);
  return { findings, deviceHere: here, notChecked: CHECKS.filter((check) => !made.has(check) && !silent.has(check)) };
}

/** From the address to the socket. Undefined where live changes do not come. */
async function overTheNet(patient: Patient, add: (more: readonly Finding[]) => boolean): Promise<Live | undefined> {
  const target = targetOf(patient.identity.serverUrl);
  // Plain http is a problem, and no hindrance.
  add(checkAddress(patient.identity.serverUrl));
  if (!add(await checkName(patient, target))) return undefined;
  if (!add(await checkConnection(patient, target))) return undefined;
  if (!add(await checkTls(patient, target))) return undefined;
  const { findings, time } = await checkServer(patient);
  const sound = add(findings);
  const clock = (probe: TimeProbe | undefined): boolean => probe !== undefined && add(checkClock(probe));
  if (time !== undefined) clock(time);
  if (!sound) return undefined;
  const { findings: told, session } = await checkToken(patient);
  add(told);
  if (session === undefined) return undefined;
  const { call, figures } = session;
  await guarded('devices', add, async () => add(await checkDevices(patient, call)));
  let live: Live | undefined;
  await guarded('upgrade', add, async () => {
    const socket = await checkSocket(patient, call, figures);
    if (time === undefined) clock(socket.time);
    add(socket.findings);
    if (!socket.findings.some(({ check, status }) => check === 'upgrade' && status === 'problem')) live = { figures };
  });
  return live;
}

/** A server that answers nonsense to one question is no reason not to ask the others. */
async function guarded(
  check: CheckName,
  add: (more: readonly Finding[]) => boolean,
  work: () => Promise<unknown>,
): Promise<void> {
  try {
    await work();
  } catch (error) {
    const what = `The server did not answer as it should (${asError(error).name}).`;
    add([problem(check, what, 'Run doctor again; if it stays, update this program or the server.')]);
  }
}
