/** The developer's guide is correct: its examples compile against the package's entries, its tables are complete. */
import t from 'tap';
import ts from 'typescript';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { REASONS } from '../src/sdk/reasons.js';
import { SEARCHED } from '../src/sdk/query.js';
import { PROJECT_ROOT } from '../src/root.js';

const guide = readFileSync(join(PROJECT_ROOT, 'src/docs/sdk.md'), 'utf8');
const source = (name: string): string => readFileSync(join(PROJECT_ROOT, 'src/sdk', name), 'utf8');

interface Snippet {
  readonly where: 'node' | 'browser';
  readonly line: number;
  readonly code: string;
}

const snippets: readonly Snippet[] = [...guide.matchAll(/^```ts( browser)?\n(.*?)^```$/gms)].map((match) => ({
  where: match[1] === undefined ? 'node' : 'browser',
  line: guide.slice(0, match.index).split('\n').length,
  code: match[2] ?? '',
}));

/** Each example is a module of its own; the one name that they share is the device. */
const moduleOf = ({ code }: Snippet): string =>
  `import type { Device as OpenDevice } from '@service/client';\ndeclare const device: OpenDevice;\n` +
  `${/\bdevice\b/.test(code) ? '' : 'void device;\n'}export {};\n${code}`;

function problemsOf(where: Snippet['where'], folder: string): string[] {
  const files = snippets.flatMap((snippet) => {
    if (snippet.where !== where) return [];
    const file = join(folder, `guide-line-${snippet.line}.ts`);
    writeFileSync(file, moduleOf(snippet));
    return [file];
  });
  const program = ts.createProgram(files, {
    target: ts.ScriptTarget.ES2023,
    lib: ['lib.es2023.d.ts', 'lib.dom.d.ts', 'lib.dom.iterable.d.ts'],
    module: ts.ModuleKind.NodeNext,
    moduleResolution: ts.ModuleResolutionKind.NodeNext,
    strict: true,
    noEmit: true,
    skipLibCheck: true,
    verbatimModuleSyntax: true,
    types: [],
    paths: { '@service/client': [join(PROJECT_ROOT, `build/src/sdk/${where}.d.ts`)] },
  });
  return ts.getPreEmitDiagnostics(program).map(({ messageText, file, start = 0 }) => {
    const line = file === undefined ? '' : `:${file.getLineAndCharacterOfPosition(start).line + 1}`;
    return `${file?.fileName ?? ''}${line} ${ts.flattenDiagnosticMessageText(messageText, '\n')}`;
  });
}

t.test('SDK-23: every example of the guide compiles against the package’s entry', (t) => {
  const folder = mkdtempSync(join(PROJECT_ROOT, 'build', 'guide-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  writeFileSync(join(folder, 'package.json'), '{"type":"module"}');
  t.ok(snippets.length >= 12, `${snippets.length} examples were found`);
  t.same(problemsOf('node', folder), []);
  t.same(problemsOf('browser', folder), []);
  t.end();
});

/** The names that an entry exports, types included. */
function namesOf(where: Snippet['where']): string[] {
  const entry = join(PROJECT_ROOT, `build/src/sdk/${where}.d.ts`);
  const program = ts.createProgram([entry], { noEmit: true, skipLibCheck: true, types: [] });
  const file = program.getSourceFile(entry);
  const symbol = file === undefined ? undefined : program.getTypeChecker().getSymbolAtLocation(file);
  return symbol === undefined
    ? []
    : program
        .getTypeChecker()
        .getExportsOfModule(symbol)
        .map(({ name }) => name)
        .sort();
}

t.test('SDK-25 SDK-30: both entries export the same names, among them every name in the guide', (t) => {
  const common = namesOf('node');
  for (const name of ['nodePlatform', 'openNodeStore', 'browserPlatform', 'openBrowserStore', 'OpenedBrowserStore'])
    t.ok(common.includes(name), name);
  t.same(namesOf('browser'), common);
  // Settings of the server and names of the language, which are not the library's.
  const others = new Set(['BOOTSTRAP_TOKEN', 'CORS_ORIGINS', 'RangeError']);
  const named = [
    ...guide.matchAll(
      /`([A-Z][A-Za-z]*[a-z][A-Za-z]*|[A-Z]+(?:_[A-Z]+)+|REASONS|SEARCHED|\w+(?=\([^`]*\)`))(?:\([^`]*\))?`/g,
    ),
  ]
    .map((match) => match[1] ?? '')
    .filter((name) => /^[A-Z]/.test(name) && !others.has(name));
  t.ok(named.includes('ApiError') && named.includes('REASONS') && named.includes('DeviceStatus'));
  t.same(
    [...new Set(named)].filter((name) => !common.includes(name)),
    [],
  );
  t.end();
});

/** Names in back quotes in one cell, by default the first, of each table row in the section under a heading. */
function firstCells(heading: string, cell = 0): string[] {
  const section = guide.split(/^## /m).find((part) => part.startsWith(`${heading}\n`)) ?? '';
  const rows = section.split('\n').filter((row) => row.startsWith('| `'));
  return rows.flatMap((row) => [...(row.split(' | ')[cell] ?? '').matchAll(/`(\w+)`/g)].map((match) => match[1] ?? ''));
}

t.test('SDK-24: the guide’s tables name every event, reason, error code and searched content type', (t) => {
  const events = /interface DeviceEvents \{(.*?)^\}/ms.exec(source('events.ts'))?.[1] ?? '';
  const names = [...events.matchAll(/^ {2}readonly (\w+):/gm)].map((match) => match[1] ?? '');
  t.ok(names.length > 15);
  t.same(firstCells('Events').sort(), names.sort());
  t.same(firstCells('Reasons').sort(), Object.keys(REASONS).sort());
  for (const { meaning, whatToDo } of Object.values(REASONS)) {
    t.ok(guide.includes(meaning), meaning);
    t.ok(guide.includes(whatToDo), whatToDo);
  }
  t.same(
    firstCells('Live queries')
      .filter((name) => Object.hasOwn(SEARCHED, name))
      .sort(),
    Object.keys(SEARCHED).sort(),
  );
  const codes = firstCells('Errors', 1);
  for (const union of ['ClientFailure', 'PairingFailure', 'ProtocolFault']) {
    const body = new RegExp(`type ${union} =(.*?);`, 's').exec(source('errors.ts'))?.[1] ?? '';
    const known = [...body.matchAll(/\| '(\w+)'/g)].map((match) => match[1] ?? '');
    t.ok(known.length > 5, union);
    t.same(
      known.filter((code) => !codes.includes(code)),
      [],
      union,
    );
  }
  t.end();
});
