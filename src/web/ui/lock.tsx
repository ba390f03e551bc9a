/** The screen of a locked browser: unlock by passphrase or passkey, or remove everything. */
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import type { Failure, Phase } from '../link/messages.js';
import { Lock } from './icons.js';
import { Button, Confirm, Field } from './kit.js';
import { call, phase, shared } from './link.js';
import { askPasskey } from './passkey.js';
import { PasskeyProblem, Problem, Screen } from './screen.js';
import { text } from './strings.js';
import { useTask } from './task.js';

const words = text.lock;

/** Screen of the phase `locked`. */
export function LockScreen(): JSX.Element | null {
  const [lost, setLost] = useState(false);
  const now = phase.value;
  const waiting = shared.value?.count ?? 0;
  if (now?.phase !== 'locked') return null;
  return (
    <>
      {now.kind === 'passkey' ? (
        <ByPasskey now={now} waiting={waiting} onLost={() => setLost(true)} />
      ) : (
        <ByPassphrase waiting={waiting} onLost={() => setLost(true)} />
      )}
      {lost && <ForgetDialog onClose={() => setLost(false)} />}
    </>
  );
}

interface LockProps {
  readonly waiting: number;
  readonly onLost: () => void;
}

/** The engine's error code for a wrong passphrase or passkey. */
const isWrong = (problem: Failure | null): boolean => problem?.code === 'bad_identity';

function ByPassphrase({ waiting, onLost }: LockProps) {
  const [passphrase, setPassphrase] = useState('');
  const task = useTask();
  return (
    <Screen
      title={words.title}
      icon={Lock}
      onSubmit={() => {
        if (passphrase !== '') task.run(() => call('unlock', { passphrase }));
      }}
    >
      <Field
        kind="secret"
        label={words.passphrase}
        value={passphrase}
        onValue={setPassphrase}
        autoComplete="current-password"
        error={isWrong(task.problem) ? words.wrong : null}
        autoFocus
      />
      <Problem problem={isWrong(task.problem) ? null : task.problem} />
      <Waiting count={waiting} />
      <div class="step-foot">
        <Button kind="primary" submit wide busy={task.busy} disabled={passphrase === ''}>
          {words.open}
        </Button>
        <Button kind="quiet" onClick={onLost}>
          {words.lost}
        </Button>
      </div>
    </Screen>
  );
}

function ByPasskey({ now, waiting, onLost }: LockProps & { readonly now: Extract<Phase, { phase: 'locked' }> }) {
  const task = useTask();
  const open = (): void =>
    task.run(async () => {
      if (now.passkey !== null) await call('unlock', { secret: await askPasskey(now.passkey) });
    });
  return (
    <Screen title={words.title} icon={Lock}>
      <PasskeyProblem problem={task.problem} words={words} />
      <Waiting count={waiting} />
      <div class="step-foot">
        <Button kind="primary" wide busy={task.busy} onClick={open} autoFocus>
          {words.usePasskey}
        </Button>
        <Button kind="quiet" onClick={onLost}>
          {words.lost}
        </Button>
      </div>
    </Screen>
  );
}

const Waiting = ({ count }: { readonly count: number }) =>
  count === 0 ? null : <p class="quiet">{words.shared(count)}</p>;

/** Removes everything from this browser, after explaining the consequences. */
export function ForgetDialog({ onClose }: { readonly onClose: () => void }): JSX.Element {
  const task = useTask();
  return (
    <Confirm
      title={words.forgetTitle}
      action={words.forget}
      busy={task.busy}
      onYes={() => task.run(() => call('forget'))}
      onClose={onClose}
    >
      <p>{words.forgetLead}</p>
      <p class="quiet">{words.forgetRevoke}</p>
      <Problem problem={task.problem} />
    </Confirm>
  );
}
