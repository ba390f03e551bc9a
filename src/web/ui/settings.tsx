/** Settings of this browser and of the account. */
import { useState } from 'preact/hooks';
import { NAME_MAX } from '../../protocol/limits.js';
import { reasonOf } from '../../sdk/reasons.js';
import type { Me } from '../../sdk/replies.js';
import type { DeviceInfo, LockKind } from '../link/messages.js';
import { Button, Dialog, dialogs, Field, openDialog, Progress, Select, submits, toast, useTyped } from './kit.js';
import type { Closable, Typed } from './kit.js';
import { call, info, uploads, useLoaded } from './link.js';
import { metaContent } from './meta.js';
import { Orphaned } from './orphaned.js';
import { ask, Confirm, Copyable, Problem, useForm, useTask, FormDialog } from './screen.js';
import { PageFrame, Section, useAnswer } from './section.js';
import { ArchiveSection } from './settings-archive.js';
import { ImportSection } from './settings-import.js';
import * as text from './strings.js';
import { pagesText } from './strings-pages.js';
import { makePasskey, passkeysWork } from './passkey.js';

const words = pagesText.settings;

/** The settings of this device. */
export function SettingsScreen() {
  const now = info.value;
  const { value: storage } = useAnswer(() => call('storage'), 0);
  return (
    <PageFrame title={text.frame.settings}>
      {now != null && (
        <>
          <DeviceSection info={now} />
          <LockSection lock={now.lock} name={now.name} />
          <PasswordSection />
          <StorageSection storage={storage} />
          <ImportSection />
          <ArchiveSection />
          <RepairSection info={now} />
          <AboutSection serverVersion={storage?.version} />
          <LeaveSection />
        </>
      )}
    </PageFrame>
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
      <dl class="stack">
        <Fact name={words.device.server} value={serverUrl} />
        <Fact name={words.device.fingerprint} hint={words.device.fingerprintHint} value={fingerprint} />
        <Fact name={words.device.master} hint={words.device.masterHint} value={masterFingerprint} />
      </dl>
    </Section>
  );
}

function Fact({ name, value, hint }: { name: string; value: string; hint?: string }) {
  return (
    <div class="fact stack">
      <dt class="small strong">{name}</dt>
      <dd>
        <Copyable value={value} label={`${text.kit.copy}: ${name}`} />
      </dd>
      {hint !== undefined && <dd class="quiet small">{hint}</dd>}
    </div>
  );
}

/** The account password: set, changed, removed. */
function PasswordSection() {
  // A dialog may have changed it.
  const { value: exists } = useAnswer<boolean>(() => call('passwordExists'), dialogs.value);
  const set = (): void => void openDialog((dialog) => <SetPasswordDialog {...dialog} exists={exists === true} />);
  return (
    <Section title={text.begin.password.title}>
      <p class="quiet">
        {words.password.lead}{' '}
        {exists === undefined ? words.password.unknown : exists ? words.password.exists : words.password.none}
      </p>
      {exists !== undefined && (
        <div class="line wrap">
          <Button onClick={set} label={exists ? words.password.change : words.password.set} />
          {exists && <Button onClick={() => openDialog(RemovePasswordDialog)} label={words.password.remove} />}
        </div>
      )}
    </Section>
  );
}

function SetPasswordDialog({ exists, onClose }: Closable & { exists: boolean }) {
  const current = useTyped();
  const fresh = useTyped();
  const again = useTyped();
  const differ = fresh.value !== again.value;
  const set = async (): Promise<void> => {
    await call('passwordSet', { password: fresh.value, current: exists ? current.value : null });
    toast(words.password.done);
  };
  const form = useForm(fresh.value !== '' && !differ && (!exists || current.value !== ''), set, onClose);
  return (
    <FormDialog
      title={exists ? words.password.change : words.password.set}
      action={words.lock.set}
      form={form}
      onClose={onClose}
    >
      {exists && <CurrentPassword {...current} />}
      <Field {...fresh} kind="secret" label={words.password.fresh} />
      <Field {...again} kind="secret" label={words.password.repeat} error={form.tried && differ && words.differ} />
    </FormDialog>
  );
}

function RemovePasswordDialog({ onClose }: Closable) {
  const current = useTyped();
  const remove = (): Promise<void> => call('passwordRemove', current.value).then(() => toast(words.password.removed));
  const form = useForm(current.value !== '', remove, onClose);
  return (
    <FormDialog
      title={words.password.remove}
      action={words.password.remove}
      danger
      disabled={current.value === ''}
      form={form}
      onClose={onClose}
    >
      <p>{words.password.removeLead}</p>
      <CurrentPassword {...current} />
    </FormDialog>
  );
}

const CurrentPassword = (field: Typed) => (
  <Field {...field} kind="secret" label={words.password.current} autoComplete="current-password" />
);

/** `storage` undefined: the server has not answered. */
function StorageSection({ storage }: { storage: Me['server'] | undefined }) {
  const { storageUsedBytes: used = 0, storageCapBytes: cap = 0, itemCount = 0 } = storage ?? {};
  return (
    <Section title={words.storage.title}>
      {cap > 0 && <Progress label={words.storage.label} value={Math.min(used, cap)} max={cap} />}
      {storage === undefined ? (
        <p class="quiet">{words.unknown}</p>
      ) : (
        <p class="line wrap between">
          <span>{cap > 0 ? words.storage.used(used, cap) : words.storage.usedOnly(used)}</span>
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
  const readAgain = (): Promise<void> => call('resync').then(() => toast(words.repair.resynced));
  return (
    <Section title={words.repair.title}>
      <p class={hidden === 0 ? 'quiet' : undefined}>{hidden === 0 ? words.repair.none : words.repair.hidden(hidden)}</p>
      {hidden > 0 && (
        <details>
          <summary>{words.repair.which}</summary>
          <HiddenList count={hidden} />
        </details>
      )}
      {orphaned > 0 && <Orphaned count={orphaned} />}
      <p class="quiet small">{words.repair.resyncLead}</p>
      <Button {...resync.button(readAgain)} label={words.repair.resync} />
      <Problem problem={resync.problem} />
    </Section>
  );
}

/** Items that do not verify: why, and what to do. */
export function HiddenList({ count }: { count: number }) {
  const { value: rows = [], problem } = useAnswer(() => call('hidden'), count);
  return (
    <>
      <Problem problem={problem} />
      <ul class="rows hidden-rows">
        {rows.slice(0, HIDDEN_MAX).map(({ id, reason, kept }) => (
          <li key={id} class="line">
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
    </>
  );
}

function AboutSection({ serverVersion }: { serverVersion: string | undefined }) {
  const page = metaContent('version');
  return (
    <Section title={words.about.title}>
      <p class="quiet">
        {serverVersion === undefined ? words.about.page(page) : words.about.version(page, serverVersion)}
      </p>
      <Button href="#/trust" label={pagesText.trust.title} />
    </Section>
  );
}

function LeaveSection() {
  return (
    <Section title={words.leave.title}>
      <p class="quiet">{words.leave.lead}</p>
      <Button kind="danger" onClick={() => openDialog(SignOutDialog)} label={words.leave.title} />
    </Section>
  );
}

const MINUTES = [1, 5, 15, 60] as const;
const NEVER = 'never';
const PASSPHRASE_MIN = 8;

/** `name`: of this device, for the passkey's label. */
function LockSection({ lock, name }: { lock: DeviceInfo['lock']; name: string }) {
  const { value: passkeys = true } = useLoaded(passkeysWork, []);
  const task = useTask();
  const kinds: readonly LockKind[] =
    passkeys || lock.kind === 'passkey' ? ['none', 'passphrase', 'passkey'] : ['none', 'passphrase'];
  const choose = (kind: LockKind): void => {
    if (kind === 'none') askUnlock();
    else if (kind === 'passphrase') openDialog(PassphraseDialog);
    else openDialog((dialog) => <PasskeyDialog {...dialog} name={name} />);
  };
  return (
    <Section title={words.lock.title}>
      <p class="quiet">{words.lock.is[lock.kind]}</p>
      <Select
        label={words.lock.kind}
        value={lock.kind}
        options={kinds.map((kind) => ({ value: kind, label: words.lock[kind] }))}
        onValue={choose}
        hint={passkeys ? undefined : words.lock.noPasskey}
      />
      {lock.kind === 'passphrase' && (
        <Button onClick={() => openDialog(PassphraseDialog)} label={words.lock.changePassphrase} />
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
    </Section>
  );
}

const changed = (): void => toast(words.lock.changed);

const askUnlock = (): void =>
  void ask({
    title: words.lock.offTitle,
    action: words.lock.off,
    onYes: () => call('lockSet', { kind: 'none' }).then(changed),
    children: <p>{words.lock.is.none}</p>,
  });

function PassphraseDialog({ onClose }: Closable) {
  const passphrase = useTyped();
  const again = useTyped();
  const short = passphrase.value.length < PASSPHRASE_MIN;
  const differ = !short && passphrase.value !== again.value;
  const set = (): Promise<void> => call('lockSet', { kind: 'passphrase', passphrase: passphrase.value }).then(changed);
  const form = useForm(!short && !differ, set, onClose);
  return (
    <FormDialog title={words.lock.setPassphrase} action={words.lock.set} form={form} onClose={onClose}>
      <p>{words.lock.passphraseLead}</p>
      <Field
        {...passphrase}
        kind="secret"
        label={words.lock.passphrase}
        hint={words.lock.short}
        error={form.tried && short && words.lock.short}
      />
      <Field {...again} kind="secret" label={words.lock.repeat} error={form.tried && differ && words.differ} />
    </FormDialog>
  );
}

function PasskeyDialog({ name, onClose }: Closable & { name: string }) {
  const task = useTask();
  const make = async (): Promise<void> => {
    await call('lockSet', { kind: 'passkey', ...(await makePasskey(name)) });
    changed();
  };
  return (
    <Dialog
      title={words.lock.setPasskey}
      onClose={onClose}
      actions={<Button kind="primary" {...task.button(make, onClose)} autoFocus label={words.lock.make} />}
    >
      <p>{words.lock.passkeyLead}</p>
      <Problem problem={task.problem} passkey={words.lock} />
    </Dialog>
  );
}

/** Asks before this browser is signed out; if the server is unreachable, the device is forgotten but not revoked. */
export function SignOutDialog({ onClose }: Closable) {
  const [knows, setKnows] = useState(false);
  const waiting = info.value?.waiting.count ?? 0;
  const connected = info.value?.connection.state === 'connected';
  // The item of a queued file is among the changes.
  const files = uploads.value?.filter(({ queued }) => !queued).length ?? 0;
  const loses = waiting + files > 0;
  const forget = { action: words.leave.forget, onYes: () => call('forget') };
  const signOut = { action: words.leave.title, onYes: () => call('signOut'), instead: forget };
  return (
    <Confirm
      title={words.leave.dialog}
      {...(connected ? signOut : forget)}
      disabled={loses && !knows}
      onClose={onClose}
    >
      <p>{connected ? words.leave.does : words.leave.offline}</p>
      <p>{words.leave.only}</p>
      {loses && (
        <div>
          {waiting > 0 && <p class="danger-text">{words.leave.waiting(waiting)}</p>}
          {files > 0 && <p class="danger-text">{words.leave.uploads(files)}</p>}
          <label class="check">
            <input type="checkbox" checked={knows} onChange={(event) => setKnows(event.currentTarget.checked)} />
            <span>{words.leave.lose}</span>
          </label>
        </div>
      )}
    </Confirm>
  );
}
