/**
 * Replaces the calls of typia in compiled modules by the code that it generates for their types; part of
 * `npm run build`, after the compiler. Typia needs the compiler's programming interface, which TypeScript 7 does not
 * have: so TypeScript 7 checks and compiles everything, and version 6 these few modules once more.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import ts from 'typescript';
import { transform } from 'typia/lib/transform';
import { PROJECT_ROOT } from '../root.js';

const CONFIG = join(PROJECT_ROOT, 'tsconfig.json');
/** What every module with calls of typia declares: an import would load the library at every start. */
const DECLARED = /^declare const typia\b/m;

const textOf = (problem: ts.Diagnostic): string =>
  `${problem.file?.fileName ?? CONFIG}: ${ts.flattenDiagnosticMessageText(problem.messageText, '\n')}`;

const config = ts.readJsonConfigFile(CONFIG, ts.sys.readFile);
const { options, fileNames } = ts.parseJsonSourceFileConfigFileContent(config, ts.sys, PROJECT_ROOT);
const modules = fileNames.filter((file) => DECLARED.test(readFileSync(file, 'utf8')));
// The declarations are written already, and so is the record of what was compiled.
const program = ts.createProgram(modules, {
  ...options,
  declaration: false,
  incremental: false,
  tsBuildInfoFile: undefined,
});
const problems: string[] = [];
const before = [transform(program, undefined, { addDiagnostic: (problem) => problems.push(textOf(problem)) })];
for (const file of modules) program.emit(program.getSourceFile(file), undefined, undefined, false, { before });
if (problems.length > 0) throw new Error(problems.join('\n'));
