/** The screen of a locked browser: unlock by passphrase or passkey, or remove everything. */
import { Lock } from 'lucide-preact';
import { Button, Field, useTyped } from './kit.js';
import { call, isRevoked, phase, shared } from './link.js';
import { askPasskey } from './passkey.js';
import { ask, Problem, Screen, useForm } from './screen.js';
import * as text from './strings.js';

const words = text.lock;

/** Screen of the phase `locked`. */
export function LockScreen() {
  const passphrase = useTyped();
  const now = phase.value;
  const passkey = now?.phase === 'locked' ? now.passkey : null;
  const unlock = async (): Promise<void> =>
    call('unlock', passkey === null ? { passphrase: passphrase.value } : { secret: await askPasskey(passkey) });
  const form = useForm(passkey !== null || passphrase.value !== '', unlock);
  const isWrong = passkey === null && form.problem?.code === 'bad_identity';
  const waiting = shared.value?.count ?? 0;
  if (now?.phase !== 'locked') return null;
  return (
    <Screen title={words.title} icon={Lock} onSubmit={form.submit}>
      {passkey === null && (
        <Field
          {...passphrase}
          kind="secret"
          label={words.passphrase}
          autoComplete="current-password"
          error={isWrong && words.wrong}
          autoFocus
        />
      )}
      <Problem problem={isWrong ? null : form.problem} passkey={words} />
      {waiting > 0 && <p class="quiet">{words.shared(waiting)}</p>}
      <div class="step-foot stack tight">
        <Button
          kind="primary"
          submit
          wide
          busy={form.busy}
          disabled={passkey === null && passphrase.value === ''}
          autoFocus={passkey !== null}
          label={passkey === null ? words.open : words.usePasskey}
        />
        <Button kind="quiet" onClick={askForget} label={words.lost} />
      </div>
    </Screen>
  );
}

/** Removes everything from this browser, after explaining the consequences. */
export const askForget = (): void =>
  void ask({
    title: words.forgetTitle,
    action: words.forget,
    onYes: () => call('forget'),
    children: (
      <>
        <p>{words.forgetLead}</p>
        {!isRevoked.value && <p class="quiet">{words.forgetRevoke}</p>}
      </>
    ),
  });
