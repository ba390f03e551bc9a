/** Dialogs that do one thing: a form with one button, and a question before something that cannot be undone. */
import type { ComponentChildren } from 'preact';
import { Button, Dialog } from './kit.js';
import { Problem } from './screen.js';
import { text } from './strings.js';
import { useTask, type Form } from './task.js';

interface FormDialogProps {
  readonly title: string;
  /** Label of the button. */
  readonly action: string;
  readonly danger?: boolean;
  readonly disabled?: boolean;
  readonly form: Form;
  /** True: a field shows the problem, so it is not repeated below the fields. */
  readonly problemInField?: boolean;
  /** A button before the main one. */
  readonly other?: ComponentChildren;
  readonly onClose: () => void;
  readonly children: ComponentChildren;
}

/** Enter and the button submit it; a problem is shown below the fields. */
export function FormDialog(props: FormDialogProps) {
  const { title, action, danger = false, disabled, form, problemInField = false, other, onClose, children } = props;
  return (
    <Dialog
      title={title}
      onClose={onClose}
      onSubmit={form.submit}
      actions={
        <>
          {other}
          <Button kind={danger ? 'danger' : 'primary'} submit busy={form.busy} disabled={disabled}>
            {action}
          </Button>
        </>
      }
    >
      {children}
      <Problem problem={problemInField ? null : form.problem} />
    </Dialog>
  );
}

interface ConfirmProps {
  readonly title: string;
  /** Label of the button. */
  readonly action: string;
  /** Done for a yes; the dialog is closed when it has succeeded, and shows the problem otherwise. */
  readonly onYes: () => unknown;
  readonly onClose: () => void;
  readonly children?: ComponentChildren;
  /** Shown instead of `children` while it is done. */
  readonly meanwhile?: ComponentChildren;
}

/** Asks for confirmation. The focus is on the cancel button. */
export function Confirm({ title, action, onYes, onClose, children, meanwhile = children }: ConfirmProps) {
  const { busy, problem, run } = useTask();
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
          <Button kind="danger" busy={busy} onClick={() => run(async () => await onYes(), onClose)}>
            {action}
          </Button>
        </>
      }
    >
      {busy ? meanwhile : children}
      <Problem problem={problem} />
    </Dialog>
  );
}
