/** The user's devices: names, certificates, pairing and revocation. */
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { NAME_MAX } from '../../protocol/limits.js';
import type { DeviceRow } from '../link/messages.js';
import { deviceIcon } from './device-icons.js';
import { FormDialog } from './form-dialog.js';
import { Plus } from './icons.js';
import { Button, Confirm, Field, Glyph, Notice, OneLine, When } from './kit.js';
import { Menu } from './menu.js';
import { call, devices, info } from './link.js';
import { PairDialog } from './pair.js';
import { Problem } from './screen.js';
import { PageHead, useAnswer } from './section.js';
import { SignOutDialog } from './sign-out.js';
import { pagesText } from './strings-pages.js';
import { useTask } from './task.js';

const words = pagesText.devices;

/** The open dialog, and the device that it is about. */
interface Open {
  readonly about: 'rename' | 'revoke' | 'certify';
  readonly device: DeviceRow;
}

/** All devices of the vault: pair, rename, certify, revoke. */
export function DevicesScreen(): JSX.Element {
  // Who is online is as of the last reading.
  useAnswer(() => call('devicesRefresh'), null);
  const [open, setOpen] = useState<Open | null>(null);
  const [pairing, setPairing] = useState(false);
  const [leaving, setLeaving] = useState(false);
  const all = devices.value;
  const active = all?.filter(({ state }) => state === 'active') ?? [];
  const revoked = all?.filter(({ state }) => state === 'revoked') ?? [];
  const close = (): void => setOpen(null);
  return (
    <div class="page">
      <PageHead title={words.title}>
        <Button kind="primary" icon={Plus} onClick={() => setPairing(true)}>
          {words.pair}
        </Button>
      </PageHead>
      <div class="stack loose">
        {active
          .filter(({ certified }) => !certified)
          .map((device) => (
            <Uncertified key={device.id} device={device} onOpen={setOpen} />
          ))}
        {all?.length === 0 && <p class="quiet">{words.empty}</p>}
        {active.length > 0 && (
          <ul class="card flush rows">
            {[...active].sort(ownFirst).map((device) => (
              <Row key={device.id} device={device} onOpen={setOpen} onLeave={() => setLeaving(true)} />
            ))}
          </ul>
        )}
        {revoked.length > 0 && (
          <details>
            <summary>{words.revoked(revoked.length)}</summary>
            <ul class="card flush rows">
              {revoked.map((device) => (
                <RevokedRow key={device.id} device={device} />
              ))}
            </ul>
          </details>
        )}
      </div>
      {pairing && <PairDialog onClose={() => setPairing(false)} />}
      {leaving && <SignOutDialog onClose={() => setLeaving(false)} />}
      {open?.about === 'rename' && <RenameDialog device={open.device} onClose={close} />}
      {open?.about === 'revoke' && <RevokeDialog device={open.device} onClose={close} />}
      {open?.about === 'certify' && <CertifyDialog device={open.device} onClose={close} />}
    </div>
  );
}

const ownFirst = (a: DeviceRow, b: DeviceRow): number =>
  Number(b.own) - Number(a.own) || Number(b.online) - Number(a.online) || b.pairedAt - a.pairedAt;

function Row({
  device,
  onOpen,
  onLeave,
}: {
  readonly device: DeviceRow;
  readonly onOpen: (open: Open) => void;
  readonly onLeave: () => void;
}) {
  return (
    <li>
      <Glyph icon={deviceIcon(device.glyph)} accent={device.own} />
      <div class="grow">
        <p class="line">
          <OneLine value={device.name} class="strong" />
        </p>
        <p class="quiet small line wrap device-facts">
          {device.own && <span class="badge good">{words.own}</span>}
          {!device.certified && <span class="badge warn">{words.uncertified}</span>}
          <Seen device={device} />
          <span>
            {words.paired}
            <When at={device.pairedAt} />
          </span>
        </p>
      </div>
      <Menu
        label={words.menu(device.name)}
        entries={[
          { label: words.rename, onSelect: () => onOpen({ about: 'rename', device }) },
          device.own
            ? { label: pagesText.settings.leave.title, danger: true, onSelect: onLeave }
            : { label: words.revoke, danger: true, onSelect: () => onOpen({ about: 'revoke', device }) },
        ]}
      />
    </li>
  );
}

function Seen({ device }: { readonly device: DeviceRow }): JSX.Element {
  // Without a connection, the last reported state may be outdated.
  if (device.online && info.value?.connection.state === 'connected') return <span class="online">{words.online}</span>;
  if (device.lastSeenAt === null) return <span>{words.neverSeen}</span>;
  return (
    <span>
      {words.lastSeen}
      <When at={device.lastSeenAt} />
    </span>
  );
}

function RevokedRow({ device }: { readonly device: DeviceRow }) {
  return (
    <li class="quiet">
      <Glyph icon={deviceIcon(device.glyph)} />
      <div class="grow">
        <OneLine value={device.name} />
        <p class="small">
          {words.paired}
          <When at={device.pairedAt} />
        </p>
      </div>
    </li>
  );
}

function Uncertified({ device, onOpen }: { readonly device: DeviceRow; readonly onOpen: (open: Open) => void }) {
  return (
    <Notice
      kind="danger"
      title={words.uncertifiedTitle(device.name)}
      actions={
        <>
          <Button kind="danger" onClick={() => onOpen({ about: 'revoke', device })}>
            {words.revoke}
          </Button>
          {device.fingerprint !== null && (
            <Button onClick={() => onOpen({ about: 'certify', device })}>{words.isMine}</Button>
          )}
        </>
      }
    >
      {words.uncertifiedWhy}
    </Notice>
  );
}

interface AskProps {
  readonly device: DeviceRow;
  readonly onClose: () => void;
}

function RenameDialog({ device, onClose }: AskProps) {
  const [name, setName] = useState(device.name);
  const task = useTask();
  const done = name.trim() === '' || name.trim() === device.name;
  const submit = (): void =>
    task.run(async () => {
      if (!done) await call('deviceRename', { id: device.id, name: name.trim() });
      onClose();
    });
  return (
    <FormDialog
      title={words.rename}
      action={words.save}
      disabled={name.trim() === ''}
      task={task}
      onSubmit={submit}
      onClose={onClose}
    >
      <Field label={words.name} value={name} onValue={setName} maxLength={NAME_MAX} autoFocus />
    </FormDialog>
  );
}

function RevokeDialog({ device, onClose }: AskProps) {
  const task = useTask();
  const revoke = (): void =>
    task.run(async () => {
      await call('deviceRevoke', device.id);
      onClose();
    });
  return (
    <Confirm
      title={words.revokeTitle(device.name)}
      action={words.revoke}
      busy={task.busy}
      onYes={revoke}
      onClose={onClose}
    >
      <ul class="points">
        <li>{words.revokeNow}</li>
        <li>{words.revokeKept}</li>
        <li>{words.revokeStolen}</li>
      </ul>
      <Problem problem={task.problem} />
    </Confirm>
  );
}

/** The user types the fingerprint from the other device's screen, because one from the server would prove nothing. */
function CertifyDialog({ device, onClose }: AskProps) {
  const [typed, setTyped] = useState('');
  const task = useTask();
  const submit = (): void =>
    task.run(async () => {
      await call('deviceCertify', { id: device.id, fingerprint: typed.trim() });
      onClose();
    });
  const other = task.problem?.code === 'fingerprint';
  return (
    <FormDialog
      title={words.certifyTitle(device.name)}
      action={words.certify}
      disabled={typed.trim() === ''}
      task={task}
      problemInField={other}
      onSubmit={submit}
      onClose={onClose}
    >
      <p>{words.certifyLead}</p>
      <Field
        label={words.fingerprint}
        value={typed}
        onValue={setTyped}
        mono
        autoFocus
        error={other ? words.notIt : null}
      />
    </FormDialog>
  );
}
