/** The structure of the source: which folder may import which, no cycles, one home per library. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative, resolve } from 'node:path';
import t from 'tap';
import { PROJECT_ROOT } from '../src/root.js';

const SRC = join(PROJECT_ROOT, 'src');

/** What every subject of the server may import. */
const BELOW_SUBJECTS = ['protocol', 'crypto', 'server/tenant', 'server/http', 'server/storage'] as const;
/** What every program of a device may import. */
const BELOW_PROGRAMS = ['protocol', 'files', 'terminal', 'crypto', 'sdk', 'device'] as const;

/**
 * What each package, and each room of the server, may import beside itself: only entries that this list has before it.
 * A package is a folder of `src`; a room is a folder of `src/server`.
 */
const MAY: Readonly<Record<string, readonly string[]>> = {
  '.': [],
  protocol: [],
  files: ['protocol'],
  terminal: ['protocol', 'files'],
  crypto: ['protocol'],
  sdk: ['protocol', 'files', 'crypto'],
  device: ['protocol', 'files', 'terminal', 'crypto', 'sdk'],
  import: ['protocol', 'crypto', 'sdk'],
  cli: ['.', 'import', ...BELOW_PROGRAMS],
  mcp: ['.', ...BELOW_PROGRAMS],
  load: ['.', 'protocol', 'files', 'terminal', 'crypto', 'sdk'],
  // Its build is a program of Node; WEB-13 checks what is bundled for browsers.
  web: ['.', 'protocol', 'crypto', 'sdk', 'import'],
  docs: ['protocol'],
  'server/config': ['protocol', 'files'],
  'server/tenant': ['protocol'],
  'server/http': ['protocol', 'server/tenant'],
  'server/realtime': ['protocol', 'server/tenant', 'server/http'],
  'server/storage': ['protocol', 'files', 'crypto', 'server/tenant'],
  'server/items': BELOW_SUBJECTS,
  'server/devices': BELOW_SUBJECTS,
  'server/pairing': BELOW_SUBJECTS,
  'server/bins': BELOW_SUBJECTS,
  'server/blobs': ['files', ...BELOW_SUBJECTS],
  'server/hosting': BELOW_SUBJECTS,
  // Only hosted tenants are billed.
  'server/billing': ['server/hosting', ...BELOW_SUBJECTS],
  'server/ops': ['protocol', 'server/storage'],
  'server/app': [
    // Of `docs` only the build: a server reads the pages that were written.
    ...['.', 'docs', ...BELOW_SUBJECTS, 'server/config', 'server/realtime', 'server/items', 'server/devices'],
    ...['server/pairing', 'server/bins', 'server/blobs', 'server/hosting', 'server/billing', 'server/ops'],
  ],
  server: ['.', 'protocol', 'server/config', 'server/http', 'server/storage', 'server/app'],
  // The operator's program uses the server's parts, without a server.
  'server/admin': [
    ...['.', 'protocol', 'files', 'terminal', 'server/config', 'server/storage', 'server/devices', 'server/blobs'],
    ...['server/hosting', 'server/ops', 'server/app'],
  ],
  demo: ['.', ...BELOW_PROGRAMS],
  // Programs of the build.
  packages: ['.'],
};

/** A library with side effects, and the folders that import it: one, or two that are one subject. */
const HOMES: Readonly<Record<string, readonly string[]>> = {
  'uWebSockets.js': ['server/http', 'server/realtime'],
  pg: ['server/storage'],
  'pg-listen': ['server/storage'],
  'pg-copy-streams': ['server/storage'],
  'sodium-native': ['crypto'],
  'libsodium-wrappers-sumo': ['crypto'],
  '@scure/bip39': ['crypto'],
  ws: ['sdk', 'load'],
  'classic-level': ['sdk'],
  commander: ['terminal', 'cli', 'server/admin'],
  '@napi-rs/keyring': ['cli'],
  uqr: ['cli', 'web'],
  mime: ['import'],
  kdbxweb: ['import'],
  'hash-wasm': ['import'],
  marked: ['docs'],
  'prom-client': ['server/ops'],
  'tar-stream': ['server/admin', 'docs'],
  pino: ['server', 'server/admin'],
  stripe: ['server/billing'],
  '@google-cloud/storage': ['server/blobs'],
  '@aws-sdk/client-s3': ['server/blobs'],
  '@aws-sdk/s3-request-presigner': ['server/blobs'],
  '@modelcontextprotocol/sdk': ['mcp'],
  zod: ['mcp'],
  preact: ['web'],
  '@preact/signals': ['web'],
  'lucide-preact': ['web'],
  // Bundles scripts for browsers, when the project is built.
  esbuild: ['web', 'docs'],
  typescript: ['packages'],
};

/** Libraries without side effects; the last one is what the reference's examples import. */
const ANYWHERE: ReadonlySet<string> = new Set(['typia', 'ulid', '@service/client']);

interface Import {
  readonly from: string;
  readonly target: string;
  /** `import type`: gone after compilation. */
  readonly typeOnly: boolean;
}

function filesIn(folder: string): string[] {
  return readdirSync(folder, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile() && /\.tsx?$/.test(entry.name))
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

/** The file's package, or its room in the server. */
const folderOf = (file: string): string => {
  const [first = '', second = '', third] = relative(SRC, file).split('/');
  if (second === '') return '.';
  return first === 'server' && third !== undefined ? `${first}/${second}` : first;
};

const isRelative = ({ target }: Import): boolean => target.startsWith('.');
const resolved = ({ from, target }: Import): string => {
  const path = resolve(dirname(from), target.replace(/\.js$/, '.ts'));
  return existsSync(path) ? path : `${path}x`;
};
const libraryOf = (target: string): string =>
  target
    .split('/')
    .slice(0, target.startsWith('@') ? 2 : 1)
    .join('/');

const files = filesIn(SRC);
const imports = files.flatMap(importsOf);
const shown = (entry: Import): string => `${relative(SRC, entry.from)} -> ${entry.target}`;

t.test('ARCH-01 ARCH-06: a folder imports only itself and what its subject stands on', (t) => {
  const wrong = imports.filter(isRelative).filter((entry) => {
    const from = folderOf(entry.from);
    const to = folderOf(resolved(entry));
    return from !== to && MAY[from]?.includes(to) !== true;
  });
  t.same(wrong.map(shown), []);
  t.ok(files.length > 30, 'the source was found');
  t.end();
});

t.test('ARCH-02: packages and rooms form no cycle', (t) => {
  const order = Object.keys(MAY);
  const upwards = order.flatMap((from) =>
    (MAY[from] ?? []).filter((to) => order.indexOf(to) >= order.indexOf(from)).map((to) => `${from} -> ${to}`),
  );
  t.same(upwards, []);
  t.same(
    [...new Set(files.map(folderOf))].filter((folder) => MAY[folder] === undefined),
    [],
    'every folder is in the list',
  );
  t.end();
});

t.test('ARCH-02: files form no import cycle, type imports included', (t) => {
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

/** The files that the package exports (package.json, `exports`): entries that re-export, as no other file may. */
const ENTRIES: ReadonlySet<string> = new Set(['sdk/node.ts', 'sdk/browser.ts', 'sdk/exports.ts']);

t.test('ARCH-03: no file is a barrel, except the entries of the package', (t) => {
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
  t.same(fromEntry.map(shown), [], 'no file inside imports from an entry');
  t.same(
    files.filter((file) => file.endsWith('/index.ts')),
    [],
  );
  t.end();
});

t.test('ARCH-04: each library with side effects is imported only in its home', (t) => {
  const libraries = imports.filter((entry) => !isRelative(entry) && !entry.target.startsWith('node:'));
  const strays = libraries
    .filter((entry) => !entry.typeOnly && !ANYWHERE.has(libraryOf(entry.target)))
    .filter((entry) => HOMES[libraryOf(entry.target)]?.includes(folderOf(entry.from)) !== true);
  t.same(strays.map(shown), []);
  const used = new Set(libraries.map((entry) => `${libraryOf(entry.target)} in ${folderOf(entry.from)}`));
  const homes = Object.entries(HOMES).flatMap(([name, folders]) => folders.map((folder) => `${name} in ${folder}`));
  t.same(
    homes.filter((home) => !used.has(home)),
    [],
    'no home is left of an import that is gone',
  );
  t.end();
});

t.test('ARCH-05: the protocol imports no library and does no input or output', (t) => {
  const outside = imports.filter(
    (entry) => folderOf(entry.from) === 'protocol' && !isRelative(entry) && !entry.typeOnly,
  );
  t.same(outside.map(shown), []);
  // What needs no import: networks, storage, the process and its console. The clock's timers are no input or output.
  const globals =
    /(?<![\w.'])(fetch|WebSocket|XMLHttpRequest|EventSource|indexedDB|localStorage|process|console|globalThis)\b[.(]/;
  const reaching = files
    .filter((file) => folderOf(file) === 'protocol')
    .filter((file) => globals.test(readFileSync(file, 'utf8').replace(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, '')));
  t.same(
    reaching.map((file) => relative(SRC, file)),
    [],
  );
  t.ok(files.filter((file) => folderOf(file) === 'protocol').length > 10, 'the files were found');
  t.end();
});

t.test(
  'ARCH-06: the shared part of the client, and the readers of exports, import neither Node built-ins nor the folder `files`',
  (t) => {
    const nodeOnly = /\/(node-[a-z-]+|[a-z-]+-node)\.ts$/;
    const builtIns = imports.filter(
      (entry) =>
        ['sdk', 'crypto', 'protocol', 'import'].includes(folderOf(entry.from)) &&
        (entry.target.startsWith('node:') || (isRelative(entry) && folderOf(resolved(entry)) === 'files')) &&
        !nodeOnly.test(entry.from),
    );
    t.same(builtIns.map(shown), []);
    t.end();
  },
);

t.test('ARCH-08: only the edge, and the code that turns frames into text, knows shapes', (t) => {
  const allowed = [
    'protocol',
    'docs',
    'sdk',
    'cli',
    'load',
    'demo',
    'server/config',
    'server/tenant',
    'server/app',
  ].concat(
    ['server/http', 'server/realtime', 'server/items', 'server/devices', 'server/blobs'], // which read and write bodies
  );
  const strays = files.filter((file) => {
    if (allowed.includes(folderOf(file))) return false;
    return /\bshape\b(?!-rendering)/i.test(readFileSync(file, 'utf8').replace(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, ''));
  });
  t.same(
    strays.map((file) => relative(SRC, file)),
    [],
  );
  t.end();
});

t.test(
  'CFG-08: the server reads its environment in one place; two others pass it on to processes, one to a library',
  (t) => {
    t.same(
      files
        .filter((file) => readFileSync(file, 'utf8').includes('process.env'))
        .map((file) => relative(SRC, file))
        .filter((file) => /^(server|files|protocol|crypto)\//.test(file))
        .sort(),
      [
        'server/app/instances.ts',
        'server/main.ts',
        'server/realtime/head-limit.ts',
        'server/storage/embedded/process.ts',
      ],
    );
    t.end();
  },
);

/** The store orders its readers and writers: a queue of another kind. */
const OWN_CHAINS: ReadonlySet<string> = new Set(['sdk/store/level-store.ts']);

t.test('WORK-07: no file chains promises by hand to do one thing at a time', (t) => {
  // `this.x = this.x.then(`, also through a variable, and `x ??= work().finally(`: what Serial and SingleFlight do.
  const chain =
    /(\w+) = (this\.\w+)\.then\([^;]*;\s*\2 = \1\b|\b((?:this\.)?\w+) = \3\.(?:then|finally)\(|\?\?=[^;]*\.finally\(/;
  const strays = files
    .map((file) => relative(SRC, file))
    .filter((file) => !OWN_CHAINS.has(file) && chain.test(readFileSync(join(SRC, file), 'utf8')));
  t.same(strays, []);
  t.end();
});

t.test("ARCH-09: the service's name comes from one constant", (t) => {
  const literal = /'service\/v1|'service-(?!device|admin|mcp|load)[a-z-]+-v1'/;
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
    'epochs',
    'notice_key',
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
  t.equal(tables.length, sql.match(/CREATE [A-Z ]*TABLE /g)?.length, 'every table was found');
  const without = tables.filter(([, name, body]) => !shared.has(name ?? '') && !/^\s*tenant_id /m.test(body ?? ''));
  t.same(
    without.map(([, name]) => name),
    [],
  );
  t.end();
});
