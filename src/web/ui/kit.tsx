/** The components of the screens. Their styles are in `base.css`. */
import { signal } from '@preact/signals';
import type { ComponentChildren, ComponentType } from 'preact';
import { useEffect, useId, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { Check, CircleAlert, Eye, EyeOff, Inbox, Info, TriangleAlert, X, type LucideIcon } from 'lucide-preact';
import { isOut } from './link.js';
import * as text from './strings.js';

/** A list of classes or ids, as an attribute takes it. */
const classes = (...names: readonly (string | false | undefined)[]): string => names.filter(Boolean).join(' ');

interface ButtonProps {
  /** `icon`: only an icon is visible, and the label is its accessible name. */
  readonly kind?: 'primary' | 'plain' | 'danger' | 'quiet' | 'icon';
  readonly icon?: LucideIcon;
  readonly label: string;
  /** Accessible name, where the label is not enough. */
  readonly name?: string;
  readonly busy?: boolean;
  readonly disabled?: boolean;
  readonly wide?: boolean;
  readonly submit?: boolean;
  /** A link that looks like a button; `external`: it leads out of this app. */
  readonly href?: string;
  readonly external?: boolean;
  readonly pressed?: boolean;
  readonly autoFocus?: boolean;
  readonly tabIndex?: number;
  readonly onClick?: (event: MouseEvent) => void;
  /** After the label. */
  readonly children?: ComponentChildren;
}

/** A button, or with `href` a link that looks like one. A busy one ignores clicks and keeps the focus. */
export function Button(props: ButtonProps) {
  const { kind = 'plain', icon: Sign, label, busy = false, wide = false, href, onClick } = props;
  const isIcon = kind === 'icon';
  const style = classes('button', kind !== 'plain' && kind, wide && 'wide', busy && 'busy');
  const inside = (
    <>
      {busy ? <span class="turning" aria-hidden="true" /> : Sign && <Sign />}
      {!isIcon && label}
      {props.children}
    </>
  );
  const said = { 'aria-label': props.name ?? (isIcon ? label : undefined), title: isIcon ? label : undefined };
  if (href !== undefined) {
    const out = props.external === true ? { target: '_blank', rel: 'noopener noreferrer' } : {};
    return (
      <a class={style} href={href} {...out} {...said} tabIndex={props.tabIndex}>
        {inside}
      </a>
    );
  }
  return (
    <button
      type={props.submit === true ? 'submit' : 'button'}
      class={style}
      disabled={props.disabled === true}
      aria-disabled={busy ? 'true' : undefined}
      aria-pressed={props.pressed}
      tabIndex={props.tabIndex}
      autoFocus={props.autoFocus === true}
      onClick={(event) => {
        if (busy) event.preventDefault();
        else onClick?.(event);
      }}
      {...said}
    >
      {inside}
    </button>
  );
}

const pressedIn = ({ target }: Event): EventTarget | null =>
  (target instanceof Element && target.closest('a, button')) || target;

/**
 * Ignores the second click of a double click where the first has brought something else under the pointer, as a row
 * that moves up when the one above it is removed, or a dialog and its backdrop: it was meant for what was there before.
 */
export function ignoreStrayClicks(): void {
  let last: EventTarget | null = null;
  let stray = false;
  const pressed = (event: MouseEvent): void => {
    const target = pressedIn(event);
    stray = event.detail > 1 && target !== last;
    // In a fast series the third click is meant for what the second has met.
    last = target;
  };
  const clicked = (event: MouseEvent): void => {
    if (!stray || event.detail < 2) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  };
  addEventListener('mousedown', pressed, { capture: true });
  addEventListener('click', clicked, { capture: true });
}

/** What is typed into a field. */
export interface Typed {
  readonly value: string;
  readonly onValue: (value: string) => void;
}

/** The state of a field, as its properties. */
export function useTyped(first = ''): Typed {
  const [value, onValue] = useState(first);
  return { value, onValue };
}

interface LabelledProps {
  readonly label: string;
  readonly hint?: ComponentChildren;
  readonly error?: string | false;
}

export interface FieldProps extends LabelledProps, Typed {
  /** `secret`: masked, with a button that reveals it. `lines`: grows with its text. */
  readonly kind?: 'text' | 'secret' | 'lines' | 'email' | 'tel' | 'url';
  readonly mono?: boolean;
  /** By default `new-password` for a secret. */
  readonly autoComplete?: 'current-password';
  readonly autoFocus?: boolean;
  readonly maxLength?: number;
  /** Buttons at the end of the field. */
  readonly after?: ComponentChildren;
  readonly inputMode?: 'decimal';
}

/** A labelled input or text area with its hint and error. */
export function Field(props: FieldProps) {
  const { label, hint, error, kind = 'text', autoFocus = false } = props;
  const id = useId();
  const box = useRef<HTMLDivElement>(null);
  const [shown, setShown] = useState(false);
  // Words and secrets must not reach a browser's spelling service, nor be "corrected".
  const prose = (kind === 'text' || kind === 'lines') && props.mono !== true;
  const shared = {
    id,
    value: props.value,
    autocomplete: props.autoComplete ?? (kind === 'secret' ? 'new-password' : 'off'),
    autofocus: props.autoFocus,
    maxLength: props.maxLength,
    inputMode: props.inputMode,
    // An empty field has the text direction of the page.
    dir: props.value === '' ? undefined : ('auto' as const),
    'aria-invalid': error ? true : undefined,
    'aria-describedby': classes(error && `${id}e`, hint !== undefined && hint !== error && `${id}h`) || undefined,
    onInput: (event: { readonly currentTarget: { readonly value: string } }) =>
      props.onValue(event.currentTarget.value),
    ...(prose ? {} : ({ autocapitalize: 'off', autocorrect: 'off', spellcheck: false } as const)),
  };
  const type = kind === 'secret' ? (shown ? 'text' : 'password') : kind;
  // Browsers apply `autofocus` once per page, but each time a dialog opens, so the focus is set here.
  useLayoutEffect(() => {
    if (autoFocus) box.current?.querySelector<HTMLElement>('input, textarea')?.focus();
  }, []);
  return (
    <Labelled id={id} label={label} hint={hint} error={error}>
      <div ref={box} class={classes('input', error && 'wrong', (props.mono === true || kind === 'secret') && 'mono')}>
        {kind === 'lines' ? <textarea {...shared} rows={3} /> : <input {...shared} type={type} />}
        {kind === 'secret' && <ShowButton shown={shown} onShown={setShown} />}
        {props.after}
      </div>
    </Labelled>
  );
}

/** An input's label, error and hint; the ids of the latter are `${id}e` and `${id}h`. */
export function Labelled(props: LabelledProps & { id: string; children: ComponentChildren }) {
  const { id, label, hint, error, children } = props;
  return (
    <div class="field stack">
      <label for={id} class="small strong">
        {label}
      </label>
      {children}
      {error && (
        <p class="error small danger-text" id={`${id}e`} role="alert">
          <CircleAlert /> {error}
        </p>
      )}
      {hint !== undefined && hint !== error && (
        <p class="small quiet" id={`${id}h`}>
          {hint}
        </p>
      )}
    </div>
  );
}

/** Toggles whether a masked value is shown. */
export function ShowButton({ shown, onShown }: { shown: boolean; onShown: (shown: boolean) => void }) {
  return (
    <Button
      kind="icon"
      icon={shown ? EyeOff : Eye}
      label={shown ? text.kit.hide : text.kit.show}
      pressed={shown}
      onClick={() => onShown(!shown)}
    />
  );
}

interface SelectProps<T extends string> extends Omit<LabelledProps, 'error'> {
  readonly value: T;
  readonly options: readonly { readonly value: T; readonly label: string }[];
  readonly onValue: (value: T) => void;
}

/** A labelled `<select>`. It shows another choice only once `value` is that. */
export function Select<T extends string>({ label, value, options, onValue, hint }: SelectProps<T>) {
  const id = useId();
  return (
    <Labelled id={id} label={label} hint={hint}>
      <div class="input">
        <select
          id={id}
          value={value}
          aria-describedby={hint === undefined ? undefined : `${id}h`}
          onChange={({ currentTarget }) => {
            const chosen = currentTarget.value as T;
            currentTarget.value = value;
            onValue(chosen);
          }}
        >
          {options.map((option) => (
            <option key={option.value} value={option.value}>
              {option.label}
            </option>
          ))}
        </select>
      </div>
    </Labelled>
  );
}

/** A submit handler that calls `act` instead of loading another page. */
export const submits =
  (act: () => void) =>
  (event: Event): void => {
    event.preventDefault();
    act();
  };

/** A handler of the keys of a form: Escape leaves it, Enter with Ctrl or Cmd sends it. */
export const formKeys =
  (leave: () => void, send: () => void) =>
  (event: KeyboardEvent): void => {
    if (event.key === 'Escape') leave();
    else if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) send();
    else return;
    // Else the key press would also close the dialog that it opens.
    event.preventDefault();
  };

/** A handler of a link's click that calls `act` instead; with a modifier key the browser opens a tab or a window. */
export const follows =
  (act: () => void) =>
  (event: MouseEvent): void => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    act();
  };

/** The properties of what `openDialog` opens. */
export interface Closable {
  readonly onClose: () => void;
}

interface DialogProps extends Closable {
  readonly title: string;
  readonly children?: ComponentChildren;
  /** Buttons at the foot; the last one is the main one. */
  readonly actions?: ComponentChildren;
  /** A question that must be answered: no close button, but Escape still calls `onClose`. */
  readonly plain?: boolean;
  readonly onSubmit?: () => void;
}

/**
 * A modal dialog while it is mounted. It takes the focus and gives it back; Escape and a click on the backdrop close
 * it. With `onSubmit` it is a form: Enter and a `submit` button among its actions submit it.
 */
export function Dialog({ title, onClose, children, actions, plain = false, onSubmit }: DialogProps) {
  const modal = useModal(onClose);
  const id = useId();
  const inside = (
    <>
      <div class="dialog-body stack">{children}</div>
      {actions && <div class="dialog-foot">{actions}</div>}
    </>
  );
  return (
    <dialog {...modal} aria-labelledby={id}>
      <div class="dialog-head line">
        <h2 id={id} class="grow" tabIndex={-1}>
          {title}
        </h2>
        {!plain && <Button kind="icon" icon={X} label={text.kit.close} onClick={onClose} />}
      </div>
      {onSubmit === undefined ? (
        inside
      ) : (
        <form method="dialog" class="stack" onSubmit={submits(onSubmit)}>
          {inside}
        </form>
      )}
    </dialog>
  );
}

/** Shows the `<dialog>` that gets the result as its properties as a modal one while it is mounted. */
export function useModal(onClose: () => void) {
  const ref = useRef<HTMLDialogElement>(null);
  const close = useRef(onClose);
  close.current = onClose;
  const pressed = useRef<EventTarget | null>(null);
  useLayoutEffect(() => {
    const element = ref.current;
    element?.showModal();
    // The first element of a dialog is its close button; the focus belongs into what the dialog asks for, else to what
    // it says, so that a screen reader begins there and Enter does nothing.
    if (document.activeElement?.closest('.dialog-head') != null)
      for (const of of ['h2', '.dialog-body :is(input, select, textarea, button, [tabindex])'])
        element?.querySelector<HTMLElement>(of)?.focus();
    // Going back in the history leaves the place that the dialog belongs to.
    const leave = (): void => close.current();
    addEventListener('popstate', leave);
    // Not as a property: Preact knows the event of one only where the browser has `oncancel`, which not all have.
    const cancel = (event: Event): void => {
      // `onClose` decides whether the dialog is removed; the browser must not close it on its own. A picker of files
      // in the dialog that is cancelled has an event of the same name.
      if (event.target !== element) return;
      event.preventDefault();
      leave();
    };
    element?.addEventListener('cancel', cancel);
    return () => {
      removeEventListener('popstate', leave);
      element?.removeEventListener('cancel', cancel);
      // Restores the focus.
      element?.close();
    };
  }, []);
  return {
    ref,
    onPointerDown: (event: Event): void => void (pressed.current = event.target),
    onClick: (event: Event): void => {
      if (event.target === ref.current && pressed.current === ref.current) onClose();
    },
  };
}

/** The open dialogs, the last one on top. */
export const dialogs = signal<readonly { readonly id: number; readonly Shown: ComponentType<Closable> }[]>([]);
let lastDialog = 0;

/** Opens a dialog over the page, until it calls `onClose`, or the returned function is called, or `closeDialogs`. */
export function openDialog(Shown: ComponentType<Closable>): () => void {
  const id = ++lastDialog;
  dialogs.value = [...dialogs.value, { id, Shown }];
  return () => closeDialog(id);
}

/** Closes that dialog only: a call that ends late must not close the next one. */
const closeDialog = (id: number): void => void (dialogs.value = dialogs.value.filter((one) => one.id !== id));

export const closeDialogs = (): void => void (dialogs.value = []);

/** Holds what `openDialog` returned, and calls it when the component is unmounted: its question is void then. */
export function useOwnDialog(): { current: (() => void) | undefined } {
  const close = useRef<() => void>();
  useEffect(() => () => close.current?.(), []);
  return close;
}

/** Shows the open dialogs; rendered once, after the screen. */
export function Dialogs() {
  return (
    <>
      {dialogs.value.map(({ id, Shown }) => (
        <Shown key={id} onClose={() => closeDialog(id)} />
      ))}
    </>
  );
}

const NOTICE_ICONS = { info: Info, good: Check, warn: TriangleAlert, danger: CircleAlert } as const;

/** A message on the page, with actions. */
export function Notice(props: {
  readonly kind?: 'info' | 'good' | 'warn' | 'danger';
  readonly title?: ComponentChildren;
  readonly actions?: ComponentChildren;
  readonly onDismiss?: () => void;
  readonly children?: ComponentChildren;
  /** Announced by screen readers as soon as it appears. */
  readonly live?: boolean;
}) {
  const { kind = 'info', title, actions, onDismiss, children } = props;
  const Sign = NOTICE_ICONS[kind];
  return (
    <div class={classes('notice card', kind !== 'info' && kind)} role={props.live === true ? 'alert' : undefined}>
      <Sign />
      <div class="grow">
        {title !== undefined && <p class="strong">{title}</p>}
        {children && <div>{children}</div>}
        {actions && <div class="actions">{actions}</div>}
      </div>
      {onDismiss !== undefined && <Button kind="icon" icon={X} label={text.kit.dismiss} onClick={onDismiss} />}
    </div>
  );
}

interface ToastShown {
  readonly id: number;
  readonly message: string;
  /** `of`: the item whose change it takes back. */
  readonly action: { readonly of: string; readonly label: string; readonly run: () => void } | null;
}

const TOASTS_MAX = 3;
const TOAST_MS = 5_000;
const toasts = signal<readonly ToastShown[]>([]);
let lastToast = 0;

/**
 * Shows a message for some seconds at the foot of the page. `action`: a button in it, for the open vault: such a message
 * may name what is in it, and is gone once the vault is locked.
 */
export function toast(message: string, action: ToastShown['action'] = null): void {
  if (action !== null && isOut.value) return;
  const id = ++lastToast;
  toasts.value = [...toasts.value.filter((one) => one.message !== message), { id, message, action }].slice(-TOASTS_MAX);
  setTimeout(() => dropToast(id), action === null ? TOAST_MS : TOAST_MS + 3_000);
}

/** Removes the messages with a button: of one item, which another change has overtaken, or all. */
export const dropOffers = (of?: string): void =>
  void (toasts.value = toasts.value.filter(({ action }) => action === null || action.of !== (of ?? action.of)));
const dropToast = (id: number): void => void (toasts.value = toasts.value.filter((one) => one.id !== id));

/** Shows the toasts; rendered once in the app. */
export function Toasts() {
  const out = isOut.value;
  useLayoutEffect(() => {
    if (out) dropOffers();
  }, [out]);
  return (
    <div class="toasts stack tight" role="status" aria-live="polite">
      {toasts.value.map(({ id, message, action }) => (
        <div class="toast line" key={id}>
          <span class="grow">{message}</span>
          {action !== null && (
            <Button
              onClick={() => {
                dropToast(id);
                action.run();
              }}
              label={action.label}
              name={`${action.label}: ${message}`}
            />
          )}
        </div>
      ))}
    </div>
  );
}

/** A progress bar. `value` null: progress unknown. */
export function Progress({ label, value, max = 1 }: { label: string; value: number | null; max?: number }) {
  return <progress aria-label={label} max={max} {...(value === null ? {} : { value })} />;
}

/** Shown where there is no content. */
export function EmptyState(props: { icon: LucideIcon; title: string; lead: string; children?: ComponentChildren }) {
  const Sign = props.icon;
  return (
    <div class="empty stack tight quiet">
      <Sign />
      <h2>{props.title}</h2>
      <p>{props.lead}</p>
      {props.children}
    </div>
  );
}

/** A list of sentences. */
export function Points({ points }: { points: readonly string[] }) {
  return (
    <ul class="points stack">
      {points.map((point) => (
        <li key={point}>{point}</li>
      ))}
    </ul>
  );
}

/** A decorative icon, as of a device. */
export function Glyph({ icon: Sign, accent = false }: { icon: LucideIcon; accent?: boolean }) {
  return (
    <span class={classes('glyph', accent && 'accent')} aria-hidden="true">
      <Sign />
    </span>
  );
}

/** A bin's emoji, or a default icon. */
export function BinSign({ emoji }: { emoji: string }) {
  if (emoji === '') return <Inbox />;
  return (
    <bdi class="nav-emoji" aria-hidden="true">
      {emoji}
    </bdi>
  );
}

/** Untrusted text on one line: its text direction is isolated from the surroundings, and it is cut if too long. */
export function OneLine({ value, class: name }: { value: string; class?: string }) {
  return <bdi class={classes('clip', name)}>{text.safeText(value)}</bdi>;
}

type Listeners = {
  readonly [Name in keyof (WindowEventMap & DocumentEventMap)]?: (
    event: (WindowEventMap & DocumentEventMap)[Name],
  ) => void;
};

/** Listens on the window while the component is mounted, by the listeners of its first rendering. */
export function useListening(listeners: Listeners, options?: AddEventListenerOptions): void {
  useEffect(() => {
    const listening = new AbortController();
    for (const [name, listener] of Object.entries(listeners))
      addEventListener(name, listener as EventListener, { ...options, signal: listening.signal });
    return () => listening.abort();
  }, []);
}

/** Gives the time. What reads it is rendered again every `ms`: one timer for all that is shown. */
function clock(ms: number): () => number {
  let timer: ReturnType<typeof setInterval> | undefined;
  const turn = signal(0, {
    watched: () => void (timer = setInterval(() => turn.value++, ms)),
    unwatched: () => clearInterval(timer),
  });
  return () => {
    void turn.value;
    return Date.now();
  };
}

const byMinute = clock(60_000);
const bySecond = clock(500);

/** A moment, relative to now; the exact time is in its title. */
export function When({ at }: { at: number }) {
  const now = byMinute();
  const time = new Date(at);
  if (Number.isNaN(time.getTime())) return <time dir="auto" />;
  return (
    <time dir="auto" dateTime={time.toISOString()} title={time.toLocaleString()}>
      {text.time(at, now)}
    </time>
  );
}

/** Seconds until a moment, counted down. */
export function SecondsTo({ at, children }: { at: number; children: (seconds: number) => string }) {
  return <span class="numbers">{children(Math.max(0, Math.ceil((at - bySecond()) / 1_000)))}</span>;
}

/** A component that is loaded when it is first rendered, or by `ahead`, whichever comes first. */
export function later<P extends object>(load: () => Promise<ComponentType<P>>) {
  const state = signal<ComponentType<P> | 'asked' | 'failed' | null>(null);
  const ahead = (): void => {
    if (state.peek() !== null && state.peek() !== 'failed') return;
    state.value = 'asked';
    load().then(
      (component) => (state.value = component),
      () => (state.value = 'failed'),
    );
  };
  const Later = (props: P) => {
    useEffect(ahead, []);
    const Loaded = state.value;
    if (typeof Loaded === 'function') return <Loaded {...props} />;
    if (Loaded !== 'failed') return <div class="page" aria-busy="true" />;
    return (
      <div class="page">
        <Notice kind="warn" live actions={<Button onClick={ahead} label={text.kit.tryAgain} />}>
          {text.unable.part}
        </Notice>
      </div>
    );
  };
  return Object.assign(Later, { ahead });
}
