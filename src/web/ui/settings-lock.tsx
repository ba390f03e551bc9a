/** Settings of this browser's lock. */
import { useEffect, useState } from 'preact/hooks';
import type { DeviceInfo, LockKind } from '../link/messages.js';
import { Confirm, FormDialog } from './dialogs.js';
import { Button, Dialog, Field, Select, toast } from './kit.js';
import { call } from './link.js';
import { makePasskey, passkeysWork } from './passkey.js';
import { PasskeyProblem, Problem } from './screen.js';
import { Section } from './section.js';
import { text } from './strings.js';
import { pagesText } from './strings-pages.js';
import { useForm, useTask } from './task.js';

const words = pagesText.settings.lock;

const MINUTES = [1, 5, 15, 60] as const;
const NEVER = 'never';
const PASSPHRASE_MIN = 8;

/** `name`: of this device, for the passkey's label. */
export function LockSection({ lock, name }: { lock: DeviceInfo['lock']; name: string }) {
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
          <Button onClick={() => task.run(() => call('lock'))}>{text.frame.lock}</Button>
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

const changed = (): void => toast(words.changed);

function UnlockDialog({ onClose }: AskProps) {
  return (
    <Confirm
      title={words.offTitle}
      action={words.off}
      onYes={() => call('lockSet', { kind: 'none' }).then(changed)}
      onClose={onClose}
    >
      <p>{words.is.none}</p>
    </Confirm>
  );
}

function PassphraseDialog({ onClose }: AskProps) {
  const [passphrase, setPassphrase] = useState('');
  const [again, setAgain] = useState('');
  const short = passphrase.length < PASSPHRASE_MIN;
  const differ = passphrase !== again;
  const set = (): Promise<void> => call('lockSet', { kind: 'passphrase', passphrase }).then(changed);
  const form = useForm(!short && !differ, set, onClose);
  return (
    <FormDialog title={words.setPassphrase} action={words.set} form={form} onClose={onClose}>
      <p>{words.passphraseLead}</p>
      <Field
        kind="secret"
        label={words.passphrase}
        value={passphrase}
        onValue={setPassphrase}
        autoComplete="new-password"
        hint={words.short}
        error={form.tried && short ? words.short : null}
        autoFocus
      />
      <Field
        kind="secret"
        label={words.repeat}
        value={again}
        onValue={setAgain}
        autoComplete="new-password"
        error={form.tried && !short && differ ? pagesText.settings.differ : null}
      />
    </FormDialog>
  );
}

function PasskeyDialog({ name, onClose }: AskProps & { name: string }) {
  const task = useTask();
  const make = async (): Promise<void> => {
    await call('lockSet', { kind: 'passkey', ...(await makePasskey(name)) });
    changed();
  };
  return (
    <Dialog
      title={words.setPasskey}
      onClose={onClose}
      actions={
        <Button kind="primary" busy={task.busy} onClick={() => task.run(make, onClose)} autoFocus>
          {words.make}
        </Button>
      }
    >
      <p>{words.passkeyLead}</p>
      <PasskeyProblem problem={task.problem} words={words} />
    </Dialog>
  );
}
