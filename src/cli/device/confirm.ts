/** Asking before something is gone. */
import { CommandError, EXIT, type Terminal } from './terminal.js';

/** Resolves on a yes. Throws `CommandError` where the answer is no, or where nobody can be asked and `yes` is not set. */
export async function confirmed(terminal: Terminal, question: string, yes: boolean | undefined): Promise<void> {
  if (yes === true) return;
  if (!terminal.interactive) {
    throw new CommandError(EXIT.usage, 'nobody can be asked here', 'Add --yes if you are sure.');
  }
  const answer = await terminal.ask(`${question} [y/N] `);
  if (!/^y(es)?$/i.test(answer.trim())) {
    throw new CommandError(EXIT.failure, 'nothing was done', undefined, { code: 'declined' });
  }
}
