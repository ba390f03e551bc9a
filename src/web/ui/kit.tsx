/** The components of the screens. Their styles are in `style.css`. */
import { signal } from '@preact/signals';
import type { ComponentChildren, JSX } from 'preact';
import { useEffect, useId, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { Check, CircleAlert, Eye, EyeOff, Inbox, Info, TriangleAlert, X, type Icon } from './icons.js';
import { honest } from './honest.js';
import { text } from './strings.js';

const classes = (...names: readonly (string | false | undefined)[]): string => names.filter(Boolean).join(' ');

interface ButtonProps {
  /** `icon`: only an icon is visible, and `label` is its accessible name. */
  readonly kind?: 'primary' | 'plain' | 'danger' | 'quiet' | 'icon';
  readonly icon?: Icon;
  /** Accessible name. Required for `icon`; else for buttons whose visible text is not enough. */
  readonly label?: string;
  readonly busy?: boolean;
  readonly disabled?: boolean;
  readonly wide?: boolean;
  readonly submit?: boolean;
  /** A link that looks like a button. */
  readonly href?: string;
  readonly pressed?: boolean;
  readonly autoFocus?: boolean;
  readonly tabIndex?: number;
  readonly onClick?: (event: MouseEvent) => void;
  readonly children?: ComponentChildren;
}

/** A button, or with `href` a link that looks like one. A busy one ignores clicks and keeps the focus. */
export function Button(props: ButtonProps): JSX.Element {
  const { kind = 'plain', icon: Sign, label, busy = false, wide = false, href, onClick, children } = props;
  const name = classes('button', kind !== 'plain' && kind, wide && 'wide', busy && 'busy');
  const inside = (
    <>
      {busy ? <span class="turning" aria-hidden="true" /> : Sign && <Sign />}
      {children}
    </>
  );
  const said = { 'aria-label': label, title: kind === 'icon' ? label : undefined };
  if (href !== undefined)
    return (
      <a class={name} href={href} {...said} onClick={onClick}>
        {inside}
      </a>
    );
  return (
    <button
      type={props.submit === true ? 'submit' : 'button'}
      class={name}
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

export interface FieldProps {
  readonly label: string;
  readonly value: string;
  readonly onValue: (value: string) => void;
  readonly hint?: ComponentChildren;
  readonly error?: string | null;
  /** `secret`: masked, with a button that reveals it. `lines`: grows with its text. */
  readonly kind?: 'text' | 'secret' | 'lines' | 'email' | 'tel' | 'url';
  readonly mono?: boolean;
  readonly autoComplete?: string;
  readonly autoFocus?: boolean;
  readonly maxLength?: number;
  /** Buttons at the end of the field. */
  readonly after?: ComponentChildren;
  readonly inputMode?: 'decimal';
}

/** Common properties of an input and a text area. */
function inputProps(props: FieldProps, id: string, notes: string) {
  const { kind = 'text', error = null } = props;
  // Words and secrets must not reach a browser's spelling service, nor be "corrected".
  const prose = (kind === 'text' || kind === 'lines') && props.mono !== true;
  return {
    id,
    value: props.value,
    autocomplete: props.autoComplete ?? 'off',
    autofocus: props.autoFocus,
    maxLength: props.maxLength,
    inputMode: props.inputMode,
    // An empty field has the text direction of the page.
    dir: props.value === '' ? undefined : ('auto' as const),
    'aria-invalid': error === null ? undefined : true,
    'aria-describedby': notes === '' ? undefined : notes,
    onInput: (event: { readonly currentTarget: { readonly value: string } }) =>
      props.onValue(event.currentTarget.value),
    ...(prose ? {} : ({ autocapitalize: 'off', autocorrect: 'off', spellcheck: false } as const)),
  };
}

/** A labelled input or text area with its hint and error. */
export function Field(props: FieldProps): JSX.Element {
  const { label, hint, error = null, kind = 'text', autoFocus = false } = props;
  const id = useId();
  const box = useRef<HTMLDivElement>(null);
  const [shown, setShown] = useState(false);
  const notes = [error !== null && `${id}e`, hint !== undefined && `${id}h`].filter(Boolean).join(' ');
  const shared = inputProps(props, id, notes);
  const type = kind === 'secret' ? (shown ? 'text' : 'password') : kind;
  // Browsers apply `autofocus` once per page, but each time a dialog opens, so the focus is set here.
  useLayoutEffect(() => {
    if (autoFocus) box.current?.querySelector<HTMLElement>('input, textarea')?.focus();
  }, []);
  return (
    <Labelled id={id} label={label} hint={hint} error={error}>
      <div
        ref={box}
        class={classes('input', error !== null && 'wrong', (props.mono === true || kind === 'secret') && 'mono')}
      >
        {kind === 'lines' ? <textarea {...shared} rows={3} /> : <input {...shared} type={type} />}
        {kind === 'secret' && <ShowButton shown={shown} onShown={setShown} />}
        {props.after}
      </div>
    </Labelled>
  );
}

/** An input's label, error and hint; the ids of the latter are `${id}e` and `${id}h`. */
function Labelled(props: {
  readonly id: string;
  readonly label: string;
  readonly hint: ComponentChildren;
  readonly error?: string | null;
  readonly children: ComponentChildren;
}): JSX.Element {
  const { id, label, hint, error = null, children } = props;
  return (
    <div class="field">
      <label for={id}>{label}</label>
      {children}
      {error !== null && (
        <p class="error" id={`${id}e`} role="alert">
          <CircleAlert /> {error}
        </p>
      )}
      {hint !== undefined && (
        <p class="hint" id={`${id}h`}>
          {hint}
        </p>
      )}
    </div>
  );
}

/** Toggles whether a masked value is shown. */
export function ShowButton(props: {
  readonly shown: boolean;
  readonly onShown: (shown: boolean) => void;
}): JSX.Element {
  const { shown, onShown } = props;
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

interface SelectProps<T extends string> {
  readonly label: string;
  readonly value: T;
  readonly options: readonly { readonly value: T; readonly label: string }[];
  readonly onValue: (value: T) => void;
  readonly hint?: ComponentChildren;
}

/** A labelled `<select>`. */
export function Select<T extends string>({ label, value, options, onValue, hint }: SelectProps<T>): JSX.Element {
  const id = useId();
  return (
    <Labelled id={id} label={label} hint={hint}>
      <div class="input">
        <select
          id={id}
          value={value}
          aria-describedby={hint === undefined ? undefined : `${id}h`}
          onChange={(event) => onValue(event.currentTarget.value as T)}
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

/** A check box with its label. */
export function CheckBox(props: {
  readonly checked: boolean;
  readonly onValue: (checked: boolean) => void;
  readonly children: ComponentChildren;
}): JSX.Element {
  return (
    <label class="check">
      <input type="checkbox" checked={props.checked} onChange={(event) => props.onValue(event.currentTarget.checked)} />
      <span>{props.children}</span>
    </label>
  );
}

/** A submit handler that calls `act` instead of loading another page. */
export const submits =
  (act: () => void) =>
  (event: Event): void => {
    event.preventDefault();
    act();
  };

interface DialogProps {
  readonly title: string;
  readonly onClose: () => void;
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
export function Dialog({ title, onClose, children, actions, plain = false, onSubmit }: DialogProps): JSX.Element {
  const dialog = useModal(onClose);
  const id = useId();
  const inside = (
    <>
      <div class="dialog-body stack">{children}</div>
      {actions !== undefined && <div class="dialog-foot">{actions}</div>}
    </>
  );
  return (
    <dialog ref={dialog} aria-labelledby={id}>
      <div class="dialog-head">
        <h2 id={id} class="grow">
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

/** Shows a `<dialog>` as a modal one while it is mounted. */
export function useModal(onClose: () => void) {
  const dialog = useRef<HTMLDialogElement>(null);
  const close = useRef(onClose);
  close.current = onClose;
  useLayoutEffect(() => {
    const element = dialog.current;
    if (element === null) return undefined;
    element.showModal();
    // The first element of a dialog is its close button; the focus belongs into what the dialog asks for.
    if (document.activeElement?.closest('.dialog-head') != null)
      element.querySelector<HTMLElement>('.dialog-body :is(input, select, textarea, button, a[href])')?.focus();
    const onCancel = (event: Event): void => {
      // `onClose` decides whether the dialog is removed; the browser must not close it on its own.
      event.preventDefault();
      close.current();
    };
    let pressed: EventTarget | null = null;
    const onDown = (event: Event): void => void (pressed = event.target);
    const onClick = (event: Event): void => {
      if (event.target === element && pressed === element) close.current();
    };
    const listening = new AbortController();
    const untilAborted = { signal: listening.signal };
    element.addEventListener('cancel', onCancel, untilAborted);
    element.addEventListener('pointerdown', onDown, untilAborted);
    element.addEventListener('click', onClick, untilAborted);
    // Going back in the history leaves the place that the dialog belongs to.
    addEventListener('popstate', () => close.current(), untilAborted);
    return () => {
      listening.abort();
      // Restores the focus.
      element.close();
    };
  }, []);
  return dialog;
}

interface ConfirmProps {
  readonly title: string;
  readonly action: string;
  readonly busy?: boolean;
  readonly onYes: () => void;
  readonly onClose: () => void;
  readonly children?: ComponentChildren;
}

/** Asks for confirmation before something that cannot be undone. The focus is on the cancel button. */
export function Confirm({ title, action, busy = false, onYes, onClose, children }: ConfirmProps): JSX.Element {
  return (
    <Dialog
      title={title}
      onClose={onClose}
      plain
      actions={
        <>
          <Button onClick={onClose} autoFocus>
            {busy ? text.kit.close : text.kit.cancel}
          </Button>
          <Button kind="danger" busy={busy} onClick={onYes}>
            {action}
          </Button>
        </>
      }
    >
      {children}
    </Dialog>
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
}): JSX.Element {
  const { kind = 'info', title, actions, onDismiss, children } = props;
  const Sign = NOTICE_ICONS[kind];
  return (
    <div class={classes('notice', kind !== 'info' && kind)} role={props.live === true ? 'alert' : undefined}>
      <Sign />
      <div class="grow">
        {title !== undefined && <p class="notice-title">{title}</p>}
        {children !== undefined && <div>{children}</div>}
        {actions !== undefined && <div class="actions">{actions}</div>}
      </div>
      {onDismiss !== undefined && <Button kind="icon" icon={X} label={text.kit.dismiss} onClick={onDismiss} />}
    </div>
  );
}

interface ToastShown {
  readonly id: number;
  readonly message: string;
  readonly action: { readonly label: string; readonly run: () => void } | null;
}

const TOASTS_MAX = 3;
const TOAST_MS = 5_000;
const toasts = signal<readonly ToastShown[]>([]);
let lastToast = 0;

/** Shows a message for some seconds at the foot of the page; `action`: a button in it. */
export function toast(message: string, action: ToastShown['action'] = null): void {
  const id = ++lastToast;
  toasts.value = [...toasts.value.filter((one) => one.message !== message), { id, message, action }].slice(-TOASTS_MAX);
  setTimeout(() => dropToast(id), action === null ? TOAST_MS : TOAST_MS + 3_000);
}

const dropToast = (id: number): void => void (toasts.value = toasts.value.filter((one) => one.id !== id));

/** Shows the toasts; rendered once in the app. */
export function Toasts(): JSX.Element {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map(({ id, message, action }) => (
        <div class="toast" key={id}>
          <span class="grow">{message}</span>
          {action !== null && (
            <Button
              onClick={() => {
                dropToast(id);
                action.run();
              }}
            >
              {action.label}
            </Button>
          )}
        </div>
      ))}
    </div>
  );
}

/** A progress bar. `value` null: progress unknown. */
export function Progress({
  label,
  value,
  max = 1,
}: {
  label: string;
  value: number | null;
  max?: number;
}): JSX.Element {
  return <progress aria-label={label} max={max} {...(value === null ? {} : { value })} />;
}

/** Shown where there is no content. */
export function EmptyState(props: {
  readonly icon: Icon;
  readonly title: string;
  readonly children?: ComponentChildren;
}): JSX.Element {
  const Sign = props.icon;
  return (
    <div class="empty">
      <Sign />
      <h2>{props.title}</h2>
      {props.children}
    </div>
  );
}

/** A decorative icon, as of a device. */
export function Glyph({ icon: Sign, accent = false }: { icon: Icon; accent?: boolean }): JSX.Element {
  return (
    <span class={classes('glyph', accent && 'accent')} aria-hidden="true">
      <Sign />
    </span>
  );
}

/** A bin's emoji, or a default icon. */
export function BinSign({ emoji }: { readonly emoji: string }): JSX.Element {
  if (emoji === '') return <Inbox />;
  return (
    <bdi class="nav-emoji" aria-hidden="true">
      {emoji}
    </bdi>
  );
}

/** Untrusted text on one line: its text direction is isolated from the surroundings, and it is cut if too long. */
export function OneLine({ value, class: name }: { value: string; class?: string }): JSX.Element {
  return <bdi class={classes('clip', name)}>{honest(value)}</bdi>;
}

const MINUTE_MS = 60_000;
/** The current time, updated each minute, so that "5 minutes ago" stays correct. */
const minute = signal(Date.now());
let ticking = false;

/** A moment, relative to now; the exact time is in its title. */
export function When({ at }: { at: number }): JSX.Element {
  useEffect(() => {
    if (ticking) return;
    ticking = true;
    setInterval(() => (minute.value = Date.now()), MINUTE_MS);
  }, []);
  const time = new Date(at);
  const valid = !Number.isNaN(time.getTime());
  return (
    <time
      dir="auto"
      dateTime={valid ? time.toISOString() : undefined}
      title={valid ? time.toLocaleString() : undefined}
    >
      {valid ? text.time(at, Math.max(minute.value, Date.now() - MINUTE_MS)) : ''}
    </time>
  );
}
