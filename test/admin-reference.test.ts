/** The reference's page on operating, compared with `service-admin` itself. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import t from 'tap';
import { adminProgramOf } from '../src/server/admin/program.js';
import { EXIT } from '../src/terminal/terminal.js';
import { blobJobs } from '../src/server/app/blobs.js';
import { nightlyJobs } from '../src/server/ops/store.js';
import { DOCS_FOLDER } from '../src/root.js';
import { flagsOf, leaves } from './support/commands.js';

const program = adminProgramOf(() => async () => undefined, '1.2.3');
const commands = leaves(program);
const page = readFileSync(join(DOCS_FOLDER, 'operating.md'), 'utf8');

t.test('OPER-20: the reference names every command with its arguments, every option, code and job', async (t) => {
  t.ok(commands.length >= 15, 'the commands were found');
  for (const { path, command } of commands) {
    const usage = command.registeredArguments.map((argument) =>
      argument.required ? `<${argument.name()}>` : `[${argument.name()}]`,
    );
    t.ok(page.includes(`\`${[path, ...usage].join(' ')}\``), path);
    const row = page.split('\n').find((line) => line.startsWith(`| \`${path}`)) ?? '';
    for (const flag of flagsOf(command)) t.ok(new RegExp(`\`${flag}[\` ]`).test(row), `${path} ${flag}`);
    t.ok(command.summary(), `${path} has a summary`);
  }
  for (const flag of flagsOf(program)) t.ok(page.includes(`\`${flag}\``), flag);
  for (const code of Object.values(EXIT)) t.ok(page.includes(`| ${code} |`), `exit code ${code}`);
  const none = undefined as never;
  const jobs = [...nightlyJobs({ pool: none, now: () => 0, softDeleteMs: 0 }), ...blobJobs(none, none)];
  for (const { name } of jobs) t.ok(page.includes(`| ${name} |`), name);
});
