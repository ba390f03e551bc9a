/** One item: its view and its edit form. */
import { useSignal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import type { JsonObject } from '../../crypto/payload.js';
import type { ItemDetail } from '../link/messages.js';
import { attempt, binName, keep, toEdit } from './actions.js';
import { Confirm } from './dialogs.js';
import { copyItem } from './clipboard.js';
import { download } from './content.js';
import { ArrowLeft, Copy, Download, Pencil, Search, Undo2 } from 'lucide-preact';
import { ItemBody } from './item-body.js';
import { draftOf, fieldOf, KindFields, payloadOf, type DraftErrors } from './fields.js';
import { KIND_ICONS } from './kinds.js';
import { honest } from './honest.js';
import { Button, EmptyState, Notice, OneLine, submits } from './kit.js';
import { Menu } from './menu.js';
import { call, devices, info, isRevoked, useItem } from './link.js';
import { leave } from './route.js';
import { copyLabel, entriesOf, SecondsTo } from './row.js';
import { text } from './strings.js';
import { keepDraft, keptDraft } from './unsaved.js';

const words = text.item;

/** The item that is open. */
export function ItemView({ id }: { id: string }) {
  const item = useItem(id);
  if (item === undefined) return <ItemFrame title="" />;
  if (item === null) keepDraft(id, undefined);
  if (item === null)
    return (
      <ItemFrame title="">
        <EmptyState icon={Search} title={words.goneTitle}>
          <p>{words.gone}</p>
          <Button onClick={leave}>{words.back}</Button>
        </EmptyState>
      </ItemFrame>
    );
  return <Known key={item.id} item={item} />;
}

function ItemFrame(props: { title: string; actions?: ComponentChildren; children?: ComponentChildren }) {
  return (
    <article class="item" aria-label={words.label}>
      <header class="item-head">
        <Button kind="icon" icon={ArrowLeft} label={words.back} onClick={leave} />
        <span class="grow small quiet">{props.title}</span>
        {props.actions}
      </header>
      <div class="item-body">{props.children}</div>
    </article>
  );
}

function Known({ item }: { item: ItemDetail }) {
  const editing = useSignal(false);
  const whole = useSignal<JsonObject | null>(null);
  const { id, type, cut, version } = item;
  // The whole payload that was read belongs to one version only.
  useEffect(() => void (whole.value = null), [version]);
  const readWhole = async (): Promise<boolean> =>
    !cut || attempt(call('wholePayload', id).then((payload) => (whole.value = payload)));
  const edit = (): void => void readWhole().then((done) => (editing.value = done));
  useEffect(() => {
    // An unsaved draft is shown again.
    if (toEdit.value !== id && keptDraft(id) === undefined) return;
    if (toEdit.value === id) toEdit.value = null;
    edit();
  }, [toEdit.value]);
  const payload = whole.value ?? item.payload;
  if (editing.value) return <Editing item={item} payload={payload} onEnd={() => (editing.value = false)} />;
  return (
    <ItemFrame title={text.list.kind[type]} actions={<HeadActions item={item} onEdit={edit} />}>
      {item.removeAt !== null && <Removing item={item} at={item.removeAt} />}
      <Title item={item} />
      <ItemBody item={item} payload={payload} />
      {cut && whole.value === null && (
        <p class="line wrap">
          <span class="quiet">{words.cut}</span>
          <Button onClick={() => void readWhole()}>{words.whole}</Button>
        </p>
      )}
      <Facts item={item} />
    </ItemFrame>
  );
}

function HeadActions({ item, onEdit }: { item: ItemDetail; onEdit: () => void }) {
  return (
    <>
      {item.file === null ? (
        <Button kind="icon" icon={Copy} label={copyLabel(item)} onClick={() => void copyItem(item)} />
      ) : (
        <Button kind="icon" icon={Download} label={text.list.download} onClick={() => void download(item)} />
      )}
      {!isRevoked.value && <Button kind="icon" icon={Pencil} label={text.list.edit} onClick={onEdit} />}
      <Menu label={text.list.more(item.title)} entries={entriesOf(item)} />
    </>
  );
}

/** The heading takes the focus when the item is opened, so that screen readers read it. */
function Title({ item }: { item: ItemDetail }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useLayoutEffect(() => {
    // The focus stays in the list if it is there.
    if (document.activeElement?.closest('.list-box') == null) heading.current?.focus({ preventScroll: true });
  }, []);
  const Sign = KIND_ICONS[item.type];
  // The title of a note is its beginning, and would be shown twice.
  const repeated = item.type === 'text' || (item.type === 'code' && fieldOf(item.payload, 'label') === '');
  return (
    <div class={repeated ? 'sr' : 'item-title'}>
      <span class="glyph accent">
        <Sign />
      </span>
      <h1 ref={heading} tabIndex={-1} title={item.title.length > 120 ? item.title.slice(0, 1_000) : undefined}>
        <bdi>{honest(item.title)}</bdi>
      </h1>
    </div>
  );
}

function Removing({ item, at }: { item: ItemDetail; at: number }) {
  return (
    <Notice
      kind="warn"
      live
      title={words.removedTitle}
      actions={
        <Button icon={Undo2} onClick={() => void keep(item.id)}>
          {text.list.undo}
        </Button>
      }
    >
      <SecondsTo at={at}>{text.list.removed}</SecondsTo>
    </Notice>
  );
}

/** Bin, sender, time, and type and size of a file. */
function Facts({ item }: { item: ItemDetail }) {
  const sender = devices.value?.find(({ id }) => id === item.sender);
  const own = item.sender === info.value?.deviceId;
  const rows: readonly (readonly [string, ComponentChildren])[] = [
    [words.bin, <OneLine value={binName(item.binId)} />],
    [words.from, own || item.pending ? words.thisDevice : <OneLine value={sender?.name ?? words.otherDevice} />],
    [words.when, new Date(item.ts).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'short' })],
    ...(item.file === null ? [] : ([[words.type, <OneLine value={item.file.mime} />]] as const)),
    ...(item.file?.size == null ? [] : ([[words.size, text.size(item.file.size)]] as const)),
  ];
  return (
    <dl class="facts">
      {rows.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

interface EditingProps {
  readonly item: ItemDetail;
  readonly payload: JsonObject;
  readonly onEnd: () => void;
}

/** The end of an edit. If something was typed, `cancel` first asks for confirmation, by the dialog `asked`. */
function useEnd(id: string, onClose: () => void) {
  const asking = useSignal(false);
  const onEnd = (): void => {
    keepDraft(id, undefined);
    onClose();
  };
  const cancel = (): void => {
    if (keptDraft(id) === undefined) onEnd();
    else asking.value = true;
  };
  const stay = (): void => void (asking.value = false);
  const asked = asking.value && (
    <Confirm title={words.discardTitle} action={text.kit.discard} onYes={onEnd} onClose={stay} />
  );
  return { onEnd, cancel, asked };
}

function Editing({ item, payload, onEnd: onClose }: EditingProps) {
  const draft = useSignal(keptDraft(item.id) ?? draftOf(item.type, payload));
  const errors = useSignal<DraftErrors>({});
  const busy = useSignal(false);
  const { onEnd, cancel, asked } = useEnd(item.id, onClose);
  const save = async (): Promise<void> => {
    const checked = payloadOf(item.type, draft.value, payload);
    errors.value = checked.errors;
    if (Object.keys(checked.errors).length > 0 || busy.value) return;
    busy.value = true;
    const { id, binId, type } = item;
    if (await attempt(call('put', { id, binId, type, payload: checked.payload }))) onEnd();
    busy.value = false;
  };
  return (
    <>
      <form
        class="item"
        noValidate
        aria-label={text.list.edit}
        onSubmit={submits(() => void save())}
        onKeyDown={(event) => {
          if (event.key === 'Escape') {
            event.stopPropagation();
            // Else the same key press would close the dialog that it opens.
            event.preventDefault();
            cancel();
          } else if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) void save();
        }}
      >
        <header class="item-head">
          <Button kind="quiet" onClick={cancel}>
            {text.kit.cancel}
          </Button>
          <span class="grow" />
          <Button kind="primary" submit busy={busy.value}>
            {text.kit.save}
          </Button>
        </header>
        <div class="item-body">
          <KindFields
            type={item.type}
            draft={draft.value}
            errors={errors.value}
            autoFocus
            onDraft={(next) => keepDraft(item.id, (draft.value = next))}
          />
        </div>
      </form>
      {asked}
    </>
  );
}
