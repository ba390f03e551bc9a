/** What becoming a device and the other commands share: options of a new device, names, secrets from files. */
import { readFile, stat } from 'node:fs/promises';
import { basename } from 'node:path';
import { Option } from 'commander';
import { ifThere } from '../files/there.js';
import { isDisplayName } from '../protocol/ids.js';
import type { Glyph } from '../protocol/requests.js';
import { GLYPHS } from '../sdk/api.js';
import { type Terminal, usageError } from '../terminal/terminal.js';
import type { DeviceCommand } from './context.js';

/** Options of every new device. */
export interface NewcomerOptions {
  readonly name?: string;
  readonly glyph: Glyph;
  readonly passwordFile?: string;
}

const SECRET_FILE_MAX = 4_096;

/** Adds name and glyph. */
export const newcomerOptions = (command: DeviceCommand): DeviceCommand =>
  command
    .option('--name <name>', "this device's name, as the others see it (default: this machine's name)")
    .addOption(new Option('--glyph <glyph>', 'its picture').choices(GLYPHS).default('laptop'));

/** Adds the account password for scripts. */
export const passwordOption = (command: DeviceCommand): DeviceCommand =>
  command.option('--password-file <path>', 'the account password, for scripts ("-": standard input)');

/** The name without white space around it. Throws `CommandError` for an invalid one. */
export function checkedName(of: 'device' | 'bin', typed: string): string {
  const name = typed.trim();
  if (isDisplayName(name)) return name;
  const rule = 'name must have 1 to 64 characters, at least one of them visible, and no control characters';
  throw usageError(`a ${of} ${rule}`);
}

/** The first line of a file, or of standard input (`-`). */
export async function secretFrom(terminal: Terminal, path: string): Promise<string> {
  const bytes = path === '-' ? await terminal.readInput(SECRET_FILE_MAX) : await readSecretFile(path);
  const line = bytes.toString('utf8').split(/\r?\n/)[0] ?? '';
  if (line.trim() === '') throw usageError('the file with the secret is missing or empty');
  return line;
}

/** Empty where there is no such file. */
async function readSecretFile(path: string): Promise<Buffer> {
  const found = await ifThere(() => stat(path));
  if (found === undefined) return Buffer.alloc(0);
  if (found.size > SECRET_FILE_MAX) throw usageError(`${basename(path)} is larger than any secret`);
  return (await ifThere(() => readFile(path))) ?? Buffer.alloc(0);
}
