/** Making, renaming and removing bins. */
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { NAME_MAX } from '../../protocol/limits.js';
import type { BinRow } from '../link/messages.js';
import { Button, Confirm, Dialog, Field } from './kit.js';
import { call } from './link.js';
import { Problem } from './screen.js';
import { text } from './strings.js';
import { useTask } from './task.js';

const words = text.bins;

/** Characters of an emoji with its modifiers. */
const EMOJI_MAX = 16;

/** `bin` absent: a new one. `onMade` gets its id. */
export function BinDialog({
  bin,
  onClose,
  onMade,
}: {
  readonly bin?: BinRow;
  readonly onClose: () => void;
  readonly onMade?: (id: string) => void;
}): JSX.Element {
  const [name, setName] = useState(bin?.name ?? '');
  const [emoji, setEmoji] = useState(bin?.emoji ?? '');
  const [removing, setRemoving] = useState(false);
  const [tried, setTried] = useState(false);
  const task = useTask();
  const submit = (): void => {
    setTried(true);
    if (name.trim() === '') return;
    task.run(async () => {
      const label = { name: name.trim(), emoji: emoji.trim() };
      if (bin !== undefined) await call('binRename', { id: bin.id, ...label });
      else onMade?.((await call('binCreate', label)).id);
      onClose();
    });
  };
  if (bin !== undefined && removing)
    return <RemoveDialog bin={bin} onClose={() => setRemoving(false)} onDone={onClose} />;
  return (
    <Dialog
      title={bin === undefined ? words.create : words.edit}
      onClose={onClose}
      onSubmit={submit}
      actions={
        <>
          {bin !== undefined && (
            <Button kind="danger" onClick={() => setRemoving(true)}>
              {words.remove}
            </Button>
          )}
          <Button kind="primary" submit busy={task.busy}>
            {bin === undefined ? words.make : words.save}
          </Button>
        </>
      }
    >
      <Field
        label={words.name}
        value={name}
        onValue={setName}
        maxLength={NAME_MAX}
        error={tried && name.trim() === '' ? words.noName : null}
        autoFocus
      />
      <Field label={words.emoji} value={emoji} onValue={setEmoji} maxLength={EMOJI_MAX} hint={words.emojiHint} />
      <Problem problem={task.problem} />
    </Dialog>
  );
}

function RemoveDialog({
  bin,
  onClose,
  onDone,
}: {
  readonly bin: BinRow;
  readonly onClose: () => void;
  readonly onDone: () => void;
}) {
  const task = useTask();
  const remove = (): void =>
    task.run(async () => {
      await call('binRemove', bin.id);
      onDone();
    });
  return (
    <Confirm
      title={words.removeTitle(bin.name || words.unnamed)}
      action={words.remove}
      busy={task.busy}
      onYes={remove}
      onClose={onClose}
    >
      <p>{words.removeItems(bin.count)}</p>
      <Problem problem={task.problem} />
    </Confirm>
  );
}
