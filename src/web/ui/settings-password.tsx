/** The account password: set, changed, removed. */
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { FormDialog } from './form-dialog.js';
import { Button, Field, toast } from './kit.js';
import { call } from './link.js';
import { Section, useAnswer } from './section.js';
import { pagesText } from './strings-pages.js';
import { useTask } from './task.js';

const words = pagesText.settings.password;

/** The section of the settings about the account password. */
export function PasswordSection(): JSX.Element {
  const [asked, setAsked] = useState<'set' | 'remove' | null>(null);
  const [turn, setTurn] = useState(0);
  const { value: exists } = useAnswer<boolean>(() => call('passwordExists'), turn);
  const done = (message: string): void => {
    toast(message);
    setAsked(null);
    setTurn(turn + 1);
  };
  const close = (): void => setAsked(null);
  return (
    <Section title={words.title}>
      <p class="quiet">
        {words.lead} {exists === undefined ? words.unknown : exists ? words.exists : words.none}
      </p>
      {exists !== undefined && (
        <div class="line wrap">
          <Button onClick={() => setAsked('set')}>{exists ? words.change : words.set}</Button>
          {exists && <Button onClick={() => setAsked('remove')}>{words.remove}</Button>}
        </div>
      )}
      {asked === 'set' && <SetDialog exists={exists === true} onDone={done} onClose={close} />}
      {asked === 'remove' && <RemoveDialog onDone={done} onClose={close} />}
    </Section>
  );
}

interface AskProps {
  readonly onDone: (message: string) => void;
  readonly onClose: () => void;
}

function SetDialog({ exists, onDone, onClose }: AskProps & { readonly exists: boolean }) {
  const [current, setCurrent] = useState('');
  const [fresh, setFresh] = useState('');
  const [again, setAgain] = useState('');
  const [tried, setTried] = useState(false);
  const task = useTask();
  const submit = (): void => {
    setTried(true);
    if (fresh === '' || fresh !== again || (exists && current === '')) return;
    task.run(async () => {
      await call('passwordSet', { password: fresh, current: exists ? current : null });
      onDone(words.done);
    });
  };
  return (
    <FormDialog
      title={exists ? words.change : words.set}
      action={pagesText.settings.lock.set}
      task={task}
      onSubmit={submit}
      onClose={onClose}
    >
      {exists && (
        <Field
          kind="secret"
          label={words.current}
          value={current}
          onValue={setCurrent}
          autoComplete="current-password"
          autoFocus
        />
      )}
      <Field
        kind="secret"
        label={words.fresh}
        value={fresh}
        onValue={setFresh}
        autoComplete="new-password"
        autoFocus={!exists}
      />
      <Field
        kind="secret"
        label={words.repeat}
        value={again}
        onValue={setAgain}
        autoComplete="new-password"
        error={tried && fresh !== again ? words.differ : null}
      />
    </FormDialog>
  );
}

function RemoveDialog({ onDone, onClose }: AskProps) {
  const [current, setCurrent] = useState('');
  const task = useTask();
  const submit = (): void => {
    if (current === '') return;
    task.run(async () => {
      await call('passwordRemove', current);
      onDone(words.removed);
    });
  };
  return (
    <FormDialog
      title={words.remove}
      action={words.remove}
      danger
      disabled={current === ''}
      task={task}
      onSubmit={submit}
      onClose={onClose}
    >
      <p>{words.removeLead}</p>
      <Field
        kind="secret"
        label={words.current}
        value={current}
        onValue={setCurrent}
        autoComplete="current-password"
        autoFocus
      />
    </FormDialog>
  );
}
