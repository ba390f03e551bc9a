/** Settings of this browser and of the account. */
import { useState } from 'preact/hooks';
import { NAME_MAX } from '../../protocol/limits.js';
import { reasonOf } from '../../sdk/reasons.js';
import type { DeviceInfo, StorageUse, LockKind } from '../link/messages.js';
import { Button, Field, Notice, Progress, submits, toast, Dialog, Select } from './kit.js';
import { call, info, useLoaded } from './link.js';
import { metaContent } from './meta.js';
import { Copyable, Problem, useForm, useTask, Confirm, FormDialog, PasskeyProblem } from './screen.js';
import { PageHead, Section, useAnswer } from './section.js';
import { ArchiveSection } from './settings-archive.js';
import { text } from './strings.js';
import { pagesText } from './strings-pages.js';
import { makePasskey, passkeysWork } from './passkey.js';

const words = pagesText.settings;

/** The settings of this device. */
export function SettingsScreen() {
  const now = info.value;
  const { value: storage } = useAnswer(() => call('storage'), 0);
  return (
    <div class="page">
      <PageHead title={words.title} />
      <div class="stack loose">
        {now != null && (
          <>
            <DeviceSection info={now} />
            <LockSection lock={now.lock} name={now.name} />
            <PasswordSection />
            <StorageSection storage={storage} />
            <ArchiveSection />
            <RepairSection info={now} />
            <AboutSection serverVersion={storage?.serverVersion} />
            <LeaveSection />
          </>
        )}
      </div>
    </div>
  );
}

function DeviceSection({ info: { deviceId, name, serverUrl, fingerprint, masterFingerprint } }: { info: DeviceInfo }) {
  const [typed, setTyped] = useState<string | null>(null);
  const shown = typed ?? name;
  const next = shown.trim();
  const changed = next !== '' && next !== name;
  const rename = (): Promise<void> => call('deviceRename', { id: deviceId, name: next });
  const form = useForm(changed, rename, () => setTyped(null));
  return (
    <Section title={words.device.title}>
      <form class="stack" onSubmit={submits(form.submit)}>
        <Field
          label={text.kit.name}
          value={shown}
          onValue={setTyped}
          maxLength={NAME_MAX}
          after={changed && <Button kind="quiet" submit busy={form.busy} label={text.kit.save} />}
        />
        <Problem problem={form.problem} />
      </form>
      <dl class="facts-list stack">
        <Fact name={words.device.server} value={serverUrl} />
        <Fact name={words.device.fingerprint} hint={words.device.fingerprintHint} value={fingerprint} />
        <Fact name={words.device.master} hint={words.device.masterHint} value={masterFingerprint} />
      </dl>
    </Section>
  );
}

function Fact({ name, value, hint }: { name: string; value: string; hint?: string }) {
  return (
    <div>
      <dt class="label">{name}</dt>
      <dd>
        <Copyable value={value} label={`${text.kit.copy}: ${name}`} />
      </dd>
      {hint !== undefined && <dd class="quiet small">{hint}</dd>}
    </div>
  );
}

/** The account password: set, changed, removed. */
function PasswordSection() {
  const [asked, setAsked] = useState<'set' | 'remove' | null>(null);
  const [turn, setTurn] = useState(0);
  const { value: exists } = useAnswer<boolean>(() => call('passwordExists'), turn);
  const close = (): void => setAsked(null);
  const done = (message: string): void => {
    toast(message);
    close();
    setTurn(turn + 1);
  };
  return (
    <Section title={words.password.title}>
      <p class="quiet">
        {words.password.lead}{' '}
        {exists === undefined ? words.unknown : exists ? words.password.exists : words.password.none}
      </p>
      {exists !== undefined && (
        <div class="line wrap">
          <Button onClick={() => setAsked('set')} label={exists ? words.password.change : words.password.set} />
          {exists && <Button onClick={() => setAsked('remove')} label={words.password.remove} />}
        </div>
      )}
      {asked === 'set' && <SetPasswordDialog exists={exists === true} onDone={done} onClose={close} />}
      {asked === 'remove' && <RemovePasswordDialog onDone={done} onClose={close} />}
    </Section>
  );
}

interface PasswordDialogProps {
  readonly onDone: (message: string) => void;
  readonly onClose: () => void;
}

function SetPasswordDialog({ exists, onDone, onClose }: PasswordDialogProps & { exists: boolean }) {
  const [current, setCurrent] = useState('');
  const [fresh, setFresh] = useState('');
  const [again, setAgain] = useState('');
  const form = useForm(
    fresh !== '' && fresh === again && (!exists || current !== ''),
    () => call('passwordSet', { password: fresh, current: exists ? current : null }),
    () => onDone(words.password.done),
  );
  return (
    <FormDialog
      title={exists ? words.password.change : words.password.set}
      action={words.lock.set}
      form={form}
      onClose={onClose}
    >
      {exists && <CurrentPassword value={current} onValue={setCurrent} />}
      <Field kind="secret" label={words.password.fresh} value={fresh} onValue={setFresh} />
      <Field
        kind="secret"
        label={words.password.repeat}
        value={again}
        onValue={setAgain}
        error={form.tried && fresh !== again ? words.differ : null}
      />
    </FormDialog>
  );
}

function RemovePasswordDialog({ onDone, onClose }: PasswordDialogProps) {
  const [current, setCurrent] = useState('');
  const remove = (): Promise<void> => call('passwordRemove', current);
  const form = useForm(current !== '', remove, () => onDone(words.password.removed));
  return (
    <FormDialog
      title={words.password.remove}
      action={words.password.remove}
      danger
      disabled={current === ''}
      form={form}
      onClose={onClose}
    >
      <p>{words.password.removeLead}</p>
      <CurrentPassword value={current} onValue={setCurrent} />
    </FormDialog>
  );
}

const CurrentPassword = (field: { value: string; onValue: (value: string) => void }) => (
  <Field {...field} kind="secret" label={words.password.current} autoComplete="current-password" />
);

/** `storage` undefined: the server has not answered. */
function StorageSection({ storage }: { storage: StorageUse | undefined }) {
  const { usedBytes = 0, capBytes = 0, itemCount = 0 } = storage ?? {};
  return (
    <Section title={words.storage.title}>
      {capBytes > 0 && <Progress label={words.storage.label} value={Math.min(usedBytes, capBytes)} max={capBytes} />}
      {storage === undefined ? (
        <p class="quiet">{words.unknown}</p>
      ) : (
        <p class="line wrap between">
          <span>{capBytes > 0 ? words.storage.used(usedBytes, capBytes) : words.storage.usedOnly(usedBytes)}</span>
          <span class="quiet">{words.storage.items(itemCount)}</span>
        </p>
      )}
    </Section>
  );
}

/** Hidden items listed at most, because a hostile server can cause any number. */
const HIDDEN_MAX = 100;

/** Items that do not verify, items that a restored server lost, and resynchronisation. */
function RepairSection({ info: { hidden, orphaned } }: { info: DeviceInfo }) {
  const resync = useTask();
  return (
    <Section title={words.repair.title}>
      {hidden === 0 ? <p class="quiet">{words.repair.none}</p> : <Hidden count={hidden} />}
      {orphaned > 0 && <Orphans count={orphaned} />}
      <p class="quiet small">{words.repair.resyncLead}</p>
      <div>
        <Button
          busy={resync.busy}
          onClick={() =>
            resync.run(
              () => call('resync'),
              () => toast(words.repair.resynced),
            )
          }
          label={words.repair.resync}
        />
      </div>
      <Problem problem={resync.problem} />
    </Section>
  );
}

function Hidden({ count }: { count: number }) {
  const { value: rows = [], problem } = useAnswer(() => call('hidden'), count);
  return (
    <>
      <p>{words.repair.hidden(count)}</p>
      <Problem problem={problem} />
      {rows.length > 0 && (
        <details>
          <summary>{words.repair.which}</summary>
          <ul class="rows hidden-rows">
            {rows.slice(0, HIDDEN_MAX).map(({ id, reason, kept }) => (
              <li key={id}>
                <div class="stack tight">
                  <p>{reasonOf(reason)?.meaning ?? reason}</p>
                  <p class="quiet small">
                    {reasonOf(reason)?.whatToDo} {kept && words.repair.kept}
                  </p>
                  <code class="quiet small" dir="ltr">
                    {id}
                  </code>
                </div>
              </li>
            ))}
          </ul>
          {rows.length > HIDDEN_MAX && <p class="quiet small">{words.repair.more(rows.length - HIDDEN_MAX)}</p>}
        </details>
      )}
    </>
  );
}

function Orphans({ count }: { count: number }) {
  const [dropping, setDropping] = useState(false);
  const task = useTask();
  return (
    <Notice
      kind="warn"
      actions={
        <>
          <Button
            busy={task.busy}
            onClick={() => task.run(() => call('orphans', 'republish'))}
            label={words.repair.republish}
          />
          <Button kind="danger" busy={task.busy} onClick={() => setDropping(true)} label={words.repair.discard} />
        </>
      }
    >
      {words.repair.orphans(count)}
      {!dropping && <Problem problem={task.problem} />}
      {dropping && (
        <Confirm
          title={words.repair.discardTitle}
          action={words.repair.discard}
          onYes={() => call('orphans', 'discard')}
          task={task}
          onClose={() => setDropping(false)}
        >
          <p>{words.repair.discardLead}</p>
        </Confirm>
      )}
    </Notice>
  );
}

function AboutSection({ serverVersion }: { serverVersion: string | undefined }) {
  const page = metaContent('version');
  return (
    <Section title={words.about.title}>
      <p class="quiet">
        {serverVersion === undefined ? words.about.page(page) : words.about.version(page, serverVersion)}
      </p>
      <div>
        <Button href="#/trust" label={pagesText.trust.title} />
      </div>
    </Section>
  );
}

function LeaveSection() {
  const [asking, setAsking] = useState(false);
  return (
    <Section title={words.leave.title}>
      <p class="quiet">{words.leave.lead}</p>
      <div>
        <Button kind="danger" onClick={() => setAsking(true)} label={words.leave.title} />
      </div>
      {asking && <SignOutDialog onClose={() => setAsking(false)} />}
    </Section>
  );
}

const MINUTES = [1, 5, 15, 60] as const;
const NEVER = 'never';
const PASSPHRASE_MIN = 8;

/** `name`: of this device, for the passkey's label. */
function LockSection({ lock, name }: { lock: DeviceInfo['lock']; name: string }) {
  const [asked, setAsked] = useState<LockKind | null>(null);
  const { value: passkeys = true } = useLoaded(passkeysWork, []);
  const task = useTask();
  const kinds: readonly LockKind[] =
    passkeys || lock.kind === 'passkey' ? ['none', 'passphrase', 'passkey'] : ['none', 'passphrase'];
  const close = (): void => setAsked(null);
  return (
    <Section title={words.lock.title}>
      <p class="quiet">{words.lock.is[lock.kind]}</p>
      <Select
        label={words.lock.kind}
        value={lock.kind}
        options={kinds.map((kind) => ({ value: kind, label: words.lock[kind] }))}
        onValue={setAsked}
        hint={passkeys ? undefined : words.lock.noPasskey}
      />
      {lock.kind === 'passphrase' && (
        <div>
          <Button onClick={() => setAsked('passphrase')} label={words.lock.setPassphrase} />
        </div>
      )}
      {lock.kind !== 'none' && (
        <div class="lock-after">
          <Select
            label={words.lock.after}
            value={`${lock.afterMinutes ?? NEVER}`}
            options={[...MINUTES, null].map((minutes) => ({
              value: `${minutes ?? NEVER}`,
              label: words.lock.minutes(minutes),
            }))}
            onValue={(value) => task.run(() => call('lockAfter', value === NEVER ? null : Number(value)))}
          />
          <Button onClick={() => task.run(() => call('lock'))} label={text.frame.lock} />
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

const changed = (): void => toast(words.lock.changed);

function UnlockDialog({ onClose }: AskProps) {
  return (
    <Confirm
      title={words.lock.offTitle}
      action={words.lock.off}
      onYes={() => call('lockSet', { kind: 'none' }).then(changed)}
      onClose={onClose}
    >
      <p>{words.lock.is.none}</p>
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
    <FormDialog title={words.lock.setPassphrase} action={words.lock.set} form={form} onClose={onClose}>
      <p>{words.lock.passphraseLead}</p>
      <Field
        kind="secret"
        label={words.lock.passphrase}
        value={passphrase}
        onValue={setPassphrase}
        hint={words.lock.short}
        error={form.tried && short ? words.lock.short : null}
      />
      <Field
        kind="secret"
        label={words.lock.repeat}
        value={again}
        onValue={setAgain}
        error={form.tried && !short && differ ? words.differ : null}
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
      title={words.lock.setPasskey}
      onClose={onClose}
      actions={
        <Button
          kind="primary"
          busy={task.busy}
          onClick={() => task.run(make, onClose)}
          autoFocus
          label={words.lock.make}
        />
      }
    >
      <p>{words.lock.passkeyLead}</p>
      <PasskeyProblem problem={task.problem} words={words.lock} />
    </Dialog>
  );
}

/** Asks before this browser is signed out; if the server is unreachable, the device is forgotten but not revoked. */
export function SignOutDialog({ onClose }: { onClose: () => void }) {
  const [knows, setKnows] = useState(false);
  const task = useTask();
  const waiting = info.value?.waiting.count ?? 0;
  const connected = info.value?.connection.state === 'connected';
  const go = (how: 'signOut' | 'forget') => (): void => task.run(() => call(how), onClose);
  const barred = waiting > 0 && !knows;
  return (
    <Dialog
      title={words.leave.dialog}
      onClose={onClose}
      plain
      actions={
        <>
          <Button onClick={onClose} autoFocus label={text.kit.cancel} />
          <Button
            kind="danger"
            busy={task.busy}
            disabled={barred}
            onClick={go(connected ? 'signOut' : 'forget')}
            label={connected ? words.leave.title : words.leave.forget}
          />
        </>
      }
    >
      <p>{connected ? words.leave.does : words.leave.offline}</p>
      <p>{words.leave.only}</p>
      {waiting > 0 && (
        <div>
          <p class="danger-text">{words.leave.waiting(waiting)}</p>
          <label class="check">
            <input type="checkbox" checked={knows} onChange={(event) => setKnows(event.currentTarget.checked)} />
            <span>{words.leave.lose}</span>
          </label>
        </div>
      )}
      <Problem
        problem={task.problem}
        actions={
          connected && <Button kind="danger" disabled={barred} onClick={go('forget')} label={words.leave.forget} />
        }
      />
    </Dialog>
  );
}
