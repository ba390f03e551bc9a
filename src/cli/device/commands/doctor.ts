/** `service-device doctor`: what is wrong, and how to mend it. */
import { InvalidArgumentError } from 'commander';
import type { Context } from '../context.js';
import { isProblem, type Finding } from '../doctor/finding.js';
import { examine } from '../doctor/run.js';
import { PROGRAM_NAME } from '../names.js';
import { harmless } from '../output.js';
import { examples, type Register } from '../run.js';
import { EXIT, type ExitCode } from '../../../device/terminal.js';

/** Options of `doctor`. */
export interface DoctorOptions {
  /** Seconds that an idle connection is watched. */
  readonly idle: number;
}

const IDLE_DEFAULT_S = 5;
const IDLE_MAX_S = 3_600;

function seconds(text: string): number {
  if (!/^\d{1,4}$/.test(text) || Number(text) > IDLE_MAX_S)
    throw new InvalidArgumentError(`must be whole seconds, up to ${IDLE_MAX_S}`);
  return Number(text);
}

/** `doctor`. */
export const registerDoctor: Register = (program, run) => {
  program
    .command('doctor')
    .summary('what is wrong, and how to mend it')
    .description('Say what is wrong, and how to mend it')
    .option('--idle <seconds>', 'watch an idle connection for so long; 120 shows most proxies', seconds, IDLE_DEFAULT_S)
    .addHelpText('after', examples(`${PROGRAM_NAME} doctor`, `${PROGRAM_NAME} doctor --idle 120 --json`))
    .action(run(runDoctor));
};

const WORD: Readonly<Record<Finding['status'], string>> = { ok: 'ok', warning: 'warning', problem: 'PROBLEM' };
const COLOUR: Readonly<Record<Finding['status'], string>> = { ok: '32', warning: '33', problem: '31' };

/** Runs all checks and prints them as they are made. `ok` only where there is no problem. */
export async function runDoctor(context: Context, { idle }: DoctorOptions): Promise<ExitCode> {
  const { terminal } = context;
  const report = await examine(context, idle * 1_000, (finding) => {
    if (!terminal.json) show(context, finding);
  });
  const problems = report.findings.filter(isProblem);
  if (terminal.json) {
    const { findings: checks, notChecked } = report;
    terminal.data({ ok: problems.length === 0, checks, notChecked });
  } else {
    if (report.notChecked.length > 0)
      terminal.print(`Not checked, since something before it failed: ${report.notChecked.join(', ')}.`);
    terminal.print(summaryOf(problems.length));
  }
  if (problems.length === 0) return EXIT.ok;
  return report.deviceHere ? EXIT.failure : EXIT.notFound;
}

function summaryOf(problems: number): string {
  if (problems === 0) return 'No problem was found.';
  return problems === 1 ? '1 problem was found.' : `${problems} problems were found.`;
}

function show({ terminal }: Context, { check, status, what, do: mend }: Finding): void {
  const word = WORD[status].padEnd(8);
  const shown = terminal.colours ? `\u001b[${COLOUR[status]}m${word}\u001b[0m` : word;
  terminal.print(`${shown} ${check.padEnd(12)} ${harmless(what)}`);
  if (mend !== undefined) terminal.print(`${' '.repeat(22)}-> ${harmless(mend)}`);
}
