/** The program of a device, and its name. */
import { SERVICE_NAME } from '../protocol/limits.js';
import type { ProgramCommand } from '../terminal/command.js';
import type { Context } from './context.js';

/** The program's name, as it is typed. */
export const PROGRAM_NAME = `${SERVICE_NAME}-device`;

/** The program, or one of its commands. */
export type DeviceCommand = ProgramCommand<Context>;
