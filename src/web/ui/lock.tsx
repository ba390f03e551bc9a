/** The screen of a locked browser: unlock by passphrase or passkey, or remove everything. */
import { Lock } from 'lucide-preact';
import { useState } from 'preact/hooks';
import { Button, Field } from './kit.js';
import { call, phase, shared } from './link.js';
import { askPasskey } from './passkey.js';
import { PasskeyProblem, Screen, useForm, Confirm } from './screen.js';
import { text } from './strings.js';

const words = text.lock;

/** Screen of the phase `locked`. */
export function LockScreen() {
  const [lost, setLost] = useState(false);
  const [passphrase, setPassphrase] = useState('');
  const now = phase.value;
  const passkey = now?.phase === 'locked' ? now.passkey : null;
  const unlock = async (): Promise<void> =>
    call('unlock', passkey === null ? { passphrase } : { secret: await askPasskey(passkey) });
  const form = useForm(passkey !== null || passphrase !== '', unlock);
  const isWrong = passkey === null && form.problem?.code === 'bad_identity';
  const waiting = shared.value?.count ?? 0;
  if (now?.phase !== 'locked') return null;
  return (
    <>
      <Screen title={words.title} icon={Lock} onSubmit={form.submit}>
        {passkey === null && (
          <Field
            kind="secret"
            label={words.passphrase}
            value={passphrase}
            onValue={setPassphrase}
            autoComplete="current-password"
            error={isWrong ? words.wrong : null}
            autoFocus
          />
        )}
        <PasskeyProblem problem={isWrong ? null : form.problem} words={words} />
        {waiting > 0 && <p class="quiet">{words.shared(waiting)}</p>}
        <div class="step-foot">
          <Button
            kind="primary"
            submit
            wide
            busy={form.busy}
            disabled={passkey === null && passphrase === ''}
            autoFocus={passkey !== null}
            label={passkey === null ? words.open : words.usePasskey}
          />
          <Button kind="quiet" onClick={() => setLost(true)} label={words.lost} />
        </div>
      </Screen>
      {lost && <ForgetDialog onClose={() => setLost(false)} />}
    </>
  );
}

/** Removes everything from this browser, after explaining the consequences. */
export function ForgetDialog({ onClose }: { onClose: () => void }) {
  return (
    <Confirm title={words.forgetTitle} action={words.forget} onYes={() => call('forget')} onClose={onClose}>
      <p>{words.forgetLead}</p>
      <p class="quiet">{words.forgetRevoke}</p>
    </Confirm>
  );
}
