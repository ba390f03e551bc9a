/** A dialog with fields and one button. */
import type { ComponentChildren, JSX } from 'preact';
import { Button, Dialog } from './kit.js';
import { Problem } from './screen.js';
import type { Task } from './task.js';

interface FormDialogProps {
  readonly title: string;
  /** Label of the button. */
  readonly action: string;
  readonly danger?: boolean;
  readonly disabled?: boolean;
  /** What `onSubmit` runs. */
  readonly task: Task;
  /** True: a field shows the problem, so it is not repeated below the fields. */
  readonly problemInField?: boolean;
  readonly onSubmit: () => void;
  readonly onClose: () => void;
  readonly children: ComponentChildren;
}

/** Enter and the button submit it; a problem is shown below the fields. */
export function FormDialog(props: FormDialogProps): JSX.Element {
  const { title, action, danger = false, disabled, task, problemInField = false, onSubmit, onClose, children } = props;
  return (
    <Dialog
      title={title}
      onClose={onClose}
      onSubmit={onSubmit}
      actions={
        <Button kind={danger ? 'danger' : 'primary'} submit busy={task.busy} disabled={disabled}>
          {action}
        </Button>
      }
    >
      {children}
      <Problem problem={problemInField ? null : task.problem} />
    </Dialog>
  );
}
