/** What this program is called (contract 1). */
import { SERVICE_NAME } from '../../protocol/limits.js';

/** The command, as a person types it. */
export const PROGRAM_NAME = `${SERVICE_NAME}-device`;
