/** Settings of this browser and of the account. */
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { NAME_MAX } from '../../protocol/limits.js';
import type { DeviceInfo, StorageUse } from '../link/messages.js';
import { Button, Field, Progress, submits } from './kit.js';
import { call, info } from './link.js';
import { metaContent } from './meta.js';
import { Copyable, Problem } from './screen.js';
import { PageHead, Section, useAnswer } from './section.js';
import { ArchiveSection } from './settings-archive.js';
import { LockSection } from './settings-lock.js';
import { PasswordSection } from './settings-password.js';
import { RepairSection } from './settings-repair.js';
import { SignOutDialog } from './sign-out.js';
import { text } from './strings.js';
import { pagesText } from './strings-pages.js';
import { useTask } from './task.js';

const words = pagesText.settings;

/** The settings of this device. */
export function SettingsScreen(): JSX.Element {
  const now = info.value;
  const { value: storage } = useAnswer(() => call('storage'), 0);
  return (
    <div class="page">
      <PageHead title={words.title} />
      <div class="stack loose">
        {now !== null && now !== undefined && (
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

function DeviceSection({
  info: { deviceId, name, serverUrl, fingerprint, masterFingerprint },
}: {
  readonly info: DeviceInfo;
}) {
  const [typed, setTyped] = useState<string | null>(null);
  const task = useTask();
  const shown = typed ?? name;
  const changed = shown.trim() !== '' && shown.trim() !== name;
  return (
    <Section title={words.device.title}>
      <form
        class="stack"
        onSubmit={submits(() => {
          if (!changed) return;
          task.run(async () => {
            await call('deviceRename', { id: deviceId, name: shown.trim() });
            setTyped(null);
          });
        })}
      >
        <Field
          label={pagesText.devices.name}
          value={shown}
          onValue={setTyped}
          maxLength={NAME_MAX}
          after={
            changed ? (
              <Button kind="quiet" submit busy={task.busy}>
                {pagesText.devices.save}
              </Button>
            ) : undefined
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

function Fact({ name, value, hint }: { readonly name: string; readonly value: string; readonly hint?: string }) {
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

/** `storage` undefined: the server has not answered. */
function StorageSection({ storage }: { readonly storage: StorageUse | undefined }) {
  if (storage === undefined) {
    return (
      <Section title={words.storage.title}>
        <p class="quiet">{words.storage.unknown}</p>
      </Section>
    );
  }
  const { usedBytes, capBytes, itemCount } = storage;
  return (
    <Section title={words.storage.title}>
      {capBytes > 0 && <Progress label={words.storage.label} value={Math.min(usedBytes, capBytes)} max={capBytes} />}
      <p class="line wrap between">
        <span>{capBytes > 0 ? words.storage.used(usedBytes, capBytes) : words.storage.usedOnly(usedBytes)}</span>
        <span class="quiet">{words.storage.items(itemCount)}</span>
      </p>
    </Section>
  );
}

function AboutSection({ serverVersion }: { readonly serverVersion: string | undefined }) {
  const page = metaContent('version');
  return (
    <Section title={words.about.title}>
      <p class="quiet">
        {serverVersion === undefined ? words.about.page(page) : words.about.version(page, serverVersion)}
      </p>
      <div>
        <Button href="#/trust">{words.about.trust}</Button>
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
