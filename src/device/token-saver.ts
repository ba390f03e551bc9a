/** Saving renewed tokens. */
import { Saver, type SaverOptions } from '../files/saver.js';
import type { Identity } from '../sdk/identity.js';

/** Saves renewed tokens. A failure with the last one's text is not reported again: the token in memory stays in use. */
export function tokenSaver({
  failed,
  note,
  ...how
}: Pick<SaverOptions<Identity>, 'save' | 'clock'> & {
  readonly failed: (error: unknown) => string;
  readonly note: (text: string) => void;
}): Saver<Identity> {
  let reported = '';
  return new Saver({
    ...how,
    onFailure: (error) => {
      const text = failed(error);
      if (text !== reported) note(text);
      reported = text;
    },
    onRecovery: () => {
      reported = '';
      note('The renewed token is saved now.');
    },
  });
}
