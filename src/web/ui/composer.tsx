/** One field for typed or pasted text, showing the kind of item it will become. */
import { batch, effect, signal } from '@preact/signals';
import type { JSX } from 'preact';
import { useLayoutEffect, useRef } from 'preact/hooks';
import { DEFAULT_BIN } from '../../protocol/limits.js';
import { attempt, binName } from './actions.js';
import { convert, detect, textOf, type TextKind } from './detect.js';
import { KindFields } from './fields.js';
import { Camera, ChevronDown, Inbox, Paperclip, Text, X } from './icons.js';
import { draftOf, payloadOf, type Draft, type DraftErrors } from './drafts.js';
import { KIND_ICONS, TEXT_KINDS } from './kinds.js';
import { Button, submits } from './kit.js';
import { Menu } from './menu.js';
import { bins, call } from './link.js';
import { newItemId } from '../random.js';
import { binId } from './route.js';
import { focusComposer, focusList, takeFiles } from './state.js';
import { text } from './strings.js';
import { hold } from './unsaved.js';

const words = text.put;

/** Only this many first characters are used to detect the kind while typing. */
const LOOK_MAX = 50_000;

/** What is typed. Kept outside of the field, so that it is not lost when another screen is shown. */
const typed = signal('');
/** A kind chosen by hand; null: as it is detected. */
const chosen = signal<TextKind | null>(null);
/** The fields, once they are edited one by one; `typed` is not used then. */
const draft = signal<Draft | null>(null);
const errors = signal<DraftErrors>({});
/** The bin chosen by hand; null: the one shown in the list. */
const target = signal<string | null>(null);

effect(() => hold('composer', typed.value.trim() !== '' || draft.value !== null));

function clear(): void {
  batch(() => {
    typed.value = '';
    chosen.value = null;
    draft.value = null;
    errors.value = {};
  });
}

/** The bin that new items are put into. */
function into(): string {
  const wanted = target.value ?? binId.value;
  const known = bins.value ?? [];
  if (wanted !== null && known.some(({ id }) => id === wanted)) return wanted;
  return known.find(({ id }) => id === DEFAULT_BIN)?.id ?? known[0]?.id ?? DEFAULT_BIN;
}

/** Uploads files to a bin, by default the one that new items are put into. */
export function upload(files: readonly File[], bin: string = into()): void {
  if (files.length === 0) return;
  void attempt(call('upload', { binId: bin, files }));
}

const kindOf = (): TextKind => chosen.value ?? detect(typed.value.slice(0, LOOK_MAX)).type;

/** The kind and fields of what is typed. */
function fieldsTyped(): { readonly type: TextKind; readonly fields: Draft } {
  if (draft.value !== null) return { type: kindOf(), fields: draft.value };
  const { type, payload } =
    chosen.value === null ? detect(typed.value) : { type: chosen.value, payload: convert(typed.value, chosen.value) };
  return { type, fields: draftOf(type, payload) };
}

/** Puts what is typed. The field is cleared at once, and restored if the engine refuses. */
async function put(): Promise<void> {
  const before = { typed: typed.value, chosen: chosen.value, draft: draft.value };
  if (before.draft === null && before.typed.trim() === '') return;
  const { type, fields } = fieldsTyped();
  const checked = payloadOf(type, fields);
  if (Object.keys(checked.errors).length > 0) {
    batch(() => {
      chosen.value = type;
      draft.value = fields;
      errors.value = checked.errors;
    });
    return;
  }
  const bin = into();
  clear();
  focusComposer.current();
  if (await attempt(call('put', { id: newItemId(), binId: bin, type, payload: checked.payload }))) return;
  // Must not replace what was typed meanwhile.
  if (typed.value === '' && draft.value === null)
    batch(() => {
      typed.value = before.typed;
      chosen.value = before.chosen;
      draft.value = before.draft;
    });
}

/** What is typed, as one text. */
const textTyped = (): string =>
  draft.value === null ? typed.value : textOf(kindOf(), payloadOf(kindOf(), draft.value).payload);

/** Switches to a kind chosen by hand, and fills its fields from the text. */
function choose(type: TextKind): void {
  const whole = textTyped();
  batch(() => {
    chosen.value = type;
    errors.value = {};
    typed.value = whole;
    draft.value = type === 'text' ? null : draftOf(type, convert(whole, type));
  });
}

/** Switches from the fields back to one text. */
function toText(): void {
  const whole = textTyped();
  batch(() => {
    clear();
    typed.value = whole;
  });
  requestAnimationFrame(() => focusComposer.current());
}

/** The field that takes what is typed or pasted, with its kind, bin and files. */
export function Composer(): JSX.Element {
  const field = useRef<HTMLTextAreaElement>(null);
  focusComposer.current = () => field.current?.focus();
  takeFiles.current = upload;
  const filled = draft.value !== null || typed.value.trim() !== '';
  return (
    <form
      class={`composer${filled ? ' filled' : ''}`}
      aria-label={words.label}
      onSubmit={submits(() => void put())}
      onKeyDown={(event) => {
        if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
          event.preventDefault();
          void put();
        } else if (event.key === 'Escape') {
          if (draft.value === null) focusList.current();
          else toText();
        }
      }}
    >
      {draft.value === null ? <TextField field={field} /> : <DraftFields draft={draft.value} />}
      <div class="composer-bar">
        {filled ? (
          <>
            <KindMenu />
            <BinMenu />
            <span class="grow" />
            {draft.value === null && kindOf() !== 'text' && (
              <Button kind="icon" icon={Text} label={words.details} onClick={() => choose(kindOf())} />
            )}
            {draft.value !== null && <Button kind="icon" icon={X} label={words.plain} onClick={toText} />}
            <Button kind="primary" submit>
              {words.put}
            </Button>
          </>
        ) : (
          <FileButtons />
        )}
      </div>
    </form>
  );
}

function TextField({ field }: { readonly field: { current: HTMLTextAreaElement | null } }): JSX.Element {
  useGrowth(field, typed.value);
  return (
    <textarea
      ref={field}
      class="composer-text"
      rows={1}
      dir={typed.value === '' ? undefined : 'auto'}
      autocomplete="off"
      aria-label={words.label}
      placeholder={words.placeholder}
      value={typed.value}
      onInput={(event) => (typed.value = event.currentTarget.value)}
    />
  );
}

/** Makes a field as high as its text, for browsers without `field-sizing`. */
function useGrowth(field: { current: HTMLTextAreaElement | null }, value: string): void {
  useLayoutEffect(() => {
    const element = field.current;
    if (element === null || CSS.supports('field-sizing', 'content')) return;
    element.style.setProperty('block-size', 'auto');
    element.style.setProperty('block-size', `${element.scrollHeight}px`);
  }, [value]);
}

function DraftFields({ draft: given }: { readonly draft: Draft }): JSX.Element {
  return (
    <KindFields
      type={kindOf()}
      draft={given}
      errors={errors.value}
      onDraft={(next) => (draft.value = next)}
      autoFocus
    />
  );
}

function KindMenu(): JSX.Element {
  const kind = kindOf();
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

function BinMenu(): JSX.Element | null {
  const known = bins.value ?? [];
  const bin = into();
  if (known.length < 2) return null;
  return (
    <Menu
      label={words.into(binName(bin))}
      class="chip bin-chip"
      entries={known.map(({ id, emoji }) => ({
        label: `${emoji} ${binName(id)}`.trim(),
        checked: id === bin,
        onSelect: () => (target.value = id),
      }))}
    >
      <Inbox />
      <bdi class="clip">{binName(bin)}</bdi>
      <ChevronDown />
    </Menu>
  );
}

/** Adds files by the picker, and on touch devices by the camera. */
function FileButtons(): JSX.Element {
  const files = useRef<HTMLInputElement>(null);
  const camera = useRef<HTMLInputElement>(null);
  const taken = (input: HTMLInputElement): void => {
    upload([...(input.files ?? [])]);
    input.value = '';
  };
  return (
    <>
      <input
        ref={files}
        type="file"
        multiple
        hidden
        aria-label={words.files}
        onChange={(event) => taken(event.currentTarget)}
      />
      <input
        ref={camera}
        type="file"
        accept="image/*"
        capture="environment"
        hidden
        aria-label={words.camera}
        onChange={(event) => taken(event.currentTarget)}
      />
      <span class="touch-only">
        <Button kind="icon" icon={Camera} label={words.camera} onClick={() => camera.current?.click()} />
      </span>
      <Button kind="icon" icon={Paperclip} label={words.files} onClick={() => files.current?.click()} />
    </>
  );
}
