/** A program that uses the installed client, and what the compiler says of it. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { PROJECT_ROOT } from '../../src/root.js';
import { compile } from './compile.js';

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

const BASE = { strict: true, noEmit: true, target: 'es2022', skipDefaultLibCheck: true };
const DOM = { ...BASE, lib: ['es2022', 'dom', 'dom.iterable'], types: [] };
const NODE = {
  ...BASE,
  lib: ['es2022'],
  types: ['node'],
  typeRoots: [join(PROJECT_ROOT, 'node_modules/@types')],
};
const BUNDLER = { module: 'esnext', moduleResolution: 'bundler' };

/** The ways in which the client's declarations are found. */
export const RESOLUTIONS = {
  node16: { module: 'node16', ...DOM },
  nodenext: { module: 'nodenext', ...NODE },
  bundler: { ...BUNDLER, ...DOM },
  'bundler for Node': { ...BUNDLER, customConditions: ['node'], ...NODE },
  'bundler for browsers': { ...BUNDLER, customConditions: ['browser'], ...DOM },
} as const satisfies Readonly<Record<string, object>>;

/** What the compiler finds wrong in a folder where the client is installed: nothing, or sentences. */
export async function typeProblems(app: string, how: keyof typeof RESOLUTIONS): Promise<string[]> {
  const file = join(app, 'typed.ts');
  await writeFile(file, TYPED);
  return compile([file], RESOLUTIONS[how]);
}
