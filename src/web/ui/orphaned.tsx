/** A notice of items that a restored server lost. */
import { Button, Notice, useOwnDialog } from './kit.js';
import { call } from './link.js';
import { ask, Problem, useTask } from './screen.js';
import * as text from './strings.js';

const words = text.notices;

/** Items that a restored server lost. `live`: screen readers announce it. */
export function Orphaned({ count, live = false }: { count: number; live?: boolean }) {
  const task = useTask();
  const question = useOwnDialog();
  const discard = (): void => {
    question.current = ask({
      title: words.discardTitle,
      action: text.kit.discard,
      onYes: () => call('orphans', 'discard'),
      children: <p>{words.discardText}</p>,
    });
  };
  return (
    <>
      <Notice
        kind="warn"
        title={words.orphaned(count)}
        live={live}
        actions={
          <>
            <Button {...task.button(() => call('orphans', 'republish'))} label={words.republish} />
            <Button kind="quiet" busy={task.busy} onClick={discard} label={text.kit.discard} />
          </>
        }
      >
        {words.orphanedText}
      </Notice>
      <Problem problem={task.problem} />
    </>
  );
}
