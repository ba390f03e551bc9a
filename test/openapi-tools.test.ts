/** The OpenAPI documents in the tools that readers use: a linter and a generator of types. */
import { execFile } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { promisify } from 'node:util';
import openapiTS, { astToString, type OpenAPI3 } from 'openapi-typescript';
import t from 'tap';
import ts from 'typescript';
import { ALL_ROWS } from '../src/server/app/route-table.js';
import { openApi } from '../src/docs/openapi.js';
import { PROJECT_ROOT, SERVER_VERSION } from '../src/root.js';
import { temporaryFolder } from './support/postgres.js';
import { SHAPES, type Shape } from './support/wire.js';

t.setTimeout(300_000);

const run = promisify(execFile);
const documentOf = (shape: Shape) => openApi(shape, ALL_ROWS, SERVER_VERSION);

/** What the linter reports about a file, as `severity rule: message`. It sends nothing over the network. */
async function lint(path: string): Promise<string[]> {
  const program = createRequire(import.meta.url)
    .resolve('@redocly/cli/package.json')
    .replace('package.json', 'bin/cli.js');
  const args = [program, 'lint', '--extends', 'recommended', '--format', 'json', path];
  const env = { ...process.env, CI: 'true', REDOCLY_TELEMETRY: 'off', REDOCLY_SUPPRESS_UPDATE_NOTICE: 'true' };
  // It exits with 1 where it finds an error, and reports on standard output.
  const { stdout = '' } = await run(process.execPath, args, { env, cwd: PROJECT_ROOT }).catch(
    (error: unknown) => error as { readonly stdout?: string },
  );
  const { problems } = JSON.parse(stdout) as { problems: { ruleId: string; severity: string; message: string }[] };
  return problems.map(({ ruleId, severity, message }) => `${severity} ${ruleId}: ${message}`);
}

t.test("REF-14: Redocly's recommended rules find nothing in either document", async (t) => {
  const folder = await temporaryFolder(t);
  const path = (shape: Shape): string => join(folder, `openapi-${shape}.json`);
  for (const shape of SHAPES) {
    await writeFile(path(shape), JSON.stringify(documentOf(shape)));
    t.same(await lint(path(shape)), [], shape);
  }
  const twice = documentOf('a') as { readonly paths: Record<string, unknown> };
  await writeFile(path('a'), JSON.stringify({ ...twice, paths: { ...twice.paths, '/docs/': twice.paths['/docs'] } }));
  const found = (await lint(path('a'))).join('\n');
  t.match(found, /error operation-operationId-unique/, 'the linter detects a duplicate operation');
  t.match(found, /error no-path-trailing-slash/);
});

/** A program that uses the types as a client would: a field that is not in the document must not compile. */
const USE: Readonly<Record<Shape, string>> = {
  a: `import type { components, operations, paths } from './openapi-a.js';
type Reply = paths['/api/me']['get']['responses'][200]['content']['application/json'];
export const device = (me: Reply): string => me.device.id;
export const bin: components['schemas']['BinId'] = 'inbox';
export type Docs = operations['get_docs'];
// @ts-expect-error no such field
export const none = (me: Reply): unknown => me.nothing;
`,
  b: `import type { components, paths } from './openapi-b.js';
type Reply = paths['/api/me']['get']['responses'][200]['content']['application/json'];
export const device = (me: Reply): number => me.device.paired_at;
export const bin: components['schemas']['BinId'] = 'inbox';
// @ts-expect-error no such field
export const none = (me: Reply): unknown => me.nothing;
`,
};

t.test('REF-15: the types generated from both documents compile, and so does code that uses them', async (t) => {
  const folder = await temporaryFolder(t);
  await writeFile(join(folder, 'package.json'), '{ "type": "module" }');
  const roots: string[] = [];
  for (const shape of SHAPES) {
    const types = astToString(await openapiTS(documentOf(shape) as unknown as OpenAPI3));
    for (const [name, text] of [
      [`openapi-${shape}.ts`, types],
      [`use-${shape}.ts`, USE[shape]],
    ] as const) {
      roots.push(join(folder, name));
      await writeFile(join(folder, name), text);
    }
  }
  const { config } = ts.readConfigFile(join(PROJECT_ROOT, 'tsconfig.json'), ts.sys.readFile) as {
    config: { compilerOptions: object };
  };
  const { options } = ts.convertCompilerOptionsFromJson(
    {
      ...config.compilerOptions,
      rootDir: folder,
      types: [],
      plugins: [],
      incremental: false,
      tsBuildInfoFile: undefined,
    },
    folder,
  );
  const program = ts.createProgram(roots, { ...options, noEmit: true });
  const faults = ts.getPreEmitDiagnostics(program).map(({ file, messageText }) => {
    return `${file?.fileName ?? ''}: ${ts.flattenDiagnosticMessageText(messageText, '\n')}`;
  });
  t.same(faults, []);
});
