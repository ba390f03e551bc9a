/** Making, renaming and removing bins. */
import { useState } from 'preact/hooks';
import { isEmoji } from '../../protocol/ids.js';
import { DEFAULT_BIN, NAME_MAX } from '../../protocol/limits.js';
import type { BinRow } from '../link/messages.js';
import { Confirm, FormDialog } from './dialogs.js';
import { Button, Field } from './kit.js';
import { call, info } from './link.js';
import { text } from './strings.js';
import { useForm } from './task.js';

const words = text.bins;

/** Characters of an emoji with its modifiers. */
const EMOJI_MAX = 16;

interface BinDialogProps {
  /** Absent: a new bin is made, and `onMade` gets its id. */
  readonly bin?: BinRow;
  readonly onClose: () => void;
  readonly onMade?: (id: string) => void;
}

export function BinDialog({ bin, onClose, onMade }: BinDialogProps) {
  const [name, setName] = useState(bin?.name ?? '');
  const [emoji, setEmoji] = useState(bin?.emoji ?? '');
  const [removing, setRemoving] = useState(false);
  const label = { name: name.trim(), emoji: emoji.trim() };
  const wrongEmoji = label.emoji !== '' && !isEmoji(label.emoji);
  const save = async (): Promise<void> => {
    if (bin !== undefined) await call('binRename', { id: bin.id, ...label });
    else onMade?.((await call('binCreate', label)).id);
  };
  const form = useForm(label.name !== '' && !wrongEmoji, save, onClose);
  if (bin !== undefined && removing)
    return <RemoveDialog bin={bin} onClose={() => setRemoving(false)} onDone={onClose} />;
  return (
    <FormDialog
      title={bin === undefined ? words.create : words.edit}
      action={bin === undefined ? words.make : text.kit.save}
      other={
        bin !== undefined &&
        bin.id !== DEFAULT_BIN && (
          <Button kind="danger" onClick={() => setRemoving(true)}>
            {words.remove}
          </Button>
        )
      }
      form={form}
      onClose={onClose}
    >
      <Field
        label={text.kit.name}
        value={name}
        onValue={setName}
        maxLength={NAME_MAX}
        error={form.tried && label.name === '' ? words.noName : null}
        autoFocus
      />
      <Field
        label={words.emoji}
        value={emoji}
        onValue={setEmoji}
        maxLength={EMOJI_MAX}
        hint={words.emojiHint}
        error={form.tried && wrongEmoji ? words.noEmoji : null}
      />
    </FormDialog>
  );
}

function RemoveDialog({ bin, onClose, onDone }: { bin: BinRow; onClose: () => void; onDone: () => void }) {
  return (
    <Confirm
      title={words.removeTitle(bin.name || text.list.namelessBin)}
      action={words.remove}
      onYes={() => call('binRemove', bin.id).then(onDone)}
      onClose={onClose}
      meanwhile={<p>{words.removing(info.value?.waiting.count ?? 0)}</p>}
    >
      <p>{words.removeItems(bin.count)}</p>
    </Confirm>
  );
}
