/** Making, renaming and removing bins. */
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { isEmoji } from '../../protocol/ids.js';
import { DEFAULT_BIN, NAME_MAX } from '../../protocol/limits.js';
import type { BinRow } from '../link/messages.js';
import { Button, Confirm, Dialog, Field } from './kit.js';
import { call, info } from './link.js';
import { Problem } from './screen.js';
import { text } from './strings.js';
import { useTask } from './task.js';

const words = text.bins;

/** Characters of an emoji with its modifiers. */
const EMOJI_MAX = 16;

const emojiFault = (emoji: string): string | null => (emoji === '' || isEmoji(emoji) ? null : words.noEmoji);

/** `bin` absent: creates a new one, and `onMade` gets its id. */
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
    const label = { name: name.trim(), emoji: emoji.trim() };
    if (label.name === '' || emojiFault(label.emoji) !== null) return;
    task.run(async () => {
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
          {bin !== undefined && bin.id !== DEFAULT_BIN && (
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
      <EmojiField value={emoji} onValue={setEmoji} error={tried ? emojiFault(emoji.trim()) : null} />
      <Problem problem={task.problem} />
    </Dialog>
  );
}

function EmojiField(field: {
  readonly value: string;
  readonly onValue: (value: string) => void;
  readonly error: string | null;
}) {
  return <Field {...field} label={words.emoji} maxLength={EMOJI_MAX} hint={words.emojiHint} />;
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
      <p>{task.busy ? words.removing(info.value?.waiting.count ?? 0) : words.removeItems(bin.count)}</p>
      <Problem problem={task.problem} />
    </Confirm>
  );
}
