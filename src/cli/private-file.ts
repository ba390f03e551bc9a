/** Reading a profile's private files at the command line: a refusal says what to type. */
import { PrivateFileError, readPrivate as read, type Warn } from '../files/private.js';
import { CommandError, EXIT } from '../terminal/terminal.js';

/** `readPrivate` of the client, whose refusal it turns into a `CommandError`. */
export async function readPrivate(path: string, max: number, warn: Warn): Promise<Buffer | undefined> {
  try {
    return await read(path, max, warn);
  } catch (error) {
    if (!(error instanceof PrivateFileError)) throw error;
    throw new CommandError(EXIT.failure, error.message, `Mend it with: chmod 600 ${path}`, { cause: error });
  }
}
