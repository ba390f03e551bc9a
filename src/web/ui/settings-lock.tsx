/** Settings of this browser's lock. */
import type { JSX } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import type { DeviceInfo, LockKind } from '../link/messages.js';
import { FormDialog } from './form-dialog.js';
import { Button, Confirm, Dialog, Field, Select, toast } from './kit.js';
import { call } from './link.js';
import { makePasskey, passkeysWork } from './passkey.js';
import { PasskeyProblem, Problem } from './screen.js';
import { Section } from './section.js';
import { pagesText } from './strings-pages.js';
import { useTask } from './task.js';

const words = pagesText.settings.lock;

const MINUTES = [1, 5, 15, 60] as const;
const NEVER = 'never';
const PASSPHRASE_MIN = 8;

/** `name`: of this device, for the passkey's label. */
export function LockSection({ lock, name }: { readonly lock: DeviceInfo['lock']; readonly name: string }): JSX.Element {
  const [asked, setAsked] = useState<LockKind | null>(null);
  const [passkeys, setPasskeys] = useState(true);
  useEffect(() => void passkeysWork().then(setPasskeys), []);
  const task = useTask();
  const kinds: readonly LockKind[] =
    passkeys || lock.kind === 'passkey' ? ['none', 'passphrase', 'passkey'] : ['none', 'passphrase'];
  const close = (): void => setAsked(null);
  return (
    <Section title={words.title}>
      <p class="quiet">{words.is[lock.kind]}</p>
      <Select
        label={words.kind}
        value={lock.kind}
        options={kinds.map((kind) => ({ value: kind, label: words[kind] }))}
        onValue={setAsked}
        hint={passkeys ? undefined : words.noPasskey}
      />
      {lock.kind === 'passphrase' && (
        <div>
          <Button onClick={() => setAsked('passphrase')}>{words.setPassphrase}</Button>
        </div>
      )}
      {lock.kind !== 'none' && (
        <div class="lock-after">
          <Select
            label={words.after}
            value={`${lock.afterMinutes ?? NEVER}`}
            options={[...MINUTES, null].map((minutes) => ({
              value: `${minutes ?? NEVER}`,
              label: words.minutes(minutes),
            }))}
            onValue={(value) => task.run(() => call('lockAfter', value === NEVER ? null : Number(value)))}
          />
          <Button onClick={() => task.run(() => call('lock'))}>{words.now}</Button>
        </div>
      )}
      <Problem problem={task.problem} />
      {asked === 'none' && <UnlockDialog onClose={close} />}
      {asked === 'passphrase' && <PassphraseDialog onClose={close} />}
      {asked === 'passkey' && <PasskeyDialog name={name} onClose={close} />}
    </Section>
  );
}

interface AskProps {
  readonly onClose: () => void;
}

const done = (onClose: () => void): void => {
  toast(words.changed);
  onClose();
};

function UnlockDialog({ onClose }: AskProps) {
  const task = useTask();
  const take = (): void =>
    task.run(async () => {
      await call('lockSet', { kind: 'none' });
      done(onClose);
    });
  return (
    <Confirm title={words.offTitle} action={words.off} busy={task.busy} onYes={take} onClose={onClose}>
      <p>{words.is.none}</p>
      <Problem problem={task.problem} />
    </Confirm>
  );
}

function PassphraseDialog({ onClose }: AskProps) {
  const [passphrase, setPassphrase] = useState('');
  const [again, setAgain] = useState('');
  const [tried, setTried] = useState(false);
  const task = useTask();
  const short = passphrase.length < PASSPHRASE_MIN;
  const differ = passphrase !== again;
  const submit = (): void => {
    setTried(true);
    if (short || differ) return;
    task.run(async () => {
      await call('lockSet', { kind: 'passphrase', passphrase });
      done(onClose);
    });
  };
  return (
    <FormDialog title={words.setPassphrase} action={words.set} task={task} onSubmit={submit} onClose={onClose}>
      <p>{words.passphraseLead}</p>
      <Field
        kind="secret"
        label={words.passphrase}
        value={passphrase}
        onValue={setPassphrase}
        autoComplete="new-password"
        hint={words.short}
        error={tried && short ? words.short : null}
        autoFocus
      />
      <Field
        kind="secret"
        label={words.repeat}
        value={again}
        onValue={setAgain}
        autoComplete="new-password"
        error={tried && !short && differ ? words.differ : null}
      />
    </FormDialog>
  );
}

function PasskeyDialog({ name, onClose }: AskProps & { readonly name: string }) {
  const task = useTask();
  const make = (): void =>
    task.run(async () => {
      await call('lockSet', { kind: 'passkey', ...(await makePasskey(name)) });
      done(onClose);
    });
  return (
    <Dialog
      title={words.setPasskey}
      onClose={onClose}
      actions={
        <Button kind="primary" busy={task.busy} onClick={make} autoFocus>
          {words.make}
        </Button>
      }
    >
      <p>{words.passkeyLead}</p>
      <PasskeyProblem problem={task.problem} words={words} />
    </Dialog>
  );
}
