/** `service-device doctor`: finds problems and says how to fix them. Checks that depend on a failed one are skipped and named. */
import { asError } from '../../protocol/error-code.js';
import { InvalidArgumentError } from 'commander';
import { fingerprintOfMaster } from '../../crypto/fingerprint.js';
import type { Context, DeviceCommand } from '../context.js';
import { about, CHECKS, isProblem, type CheckName, type Finding, type DoctorContext } from '../doctor/finding.js';
import * as network from '../doctor/network.js';
import { checkDisk, checkIdentity, checkPermissions, checkSecrets } from '../doctor/profile.js';
import { checkDevices, checkToken } from '../doctor/token.js';
import { checkVault } from '../doctor/vault.js';
import { sanitizeText, show } from '../../terminal/output.js';
import { EXIT, type ExitCode } from '../../terminal/terminal.js';

const IDLE_DEFAULT_S = 5;
const IDLE_MAX_S = 3_600;

function seconds(text: string): number {
  if (!/^\d{1,4}$/.test(text) || Number(text) > IDLE_MAX_S)
    throw new InvalidArgumentError(`must be whole seconds, up to ${IDLE_MAX_S}`);
  return Number(text);
}

export function registerDoctor(program: DeviceCommand): void {
  program
    .command('doctor')
    .summary('say what is wrong, and how to fix it')
    .description('Says what is wrong, and how to fix it.')
    .option(
      '--idle <seconds>',
      'watch an idle connection for this long; 120 shows most proxies',
      seconds,
      IDLE_DEFAULT_S,
    )
    .examples('doctor', 'doctor --idle 120 --json')
    .does(runDoctor);
}

type Found = Finding | readonly Finding[];
type Probe = (doctor: DoctorContext) => Found | Promise<Found>;

/** The path to the server. Each step depends on the one before: a problem in the named check skips the rest. */
const PATH_TO_SERVER: readonly (readonly [check: CheckName, probe: Probe])[] = [
  ['dns', network.checkName],
  ['connection', network.checkConnection],
  ['tls', network.checkTls],
  ['server', network.checkServer],
  ['token', checkToken],
];

/** Independent checks of a server that accepts this device. */
const INDEPENDENT_CHECKS: readonly (readonly [check: CheckName, probe: Probe])[] = [
  ['devices', checkDevices],
  ['upgrade', network.checkSocket],
  ['web', network.checkWebApp],
];

/** Checks that may have no finding, and are then not reported as skipped. */
const OPTIONAL_CHECKS: ReadonlySet<CheckName> = new Set(['tls', 'secrets', 'disk', 'clock']);

/** Runs all checks and prints each at once. `EXIT.ok` only without a problem. */
export async function runDoctor(context: Context, { idle }: { readonly idle: number }): Promise<ExitCode> {
  const { terminal, platform } = context;
  const checks: Finding[] = [];
  const add = (found: Found): void => {
    for (const finding of [found].flat()) {
      checks.push(finding);
      if (!terminal.json) showFinding(context, finding);
    }
  };
  for (const check of [checkSecrets, checkPermissions, checkDisk]) add(await check(context));
  const { identity, here, finding } = await checkIdentity(context);
  add(finding);
  if (identity !== undefined) {
    const fingerprint = fingerprintOfMaster(platform.sodium, identity.masterKey);
    const same = `The vault's key has the fingerprint ${fingerprint}. It must be the same on all your devices.`;
    add(about('fingerprint').ok(same));
    await examine({ ...context, identity, idleMs: idle * 1_000 }, checks, add);
  }
  const notChecked = CHECKS.filter((name) => !OPTIONAL_CHECKS.has(name) && checks.every(({ check }) => check !== name));
  const problems = checks.filter(isProblem).length;
  const count = problems === 1 ? '1 problem was' : `${problems} problems were`;
  show(terminal, { ok: problems === 0, checks, notChecked }, () => [
    notChecked.length > 0 && `Not checked, since something before it failed: ${notChecked.join(', ')}.`,
    problems === 0 ? 'No problem was found.' : `${count} found.`,
  ]);
  if (problems === 0) return EXIT.ok;
  return here ? EXIT.failure : EXIT.notFound;
}

/** The checks of a device: the path to its server up to the first problem, then the local copy. */
async function examine(doctor: DoctorContext, checks: readonly Finding[], add: (found: Found) => void): Promise<void> {
  const failed = (name: CheckName): boolean => checks.some((finding) => finding.check === name && isProblem(finding));
  // Plain http is a problem, but does not stop the other checks.
  add(network.checkAddress(doctor));
  for (const [check, probe] of PATH_TO_SERVER) {
    add(await probe(doctor));
    if (failed(check)) break;
  }
  const { session } = doctor;
  for (const [check, probe] of session === undefined ? [] : INDEPENDENT_CHECKS) {
    try {
      add(await probe(doctor));
    } catch (error) {
      // An invalid response to one check does not stop the others.
      const what = `The server did not answer as it should (${asError(error).name}).`;
      add(about(check).problem(what, 'Run doctor again; if this persists, update this program or the server.'));
    }
  }
  add(await checkVault(doctor, failed('upgrade') ? undefined : session?.figures));
}

const WORDS: Readonly<Record<Finding['status'], readonly [word: string, colour: number]>> = {
  ok: ['ok', 32],
  warning: ['warning', 33],
  problem: ['PROBLEM', 31],
};

function showFinding({ terminal }: Context, { check, status, what, do: advice }: Finding): void {
  const [word, colour] = WORDS[status];
  const padded = word.padEnd(8);
  const shown = terminal.colours ? `\u001b[${colour}m${padded}\u001b[0m` : padded;
  terminal.print(`${shown} ${check.padEnd(12)} ${sanitizeText(what)}`);
  if (advice !== undefined) terminal.print(`${' '.repeat(22)}-> ${sanitizeText(advice)}`);
}
