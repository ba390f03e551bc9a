/** Settings of this browser and of the account. */
import { useState } from 'preact/hooks';
import { NAME_MAX } from '../../protocol/limits.js';
import { reasonOf } from '../../sdk/reasons.js';
import type { DeviceInfo, StorageUse } from '../link/messages.js';
import { Confirm, FormDialog } from './dialogs.js';
import { Button, Field, Notice, Progress, submits, toast } from './kit.js';
import { call, info } from './link.js';
import { metaContent } from './meta.js';
import { Copyable, Problem } from './screen.js';
import { PageHead, Section, useAnswer } from './section.js';
import { ArchiveSection } from './settings-archive.js';
import { LockSection } from './settings-lock.js';
import { SignOutDialog } from './sign-out.js';
import { text } from './strings.js';
import { pagesText } from './strings-pages.js';
import { useForm, useTask } from './task.js';

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
  const task = useTask();
  const shown = typed ?? name;
  const next = shown.trim();
  const changed = next !== '' && next !== name;
  const rename = (): void => {
    if (changed)
      task.run(
        () => call('deviceRename', { id: deviceId, name: next }),
        () => setTyped(null),
      );
  };
  return (
    <Section title={words.device.title}>
      <form class="stack" onSubmit={submits(rename)}>
        <Field
          label={text.kit.name}
          value={shown}
          onValue={setTyped}
          maxLength={NAME_MAX}
          after={
            changed && (
              <Button kind="quiet" submit busy={task.busy}>
                {text.kit.save}
              </Button>
            )
          }
        />
        <Problem problem={task.problem} />
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
          <Button onClick={() => setAsked('set')}>{exists ? words.password.change : words.password.set}</Button>
          {exists && <Button onClick={() => setAsked('remove')}>{words.password.remove}</Button>}
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
      <Field
        kind="secret"
        label={words.password.fresh}
        value={fresh}
        onValue={setFresh}
        autoComplete="new-password"
        autoFocus={!exists}
      />
      <Field
        kind="secret"
        label={words.password.repeat}
        value={again}
        onValue={setAgain}
        autoComplete="new-password"
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
  <Field {...field} kind="secret" label={words.password.current} autoComplete="current-password" autoFocus />
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
        >
          {words.repair.resync}
        </Button>
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
          <Button busy={task.busy} onClick={() => task.run(() => call('orphans', 'republish'))}>
            {words.repair.republish}
          </Button>
          <Button kind="danger" onClick={() => setDropping(true)}>
            {words.repair.discard}
          </Button>
        </>
      }
    >
      {words.repair.orphans(count)}
      <Problem problem={task.problem} />
      {dropping && (
        <Confirm
          title={words.repair.discardTitle}
          action={words.repair.discard}
          onYes={() => call('orphans', 'discard')}
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
        <Button href="#/trust">{pagesText.trust.title}</Button>
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
        <Button kind="danger" onClick={() => setAsking(true)}>
          {words.leave.title}
        </Button>
      </div>
      {asking && <SignOutDialog onClose={() => setAsking(false)} />}
    </Section>
  );
}
