/** The reference and completion, compared with the program itself. */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import t from 'tap';
import { completionOf } from '../src/cli/completions.js';
import { failureOf } from '../src/cli/failure.js';
import { programOf, runProgram } from '../src/cli/program.js';
import { EXIT, type Terminal } from '../src/terminal/terminal.js';
import { PROJECT_ROOT } from '../src/root.js';
import { flagsOf, leaves } from './support/commands.js';

const program = programOf(() => async () => undefined, '1.2.3');

const commands = leaves(program);
const page = readFileSync(join(PROJECT_ROOT, 'src/docs/command-line.md'), 'utf8');

t.test('CLI-24: the reference names every command with its arguments, and every option', async (t) => {
  t.ok(commands.length > 25, 'the commands were found');
  for (const { path, command } of commands) {
    const usage = command.registeredArguments.map((argument) => {
      const inner = `${argument.name()}${argument.variadic ? '...' : ''}`;
      return argument.required ? `<${inner}>` : `[${inner}]`;
    });
    t.ok(page.includes(`\`${[path, ...usage].join(' ')}\``), `\`${[path, ...usage].join(' ')}\``);
    for (const alias of command.aliases()) t.ok(new RegExp(`\`([a-z]+ )?${alias}\``).test(page), `alias ${alias}`);
    for (const flag of flagsOf(command)) t.ok(new RegExp(`\`${flag}[\` ]`).test(page), `${path} ${flag}`);
  }
  for (const flag of flagsOf(program)) t.ok(page.includes(`\`${flag}`), flag);
  for (const code of Object.values(EXIT)) t.ok(page.includes(`| ${code} |`), `exit code ${code}`);
  const variables = [...new Set(page.match(/\bSERVICE_[A-Z_]+/g) ?? [])].sort();
  t.same(variables, [
    ...['SERVICE_CLAIM_TOKEN', 'SERVICE_DEBUG', 'SERVICE_HOST'],
    ...['SERVICE_ITEM_BIN', 'SERVICE_ITEM_ID', 'SERVICE_ITEM_TYPE', 'SERVICE_KEYCHAIN', 'SERVICE_PROFILE'],
  ]);
});

t.test('CLI-24: every command has help with a summary and an example', async (t) => {
  for (const { path, command } of commands.filter(({ path }) => path !== 'bins list')) {
    t.ok(command.summary(), `${path} has a summary`);
    const printed: string[] = [];
    const { signal } = new AbortController();
    const terminal = { interrupted: signal, progress: () => undefined } as unknown as Terminal;
    const call = {
      env: {},
      platform: {} as never,
      version: '1',
      commit: 'unknown',
      terminal: () => terminal,
      fail: () => undefined,
    };
    const code = await runProgram({
      ...call,
      argv: [...path.split(' '), '--help'],
      write: (text) => printed.push(text),
    });
    t.equal(code, EXIT.ok);
    const help = printed.join('');
    t.match(help, new RegExp(`Usage: service-device ${path}`));
    t.match(help, /Examples:\n {2}\$ .*service-device/, `${path} has an example`);
    t.match(help, /--json/, 'the help has the options of all commands');
    t.ok(
      help.split('\n').every((line) => line.length <= 125),
      `${path}: no line is too long`,
    );
  }
});

t.test('CLI-24: completion is generated from the program, for each shell', async (t) => {
  for (const shell of ['bash', 'zsh', 'fish'] as const) {
    const script = completionOf(program, shell);
    for (const { path, command } of commands) {
      const name = path.split(' ').at(-1) ?? '';
      t.match(script, new RegExp(`\\b${name}\\b`), `${shell}: ${path}`);
      for (const flag of flagsOf(command)) {
        const spelled = shell === 'fish' && flag.startsWith('--') ? `-l ${flag.slice(2)}` : flag;
        if (shell !== 'fish' || flag.startsWith('--')) t.ok(script.includes(spelled), `${shell}: ${path} ${flag}`);
      }
    }
  }
});

t.test('CLI-24: a real shell completes with the generated script', async (t) => {
  const script = completionOf(program, 'bash');
  const complete = (...words: string[]): string[] => {
    const quoted = words.map((word) => `'${word}'`).join(' ');
    const run = `${script}\nCOMP_WORDS=(service-device ${quoted}); COMP_CWORD=${words.length}; _service_device; printf '%s\\n' "\${COMPREPLY[@]}"`;
    return execFileSync('bash', ['--norc', '-c', run], { encoding: 'utf8' }).trim().split('\n').filter(Boolean);
  };
  t.same(complete('re'), ['recover', 'restore', 'revoke', 'rename']);
  t.same(complete('bins', 're'), ['rename']);
  t.ok(complete('--json', 'bins', 'add', '--').includes('--emoji'));
  t.ok(complete('put', '--').includes('--profile'));
  t.notOk(complete('put', '--').includes('--emoji'));
  t.same(complete('join', '--glyph', 'p'), ['phone']);
});

t.test('CLI-15: the reference names the codes of failures', async (t) => {
  t.equal(failureOf(new Error('x')).code, 'failure');
  for (const code of ['ambiguous', 'busy', 'needs_file', 'no_device', 'digits_differ', 'incomplete', 'damaged']) {
    t.ok(page.includes(`\`${code}\``), code);
  }
});
