/** Asking before something is gone. */
import { CommandError, Declined, EXIT, type Terminal } from './terminal.js';

/** Resolves on a yes. Throws `Declined` where the answer is no, `CommandError` where nobody can be asked and `yes` is not set. */
export async function confirmed(terminal: Terminal, question: string, yes: boolean | undefined): Promise<void> {
  if (yes === true) return;
  if (!terminal.interactive) {
    throw new CommandError(EXIT.usage, 'nobody can be asked here', 'Add --yes if you are sure.');
  }
  const answer = await terminal.ask(`${question} [y/N] `);
  if (!isYes(answer)) throw new Declined('Nothing was done.');
}

/** True for a yes; anything else is a no. */
export const isYes = (answer: string): boolean => /^y(es)?$/i.test(answer.trim());
