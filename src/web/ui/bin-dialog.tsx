/** The dialogs of a bin: make, edit, remove. */
import { useState } from 'preact/hooks';
import { isEmoji } from '../../protocol/ids.js';
import { DEFAULT_BIN, EMOJI_MAX, NAME_MAX } from '../../protocol/limits.js';
import type { BinRow } from '../link/messages.js';
import { Button, Field, useTyped, type Closable } from './kit.js';
import { call, info } from './link.js';
import { binId, go, itemId } from './route.js';
import { Confirm, FormDialog, useForm } from './screen.js';
import * as text from './strings.js';

const show = (id: string): void => go({ binId: id });

/** Makes a bin, for `onMade` or to show it, or edits the one that is given. */
export function BinDialog({ bin, onMade = show, onClose }: Closable & { bin?: BinRow; onMade?: (id: string) => void }) {
  const name = useTyped(bin?.name);
  const emoji = useTyped(bin?.emoji);
  const [removing, setRemoving] = useState(false);
  const label = { name: name.value.trim(), emoji: emoji.value.trim() };
  const wrongEmoji = label.emoji !== '' && !isEmoji(label.emoji);
  const save = async (): Promise<void> => {
    if (bin !== undefined) await call('binRename', { id: bin.id, ...label });
    else onMade((await call('binCreate', label)).id);
  };
  const form = useForm(label.name !== '' && !wrongEmoji, save, onClose);
  if (bin !== undefined && removing)
    return <RemoveDialog bin={bin} onClose={() => setRemoving(false)} onDone={onClose} />;
  return (
    <FormDialog
      title={bin === undefined ? text.bins.create : text.bins.edit}
      action={bin === undefined ? text.bins.make : text.kit.save}
      other={
        bin !== undefined &&
        bin.id !== DEFAULT_BIN && <Button kind="danger" onClick={() => setRemoving(true)} label={text.bins.remove} />
      }
      form={form}
      onClose={onClose}
    >
      <Field
        {...name}
        label={text.kit.name}
        maxLength={NAME_MAX}
        error={form.tried && label.name === '' && text.bins.noName}
      />
      <Field
        {...emoji}
        label={text.bins.emoji}
        maxLength={EMOJI_MAX}
        hint={text.bins.emojiHint}
        error={form.tried && wrongEmoji && text.bins.noEmoji}
      />
    </FormDialog>
  );
}

function RemoveDialog({ bin, onClose, onDone }: Closable & { bin: BinRow; onDone: () => void }) {
  const remove = async (): Promise<void> => {
    await call('binRemove', bin.id);
    if (binId.value === bin.id) go({ itemId: itemId.value }, true);
    onDone();
  };
  return (
    <Confirm
      title={text.bins.removeTitle(bin.name || text.list.namelessBin)}
      action={text.bins.remove}
      onYes={remove}
      onClose={onClose}
      meanwhile={<p>{text.bins.removing(info.value?.waiting.count ?? 0)}</p>}
    >
      <p>{text.bins.removeItems(bin.count)}</p>
    </Confirm>
  );
}
