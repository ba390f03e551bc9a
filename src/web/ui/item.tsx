/** One item: its view, its content by kind, and its edit form. All of it is untrusted and shown as text. */
import { useSignal } from '@preact/signals';
import { ArrowLeft, Copy, Download, Pencil, Search, Undo2, ExternalLink } from 'lucide-preact';
import type { ComponentChildren } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import type { JsonObject } from '../../crypto/payload.js';
import type { ItemDetail } from '../link/messages.js';
import { newItemId } from '../random.js';
import { attempt, binName, undoRemove, toEdit, copyItem, copy } from './actions.js';
import { download, beginning, TEXT_MAX, useContent } from './content.js';
import { draftOf, editedPayload, fieldOf, KindFields, KIND_ICONS, TEXT_KINDS } from './fields.js';
import type { DraftErrors, Edit } from './fields.js';
import {
  Button,
  EmptyState,
  formKeys,
  Glyph,
  Notice,
  OneLine,
  SecondsTo,
  ShowButton,
  submits,
  useListening,
  useOwnDialog,
} from './kit.js';
import { call, devices, info, isRevoked, useItem, useLoaded } from './link.js';
import { entriesOf, takeOf } from './list.js';
import { Menu } from './menu.js';
import { itemId, leave, openItem } from './route.js';
import { ask } from './screen.js';
import * as text from './strings.js';
import { itemText } from './strings-item.js';
import { drafts } from './unsaved.js';

const words = itemText;

/** The item that is open. */
export function ItemView({ id }: { id: string }) {
  const item = useItem(id);
  if (item === undefined) return <ItemFrame title="" />;
  if (item === null) return <Gone id={id} />;
  return <Known key={item.id} item={item} />;
}

/** An item that is not there any more. What was typed into its form still is. */
function Gone({ id }: { id: string }) {
  const left = useSignal(drafts.get(id));
  if (left.value !== undefined) {
    const { from, ...item } = left.value;
    const readWhole = (): Promise<JsonObject> => Promise.resolve(from);
    const onClose = (): void => void (left.value = undefined);
    return <Editing item={{ id, ...item }} from={from} readWhole={readWhole} onClose={onClose} isGone />;
  }
  return (
    <ItemFrame title="">
      <EmptyState icon={Search} title={words.goneTitle} lead={words.gone}>
        <Button onClick={leave} label={words.back} />
      </EmptyState>
    </ItemFrame>
  );
}

function ItemFrame(props: { title: string; actions?: ComponentChildren; children?: ComponentChildren }) {
  return (
    <article class="item" aria-label={text.item.label}>
      <header class="item-head line">
        <Button kind="icon" icon={ArrowLeft} label={words.back} onClick={leave} />
        <span class="grow small quiet">{props.title}</span>
        {props.actions}
      </header>
      <div class="item-body">{props.children}</div>
    </article>
  );
}

function Known({ item }: { item: ItemDetail }) {
  /** The payload that the fields were filled from; null: nothing is edited. */
  const edited = useSignal<JsonObject | null>(null);
  /** The whole payload of one state of a cut item. */
  const whole = useSignal<Pick<ItemDetail, 'version' | 'ts' | 'payload'> | null>(null);
  const { id, cut, version, ts } = item;
  const isWhole = !cut || (whole.value?.version === version && whole.value.ts === ts);
  const payload = cut && isWhole ? (whole.value?.payload ?? {}) : item.payload;
  /** The whole payload; null: it cannot be read, and a message says so. */
  const readWhole = async (): Promise<JsonObject | null> => {
    if (isWhole) return payload;
    let read: JsonObject | null = null;
    await attempt(call('wholePayload', id).then((all) => (whole.value = { version, ts, payload: (read = all) })));
    return read;
  };
  const edit = (): void => void readWhole().then((from) => (edited.value = from));
  useEffect(() => {
    // An unsaved draft is shown again.
    if (toEdit.value !== id && !drafts.has(id)) return;
    if (toEdit.value === id) toEdit.value = null;
    edit();
  }, [toEdit.value]);
  if (edited.value !== null)
    return <Editing item={item} from={edited.value} readWhole={readWhole} onClose={() => (edited.value = null)} />;
  return (
    <ItemFrame title={text.list.kind[item.type]} actions={<HeadActions item={item} onEdit={edit} />}>
      {item.removeAt !== null && <Removing item={item} at={item.removeAt} />}
      <Title item={item} />
      <ItemBody item={item} payload={payload} />
      {!isWhole && (
        <p class="line wrap">
          <span class="quiet">{words.cut}</span>
          <Button onClick={() => void readWhole()} label={words.whole} />
        </p>
      )}
      <Facts item={item} />
    </ItemFrame>
  );
}

function HeadActions({ item, onEdit }: { item: ItemDetail; onEdit: () => void }) {
  const { label, icon, onSelect } = takeOf(item);
  return (
    <>
      <Button kind="icon" icon={icon} label={label} onClick={onSelect} />
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
  // The title of a note is its beginning, and would be shown twice.
  const repeated = item.type === 'text' || (item.type === 'code' && fieldOf(item.payload, 'label') === '');
  return (
    <div class={repeated ? 'sr' : 'item-title'}>
      <Glyph icon={KIND_ICONS[item.type]} accent />
      <h1 ref={heading} tabIndex={-1} title={item.title.length > 120 ? item.title.slice(0, 1_000) : undefined}>
        <bdi>{text.safeText(item.title)}</bdi>
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
      actions={<Button icon={Undo2} onClick={() => void undoRemove(item.id)} label={text.list.undo} />}
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
    <dl class="facts small">
      {rows.map(([name, value]) => (
        <div key={name}>
          <dt class="quiet">{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

interface EditingProps {
  readonly item: Pick<ItemDetail, 'id' | 'binId' | 'type'> & Partial<Pick<ItemDetail, 'ts'>>;
  readonly from: JsonObject;
  readonly readWhole: () => Promise<JsonObject | null>;
  readonly onClose: () => void;
  /** The item was deleted: what is saved becomes a new one. */
  readonly isGone?: boolean;
}

/** Says what becomes of what was typed into an item that is gone. */
function Left({ canSave }: { canSave: boolean }) {
  return (
    <Notice kind="warn" live title={words.gone}>
      {canSave ? words.typedLeft : words.typedName}
    </Notice>
  );
}

/** The form as it was left, else filled anew. It stays of one kind, also where another device changes that of the item. */
function useBegun({ id, binId, type }: EditingProps['item'], from: JsonObject): Edit {
  const [begun] = useState(() => {
    const filled = draftOf(type, from);
    return drafts.get(id) ?? { binId, type, from: filled, draft: filled };
  });
  return begun;
}

function Editing({ item, from, readWhole, onClose, isGone = false }: EditingProps) {
  const { id, binId, ts: seen } = item;
  const [savedAs] = useState(() => (isGone ? newItemId() : id));
  const begun = useBegun(item, from);
  const { type } = begun;
  const canSave = !isGone || TEXT_KINDS.some((one) => one === type);
  const draft = useSignal(begun.draft);
  const errors = useSignal<DraftErrors>({});
  const busy = useSignal(false);
  const question = useOwnDialog();
  const onEnd = (): void => {
    // The item's heading, which appears now, gets the focus only where no dialog has it.
    question.current?.();
    drafts.delete(id);
    onClose();
  };
  const cancel = (): void => {
    if (!drafts.has(id)) onEnd();
    else question.current = ask({ title: text.item.discardTitle, action: text.kit.discard, onYes: onEnd });
  };
  const save = async (): Promise<void> => {
    if (busy.value || !canSave) return;
    busy.value = true;
    const typed = draft.value;
    // Another device may have changed the item since its fields were filled: what is not edited is kept as it is now.
    const over = await readWhole();
    const { payload, errors: wrong } = editedPayload({ ...begun, draft: typed }, over ?? {});
    errors.value = over === null ? {} : wrong;
    const isRight = over !== null && Object.keys(wrong).length === 0;
    if (isRight && (await attempt(call('put', { id: savedAs, binId, type, payload, seen })))) {
      onEnd();
      if (isGone && itemId.value === id) openItem(savedAs);
    }
    busy.value = false;
  };
  return (
    <form
      class="item"
      noValidate
      aria-label={text.list.edit}
      onSubmit={submits(() => void save())}
      onKeyDown={formKeys(cancel, () => void save())}
    >
      <header class="item-head line">
        <Button kind="quiet" onClick={cancel} label={text.kit.cancel} />
        <span class="grow" />
        {canSave && <Button kind="primary" submit busy={busy.value} label={text.kit.save} />}
      </header>
      <div class="item-body">
        {isGone && <Left canSave={canSave} />}
        <KindFields
          type={type}
          draft={draft.value}
          errors={errors.value}
          onDraft={(next) => drafts.set(id, { ...begun, binId, draft: (draft.value = next) })}
        />
      </div>
    </form>
  );
}

function ItemBody({ item, payload }: { item: ItemDetail; payload: JsonObject }) {
  const field = (name: string): string => fieldOf(payload, name);
  switch (item.type) {
    case 'password':
      return (
        <Values field={field} names={['service', 'user']}>
          <Secret item={item} value={field('secret')} />
        </Values>
      );
    case 'link':
      return (
        <>
          <Values field={field} names={['url', 'desc']} />
          {item.href !== null && (
            <p>
              <Button kind="primary" icon={ExternalLink} href={item.href} external label={text.list.open} />
            </p>
          )}
        </>
      );
    case 'text':
      return (
        <p class="prose keep isolate" dir="auto">
          {text.safeText(field('text'))}
        </p>
      );
    case 'code':
      return (
        <pre class="code isolate" dir="ltr" tabIndex={0} aria-label={text.list.kind.code}>
          <code>{text.safeText(field('text'))}</code>
        </pre>
      );
    case 'contact':
      return <Values field={field} names={['name', 'role', 'email', 'phone']} />;
    case 'location':
      return <PlaceBody field={field} />;
    default:
      return <FilePreview key={item.id} item={item} />;
  }
}

type FieldReader = (name: string) => string;

interface ValuesProps {
  readonly field: FieldReader;
  readonly names: readonly string[];
  readonly children?: ComponentChildren;
}

function Values({ field, names, children }: ValuesProps) {
  return (
    <dl class="card flush">
      {names.map((name) => (
        <Value key={name} name={name} value={field(name)} />
      ))}
      {children}
    </dl>
  );
}

/** Where the value of a field leads. */
const HREFS: Readonly<Record<string, (value: string) => string>> = {
  email: (email) => `mailto:${encodeURIComponent(text.safeText(email)).replace('%40', '@')}`,
  // Keeps only digits and `+`, so that a program cannot take the address for a command.
  phone: (phone) => `tel:${phone.replace(/[^\d+]/g, '')}`,
};

/** A field with its name and a way to copy it; nothing for an empty one. */
function Value({ name, value }: { name: string; value: string }) {
  if (value === '') return null;
  const shown = <bdi>{text.safeText(value)}</bdi>;
  const href = HREFS[name]?.(value);
  return (
    <ValueRow name={name} onCopy={() => copy(value, false)}>
      {href === undefined ? shown : <a href={href}>{shown}</a>}
    </ValueRow>
  );
}

interface ValueRowProps {
  readonly name: string;
  readonly onCopy: () => Promise<void>;
  readonly children: ComponentChildren;
  /** A button before the one that copies. */
  readonly other?: ComponentChildren;
}

function ValueRow({ name, onCopy, children, other }: ValueRowProps) {
  const label = text.fields.labels[name] ?? name;
  return (
    <div class="value">
      <dt class="small quiet">{label}</dt>
      <dd>{children}</dd>
      <dd>
        {other}
        <Button kind="icon" icon={Copy} label={words.copyField(label)} onClick={() => void onCopy()} />
      </dd>
    </div>
  );
}

/** A masked field. It hides itself again when the page is left. */
function Secret({ item, value }: { item: ItemDetail; value: string }) {
  const shown = useSignal(false);
  const hide = (): void => {
    if (document.visibilityState === 'hidden') shown.value = false;
  };
  useListening({ visibilitychange: hide });
  return (
    <ValueRow
      name="secret"
      onCopy={() => copyItem(item)}
      other={<ShowButton shown={shown.value} onShown={(next) => (shown.value = next)} />}
    >
      {shown.value ? (
        <bdi class="mono keep">{value}</bdi>
      ) : (
        <span class="masked" aria-label={text.kit.hidden}>
          ••••••••••
        </span>
      )}
    </ValueRow>
  );
}

function PlaceBody({ field }: { field: FieldReader }) {
  const [lat, lng] = [field('lat'), field('lng')];
  const there = lat !== '' && lng !== '' && Number.isFinite(Number(lat)) && Number.isFinite(Number(lng));
  const place = `mlat=${Number(lat)}&mlon=${Number(lng)}#map=16/${Number(lat)}/${Number(lng)}`;
  return (
    <>
      <Values field={field} names={['name', 'addr']}>
        {there && <Value name="coordinates" value={`${lat}, ${lng}`} />}
      </Values>
      {there && (
        <p>
          <Button
            icon={ExternalLink}
            href={`https://www.openstreetmap.org/?${place}`}
            external
            label={words.mapsOpen}
          />
        </p>
      )}
    </>
  );
}

type Kind = 'image' | 'audio' | 'video' | 'pdf' | 'text' | null;

const TEXTS = /^(text\/|application\/(json|xml|yaml|x-yaml|toml|javascript|x-sh|sql)\b)|\+(json|xml)$/i;
/** Names of text files to which systems give no media type, or a wrong one. */
const TEXT_NAMES =
  /\.(txt|md|log|csv|tsv|json|ya?ml|toml|ini|conf|xml|[cm]?[jt]sx?|py|rb|go|rs|java|kt|c|h|cpp|sh|sql|css|html?)$/i;

/** How a file can be shown. Markup is shown as its source. */
function previewOf({ mime, name }: { readonly mime: string; readonly name: string }): Kind {
  if (TEXT_NAMES.test(name) && !mime.startsWith('image/')) return 'text';
  if (/^image\/(png|jpe?g|gif|webp|avif|bmp|svg\+xml|x-icon|vnd\.microsoft\.icon)$/i.test(mime)) return 'image';
  if (mime.startsWith('audio/')) return 'audio';
  if (mime.startsWith('video/')) return 'video';
  if (mime === 'application/pdf') return 'pdf';
  return TEXTS.test(mime) ? 'text' : null;
}

/** A file shown in the page where that is safe, and its download. */
function FilePreview({ item }: { item: ItemDetail }) {
  const file = item.file ?? { mime: '', name: item.title, size: null };
  const kind = previewOf(file);
  return (
    <>
      {kind === 'text' && <TextPreview id={item.id} />}
      {kind !== null && kind !== 'text' && <MediaPreview id={item.id} mime={file.mime} name={file.name} kind={kind} />}
      {kind === null && <p class="quiet">{words.noPreview}</p>}
      <p>
        <Button icon={Download} kind="primary" label={text.list.download} onClick={() => void download(item)}>
          {file.size !== null && <span class="numbers">({text.size(file.size)})</span>}
        </Button>
      </p>
    </>
  );
}

type MediaKind = Exclude<Kind, 'text' | null>;

function MediaPreview({ id, mime, name, kind }: { id: string; mime: string; name: string; kind: MediaKind }) {
  const { url, failed, onBroken } = useContent(id, mime);
  if (failed) return <Notice kind="warn">{words.previewFailed}</Notice>;
  if (url === null) return <div class={`preview ${kind} waiting`} aria-busy="true" />;
  const shared = { src: url, onError: onBroken };
  switch (kind) {
    case 'image':
      return <img class="preview image" alt={name} {...shared} />;
    case 'audio':
      return <audio class="preview" controls preload="metadata" aria-label={name} {...shared} />;
    case 'video':
      return <video class="preview video" controls playsInline preload="metadata" aria-label={name} {...shared} />;
    case 'pdf':
      return <iframe class="preview pdf" src={url} title={name} />;
  }
}

function TextPreview({ id }: { id: string }) {
  const { value: read, problem } = useLoaded(() => beginning(id), [id]);
  if (read === null || problem !== null) return <Notice kind="warn">{words.previewFailed}</Notice>;
  if (read === undefined) return <div class="preview waiting" aria-busy="true" />;
  return (
    <>
      <pre class="code isolate" dir="auto" tabIndex={0} aria-label={words.preview}>
        <code>{text.safeText(read.text)}</code>
      </pre>
      {!read.whole && <p class="small quiet">{words.textBegin(text.size(TEXT_MAX))}</p>}
    </>
  );
}
