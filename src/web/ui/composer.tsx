/** One field for typed or pasted text, showing the kind of item it will become. */
import { signal } from '@preact/signals';
import { Camera, ChevronDown, Inbox, Paperclip, Text, X, type LucideIcon } from 'lucide-preact';
import { useLayoutEffect, useRef } from 'preact/hooks';
import { DEFAULT_BIN } from '../../protocol/limits.js';
import { newItemId } from '../random.js';
import { attempt, binName } from './actions.js';
import { convert, detect, textOf, type TextKind } from './detect.js';
import { draftOf, KindFields, payloadOf, type Draft, type DraftErrors, KIND_ICONS, TEXT_KINDS } from './fields.js';
import { Button, formKeys, submits } from './kit.js';
import { bins, call, isOut } from './link.js';
import { Menu } from './menu.js';
import { binId, focusComposer, focusList } from './route.js';
import * as text from './strings.js';
import { asksToLeave } from './unsaved.js';

const words = text.put;

/** Characters, from the start, by which the kind is detected while typing. */
const DETECT_MAX = 50_000;

/** The content of the composer. Kept outside of the component, so that it is not lost when another screen is shown. */
interface Input {
  readonly typed: string;
  /** A kind chosen by hand; null: as it is detected. */
  readonly chosen: TextKind | null;
  /** The fields, once they are edited one by one; `typed` is not used then. */
  readonly draft: Draft | null;
  readonly errors: DraftErrors;
}

const EMPTY: Input = { typed: '', chosen: null, draft: null, errors: {} };
const input = signal(EMPTY);
/** The bin chosen by hand; null: the one shown in the list. */
const chosenBin = signal<string | null>(null);

const isFilled = ({ typed, draft }: Input): boolean => draft !== null || typed.trim() !== '';

asksToLeave(() => isFilled(input.value));

/** Drops what was typed, which may be a password: the next user of this browser must not see it. */
export function forgetTyped(): void {
  input.value = EMPTY;
  chosenBin.value = null;
}

/** The bin that new items are put into. */
function targetBin(): string {
  const wanted = chosenBin.value ?? binId.value;
  const known = bins.value ?? [];
  if (wanted !== null && known.some(({ id }) => id === wanted)) return wanted;
  return known.find(({ id }) => id === DEFAULT_BIN)?.id ?? known[0]?.id ?? DEFAULT_BIN;
}

/** Uploads files to a bin, by default the one that new items are put into. */
export function upload(files: readonly File[], bin: string = targetBin()): void {
  if (files.length === 0) return;
  void attempt(call('upload', { binId: bin, files }));
}

const kindOf = ({ typed, chosen }: Input): TextKind => chosen ?? detect(typed.slice(0, DETECT_MAX)).type;

/** The kind and fields of what is typed. */
function fieldsTyped(now: Input): { readonly type: TextKind; readonly fields: Draft } {
  const { typed, chosen, draft } = now;
  if (draft !== null) return { type: kindOf(now), fields: draft };
  const { type, payload } = chosen === null ? detect(typed) : { type: chosen, payload: convert(typed, chosen) };
  return { type, fields: draftOf(type, payload) };
}

/**
 * Puts what is typed. The field is cleared at once, and restored if the engine refuses; not where it refuses because it
 * was locked meanwhile: `forgetTyped` has been called then.
 */
async function put(): Promise<void> {
  const before = input.value;
  if (!isFilled(before)) return;
  const { type, fields } = fieldsTyped(before);
  const { payload, errors } = payloadOf(type, fields);
  if (Object.keys(errors).length > 0) {
    input.value = { ...before, chosen: type, draft: fields, errors };
    return;
  }
  const bin = targetBin();
  input.value = EMPTY;
  focusComposer.current();
  if (await attempt(call('put', { id: newItemId(), binId: bin, type, payload }))) return;
  // Must not replace what was typed meanwhile.
  if (!isOut.value && input.value.typed === '' && input.value.draft === null) input.value = { ...before, errors: {} };
}

/** What is typed, as one text. */
function textTyped(): string {
  const { typed, draft } = input.value;
  const kind = kindOf(input.value);
  return draft === null ? typed : textOf(kind, payloadOf(kind, draft).payload);
}

/** Switches to a kind chosen by hand, and fills its fields from the text. */
function choose(type: TextKind): void {
  const typed = textTyped();
  input.value = {
    typed,
    chosen: type,
    draft: type === 'text' ? null : draftOf(type, convert(typed, type)),
    errors: {},
  };
}

/** Switches from the fields back to one text. */
function toText(): void {
  input.value = { ...EMPTY, typed: textTyped() };
  requestAnimationFrame(() => focusComposer.current());
}

/** The field that takes what is typed or pasted, with its kind, bin and files. */
export function Composer() {
  const field = useRef<HTMLTextAreaElement>(null);
  focusComposer.current = () => field.current?.focus();
  const { draft, errors } = input.value;
  const kind = kindOf(input.value);
  const filled = isFilled(input.value);
  return (
    <form
      class={`composer${filled ? ' filled' : ''}`}
      aria-label={words.label}
      onSubmit={submits(() => void put())}
      onKeyDown={formKeys(draft === null ? () => focusList.current() : toText, () => void put())}
    >
      {draft === null ? (
        <TextField field={field} />
      ) : (
        <KindFields
          type={kind}
          draft={draft}
          errors={errors}
          onDraft={(next) => (input.value = { ...input.value, draft: next })}
        />
      )}
      <div class="composer-bar">
        {filled ? (
          <>
            <KindMenu kind={kind} />
            <BinMenu />
            <span class="grow" />
            {draft === null && kind !== 'text' && (
              <Button kind="icon" icon={Text} label={words.details} onClick={() => choose(kind)} />
            )}
            {draft !== null && <Button kind="icon" icon={X} label={words.plain} onClick={toText} />}
            <Button kind="primary" submit label={words.put} />
          </>
        ) : (
          <>
            <span class="touch-only">
              <FileButton icon={Camera} label={words.camera} camera />
            </span>
            <FileButton icon={Paperclip} label={words.files} />
          </>
        )}
      </div>
    </form>
  );
}

function TextField({ field }: { field: { current: HTMLTextAreaElement | null } }) {
  const { typed } = input.value;
  // As high as its text, for browsers without `field-sizing`.
  useLayoutEffect(() => {
    const element = field.current;
    if (element === null || CSS.supports('field-sizing', 'content')) return;
    element.style.setProperty('block-size', 'auto');
    element.style.setProperty('block-size', `${element.scrollHeight}px`);
  }, [typed]);
  return (
    <textarea
      ref={field}
      class="composer-text"
      rows={1}
      dir={typed === '' ? undefined : 'auto'}
      autocomplete="off"
      aria-label={words.label}
      placeholder={words.placeholder}
      value={typed}
      onInput={(event) => (input.value = { ...input.value, typed: event.currentTarget.value })}
    />
  );
}

function KindMenu({ kind }: { kind: TextKind }) {
  const Sign = KIND_ICONS[kind];
  return (
    <Menu
      label={words.kind(text.list.kind[kind])}
      class="chip on"
      entries={TEXT_KINDS.map((one) => ({
        label: text.list.kind[one],
        icon: KIND_ICONS[one],
        checked: one === kind,
        onSelect: () => choose(one),
      }))}
    >
      <Sign />
      {text.list.kind[kind]}
      <ChevronDown />
    </Menu>
  );
}

function BinMenu() {
  const known = bins.value ?? [];
  const bin = targetBin();
  if (known.length < 2) return null;
  return (
    <Menu
      label={words.into(binName(bin))}
      class="chip bin-chip"
      entries={known.map(({ id, emoji }) => ({
        label: `${emoji} ${binName(id)}`.trim(),
        checked: id === bin,
        onSelect: () => (chosenBin.value = id),
      }))}
    >
      <Inbox />
      <bdi class="clip">{binName(bin)}</bdi>
      <ChevronDown />
    </Menu>
  );
}

/** Adds files by the picker, or a picture by the camera. */
function FileButton({ icon, label, camera = false }: { icon: LucideIcon; label: string; camera?: boolean }) {
  const picker = useRef<HTMLInputElement>(null);
  return (
    <>
      <input
        ref={picker}
        type="file"
        hidden
        aria-label={label}
        {...(camera ? ({ accept: 'image/*', capture: 'environment' } as const) : { multiple: true })}
        onChange={({ currentTarget }) => {
          upload([...(currentTarget.files ?? [])]);
          currentTarget.value = '';
        }}
      />
      <Button kind="icon" icon={icon} label={label} onClick={() => picker.current?.click()} />
    </>
  );
}
