/** What becoming a device and the other commands share: options of a new device, and names. */
import { Option } from 'commander';
import { freeName, isDisplayName } from '../protocol/ids.js';
import type { Glyph } from '../protocol/requests.js';
import { sanitizeText } from '../protocol/sanitize.js';
import { GLYPHS } from '../sdk/api.js';
import type { DeviceEntry } from '../sdk/replies.js';
import type { CommandOptions } from '../terminal/program.js';
import { usageError } from '../terminal/terminal.js';
import { PROGRAM_NAME, type Context, type DeviceCommand } from './context.js';

export type NewcomerOptions = CommandOptions<'name' | 'passwordFile'> & { readonly glyph: Glyph };

export const newcomerOptions = (command: DeviceCommand): DeviceCommand =>
  command
    .option('--name <name>', "this device's name, as the others see it (default: this machine's name)")
    .addOption(new Option('--glyph <glyph>', 'its picture').choices(GLYPHS).default('laptop'));

export const passwordOption = (command: DeviceCommand): DeviceCommand =>
  command.option('--password-file <path>', 'the account password, for scripts ("-": standard input)');

/**
 * Proposes a free name for a device that has joined or recovered where another one has the same: before that it cannot
 * know the names of the others.
 */
export function proposeName(
  { terminal }: Pick<Context, 'terminal'>,
  { id, name }: Pick<DeviceEntry, 'id' | 'name'>,
  all: readonly DeviceEntry[],
): void {
  const others = all.filter((device) => device.id !== id && device.revokedAt === null).map((device) => device.name);
  const free = freeName(name, others);
  if (free === name) return;
  const command = `${PROGRAM_NAME} rename ${id} "${sanitizeText(free)}"`;
  terminal.note(`Another of your devices is "${sanitizeText(name)}" too. To give the new one its own name: ${command}`);
}

/** The name without white space around it. Throws `CommandError` for an invalid one. */
export function checkedName(of: 'device' | 'bin', typed: string): string {
  const name = typed.trim();
  if (isDisplayName(name)) return name;
  const rule = 'name must have 1 to 64 characters, at least one of them visible, and no control characters';
  throw usageError(`a ${of} ${rule}`);
}
