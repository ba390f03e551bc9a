/** A program that uses the installed client, and what the compiler says of it. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import ts from 'typescript';
import { PROJECT_ROOT } from '../../src/root.js';

const TYPED = `
import { Device, Identity, type Glyph, type ItemView, type Platform, StoreError } from '@service/client';
import { browserPlatform, nodePlatform, openBrowserStore, openNodeStore } from '@service/client';
import * as node from '@service/client/node';
import * as browser from '@service/client/browser';
export const platforms: readonly Promise<Platform>[] = [nodePlatform(), browserPlatform()];
export const stores = [openNodeStore, openBrowserStore, node.openNodeStore, browser.openBrowserStore];
export const back = (saved: string): Identity => Identity.parse(saved);
export const saved = (identity: Identity): string => JSON.stringify(identity.toJSON());
export const opened = (identity: Identity, platform: Platform): Promise<Device> =>
  Device.open({ platform, identity, onProblem: () => undefined, onIdentity: (next) => saved(next) });
export const shown = async (device: Device): Promise<readonly ItemView[]> => device.list();
export const code = (error: StoreError): 'locked' | 'full' | string => error.code;
export const glyph: Glyph = 'laptop';
// @ts-expect-error: what is not typed would pass for anything
export const wrong = (device: Device): number => device.id;
// @ts-expect-error
export const house: Glyph = 'house';
// @ts-expect-error
export const none = (item: ItemView): boolean => item.binId;
`;

/** The language's own declarations are the same for all, and not what is tested. */
const libraries = new Map<string, ts.SourceFile | undefined>();

/** What gives a program its files. Programs that are made one after the other share the language's own declarations. */
export function hostOf(options: ts.CompilerOptions): ts.CompilerHost {
  const host = ts.createCompilerHost(options);
  const read = host.getSourceFile.bind(host);
  host.getSourceFile = (name, ...how) => {
    if (!name.includes('/typescript/lib/lib.')) return read(name, ...how);
    if (!libraries.has(name)) libraries.set(name, read(name, ...how));
    return libraries.get(name);
  };
  return host;
}

function problemsOf(file: string, options: ts.CompilerOptions): string[] {
  const all = { strict: true, noEmit: true, target: ts.ScriptTarget.ES2022, skipLibCheck: false, ...options };
  const program = ts.createProgram([file], { ...all, skipDefaultLibCheck: true }, hostOf(all));
  return ts
    .getPreEmitDiagnostics(program)
    .map((one) => `${one.file?.fileName ?? ''} ${ts.flattenDiagnosticMessageText(one.messageText, '\n')}`);
}

const DOM = { lib: ['lib.es2022.d.ts', 'lib.dom.d.ts', 'lib.dom.iterable.d.ts'], types: [] };
const NODE = {
  lib: ['lib.es2022.d.ts'],
  types: ['node'],
  typeRoots: [join(PROJECT_ROOT, 'node_modules/@types')],
};
const BUNDLER = { module: ts.ModuleKind.ESNext, moduleResolution: ts.ModuleResolutionKind.Bundler };

/** The ways in which the client's declarations are found. */
export const RESOLUTIONS = {
  node16: { module: ts.ModuleKind.Node16, ...DOM },
  nodenext: { module: ts.ModuleKind.NodeNext, ...NODE },
  bundler: { ...BUNDLER, ...DOM },
  'bundler for Node': { ...BUNDLER, customConditions: ['node'], ...NODE },
  'bundler for browsers': { ...BUNDLER, customConditions: ['browser'], ...DOM },
} as const satisfies Readonly<Record<string, object>>;

/** What the compiler finds wrong in a folder where the client is installed: nothing, or sentences. */
export async function typeProblems(app: string, how: keyof typeof RESOLUTIONS): Promise<string[]> {
  const file = join(app, 'typed.ts');
  await writeFile(file, TYPED);
  return problemsOf(file, structuredClone(RESOLUTIONS[how]) as ts.CompilerOptions);
}
