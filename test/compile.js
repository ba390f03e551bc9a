/**
 * The build and the linter of `npm test` on one program: what the compiler has found out about the types is not found
 * out once more. Sends `true` once everything is built and right; the linter goes on from there. `npm run build` and
 * `eslint .` do the same one by one. Plain JavaScript: nothing is built yet.
 */
import { createRequire } from 'node:module';
import { ESLint } from 'eslint';

// TypeScript with the transforms of tsconfig.json, as `tspc` has it.
const ts = createRequire(import.meta.url)('ts-patch/compiler/typescript.js');
const system = {
  ...ts.sys,
  getCanonicalFileName: (name) => name,
  getNewLine: () => ts.sys.newLine,
  onUnRecoverableConfigFileDiagnostic: (problem) => fail([problem]),
};

function fail(problems) {
  process.stdout.write(ts.formatDiagnostics(problems, system));
  process.exit(1);
}

const { options, fileNames, errors } = ts.getParsedCommandLineOfConfigFile('tsconfig.json', {}, system);
const host = ts.createIncrementalCompilerHost(options);
const builder = ts.createIncrementalProgram({ rootNames: fileNames, options, host });
const problems = [...errors, ...builder.getOptionsDiagnostics(), ...builder.getGlobalDiagnostics()];
problems.push(...builder.getSyntacticDiagnostics(), ...builder.getSemanticDiagnostics());
problems.push(...builder.emit().diagnostics);
if (problems.length > 0) fail(problems);
await import('../build/src/web/build.js');
await import('../build/src/server/app/build-reference.js');
await import('../build/src/packages/commit.js');
process.send?.(true);

const parserOptions = { project: null, programs: [builder.getProgram()] };
const eslint = new ESLint({ overrideConfig: { languageOptions: { parserOptions } } });
const results = await eslint.lintFiles(['.']);
process.stdout.write(await (await eslint.loadFormatter()).format(results));
// A child with a channel to its parent ends when it says so.
process.exit(results.some(({ errorCount, warningCount }) => errorCount + warningCount > 0) ? 1 : 0);
