/** The user's devices: names, certificates, pairing and revocation. */
import { Globe, Laptop, Plus, Smartphone, Tablet, type LucideIcon } from 'lucide-preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { freeName } from '../../protocol/ids.js';
import { NAME_MAX } from '../../protocol/limits.js';
import { isLocalHost } from '../../protocol/local-host.js';
import type { DeviceRow, Failure, Offer } from '../link/messages.js';
import { attempt } from './actions.js';
import { Compare, WordGrid } from './compare.js';
import {
  Button,
  Dialog,
  dialogs,
  Field,
  Glyph,
  Notice,
  OneLine,
  openDialog,
  Points,
  SecondsTo,
  useTyped,
  When,
} from './kit.js';
import type { Closable } from './kit.js';
import { call, devices, info, offer } from './link.js';
import { Menu } from './menu.js';
import { QrCode } from './qr-code.js';
import { ask, useForm, FormDialog, CopyButton, Problem, useTask, Waiting, type Task } from './screen.js';
import { PageFrame, useAnswer } from './section.js';
import { SignOutDialog } from './settings.js';
import { pagesText } from './strings-pages.js';
import * as text from './strings.js';
import { wordsIn } from './typed.js';

const words = pagesText.devices;

/** The icons of devices, by the glyphs of the protocol. */
const ICONS: ReadonlyMap<string, LucideIcon> = new Map([
  ['laptop', Laptop],
  ['phone', Smartphone],
  ['tablet', Tablet],
]);

export const deviceIcon = (glyph: string): LucideIcon => ICONS.get(glyph) ?? Globe;

/** All devices of the vault: pair, rename, certify, revoke. */
export function DevicesScreen() {
  // Who is online is as of the last reading: a device that has just joined connects while the dialog is open.
  useAnswer(() => call('devicesRefresh'), dialogs.value);
  const all = devices.value;
  const active = all?.filter(({ state }) => state === 'active') ?? [];
  const revoked = all?.filter(({ state }) => state === 'revoked') ?? [];
  return (
    <PageFrame
      title={text.frame.devices}
      actions={<Button kind="primary" icon={Plus} onClick={() => openDialog(PairDialog)} label={words.pair} />}
    >
      {active
        .filter(({ certified }) => !certified)
        .map((device) => (
          <Uncertified key={device.id} device={device} />
        ))}
      {all?.length === 0 && <p class="quiet">{words.empty}</p>}
      {active.length > 0 && (
        <ul class="card flush rows">
          {[...active].sort(ownFirst).map((device) => (
            <Row key={device.id} device={device} />
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
    </PageFrame>
  );
}

const ownFirst = (a: DeviceRow, b: DeviceRow): number =>
  Number(b.own) - Number(a.own) || Number(b.online) - Number(a.online) || b.pairedAt - a.pairedAt;

interface RowProps {
  readonly device: DeviceRow;
}

function Row({ device }: RowProps) {
  const rename = (): void => void openDialog((dialog) => <RenameDialog {...dialog} device={device} />);
  return (
    <li class="line">
      <Glyph icon={deviceIcon(device.glyph)} accent={device.own} />
      <div class="grow">
        <p class="line">
          <OneLine value={device.name} class="strong" />
        </p>
        <p class="quiet small line wrap device-facts">
          {device.own && <span class="badge small good">{words.own}</span>}
          {!device.certified && <span class="badge small warn">{words.uncertified}</span>}
          <Seen device={device} />
          <Since label={words.paired} at={device.pairedAt} />
        </p>
      </div>
      <Menu
        label={words.menu(device.name)}
        entries={[
          { label: words.rename, onSelect: rename },
          device.own
            ? { label: pagesText.settings.leave.title, danger: true, onSelect: () => openDialog(SignOutDialog) }
            : { label: words.revoke, danger: true, onSelect: () => askRevoke(device) },
        ]}
      />
    </li>
  );
}

function Seen({ device }: RowProps) {
  // Without a connection, the last reported state may be outdated.
  const connected = info.value?.connection.state === 'connected';
  if (device.online && connected) return <span class="online">{words.online}</span>;
  if (device.lastSeenAt === null) return connected ? <span>{words.neverSeen}</span> : null;
  return <Since label={words.lastSeen} at={device.lastSeenAt} />;
}

function Since({ label, at }: { label: string; at: number }) {
  return (
    <span>
      {label}
      <When at={at} />
    </span>
  );
}

function RevokedRow({ device }: RowProps) {
  return (
    <li class="line quiet">
      <Glyph icon={deviceIcon(device.glyph)} />
      <div class="grow">
        <OneLine value={device.name} />
        <p class="small">
          <Since label={words.paired} at={device.pairedAt} />
        </p>
      </div>
    </li>
  );
}

function Uncertified({ device }: RowProps) {
  const certify = (): void => void openDialog((dialog) => <CertifyDialog {...dialog} device={device} />);
  return (
    <Notice
      kind="danger"
      title={device.wasRevoked ? words.wasRevokedTitle(device.name) : words.uncertifiedTitle(device.name)}
      actions={
        <>
          <Button kind="danger" onClick={() => askRevoke(device)} label={words.revoke} />
          {device.fingerprint !== null && !device.wasRevoked && <Button onClick={certify} label={words.isMine} />}
        </>
      }
    >
      {device.wasRevoked ? words.wasRevokedWhy : words.uncertifiedWhy}
    </Notice>
  );
}

function RenameDialog({ device, onClose }: RowProps & Closable) {
  const { typed, dialog } = useRename(device, onClose);
  return (
    <FormDialog title={words.rename} action={text.kit.save} {...dialog}>
      <Field {...typed} label={text.kit.name} maxLength={NAME_MAX} />
    </FormDialog>
  );
}

/** A form for the device's name, first a `free` one; `dialog`: properties of the `FormDialog` that shows it. */
function useRename({ id, name: before }: Pick<DeviceRow, 'id' | 'name'>, onClose: () => void) {
  // Browsers of one kind propose the same name, and only a device that is in knows the names of the others.
  const [free] = useState(() => {
    const others = devices.value?.filter((device) => device.id !== id && device.state === 'active') ?? [];
    const taken = others.map(({ name }) => name);
    return freeName(before, taken);
  });
  const typed = useTyped(free);
  const name = typed.value.trim();
  const rename = async (): Promise<void> => {
    if (name !== before) await call('deviceRename', { id, name });
  };
  const form = useForm(name !== '', rename, onClose);
  return { free, typed, dialog: { disabled: name === '', form, onClose } };
}

const askRevoke = ({ id, name }: DeviceRow): void =>
  void ask({
    title: words.revokeTitle(name),
    action: words.revoke,
    onYes: () => call('deviceRevoke', id),
    children: <Points points={words.revokeDoes} />,
  });

/** The user types the fingerprint from the other device's screen, because one from the server would prove nothing. */
function CertifyDialog({ device, onClose }: RowProps & Closable) {
  const typed = useTyped();
  const fingerprint = typed.value.trim();
  const form = useForm(fingerprint !== '', () => call('deviceCertify', { id: device.id, fingerprint }), onClose);
  const other = form.problem?.code === 'fingerprint';
  return (
    <FormDialog
      title={words.certifyTitle(device.name)}
      action={words.certify}
      disabled={fingerprint === ''}
      form={form}
      problemInField={other}
      onClose={onClose}
    >
      <p>{words.certifyLead}</p>
      <Field {...typed} label={words.fingerprint} mono error={other && words.notIt} />
    </FormDialog>
  );
}

const { pair } = pagesText;

/** Makes an offer when it opens, and cancels the offer when it is closed. */
function PairDialog({ onClose }: Closable) {
  const task = useTask();
  const step: Offer = offer.value ?? { step: 'working' };
  const decided = useRef(false);
  if (step.step === 'compare') decided.current = true;
  else if (step.step === 'words') decided.current = false;
  useEffect(() => task.run(() => call('offer')), []);
  const close = (): void => {
    // By no task: one may be busy with the offer. Where there is none, it does nothing.
    void attempt(call('offerCancel'));
    onClose();
  };
  return <Step step={step} task={task} onClose={close} decided={decided.current} />;
}

type OfferAt<S extends Offer['step']> = Extract<Offer, { step: S }>;

function Step({ step, task, onClose, decided }: Closable & { step: Offer; task: Task; decided: boolean }) {
  if (task.problem !== null) return <Failed problem={task.problem} task={task} onClose={onClose} />;
  switch (step.step) {
    case 'idle':
    case 'working':
      return (
        <Dialog title={pagesText.devices.pair} onClose={onClose}>
          <Waiting>{decided ? pair.letting : pair.working}</Waiting>
        </Dialog>
      );
    case 'words':
      return <Words step={step} onClose={onClose} />;
    case 'compare':
      return <Decide step={step} task={task} onClose={onClose} />;
    case 'joined':
      return <Joined step={step} onClose={onClose} />;
    case 'failed':
      return <Failed problem={step.problem} task={task} onClose={onClose} />;
  }
}

function Joined({ step, onClose }: Closable & { step: OfferAt<'joined'> }) {
  const { free, typed, dialog } = useRename(step, onClose);
  return (
    <FormDialog title={pair.joinedTitle} action={pair.done} {...dialog}>
      <p role="status">{pair.joined(step.name)}</p>
      {free !== step.name && <Field {...typed} label={text.kit.name} hint={pair.sameName} maxLength={NAME_MAX} />}
    </FormDialog>
  );
}

function Failed({ problem, task, onClose }: Closable & { problem: Failure; task: Task }) {
  const again = <Button kind="primary" {...task.button(() => call('offer'))} label={pair.again} />;
  const said = { rejected: pair.differed, withdrawn: pair.withdrawn }[problem.code];
  return (
    <Dialog title={pair.failedTitle} onClose={onClose} actions={again}>
      {said === undefined ? <Problem problem={problem} /> : <p role="alert">{said}</p>}
    </Dialog>
  );
}

function Words({ step, onClose }: Closable & { step: OfferAt<'words'> }) {
  // A phone that scans `localhost` opens itself.
  const local = isLocalHost(location.hostname);
  return (
    <Dialog
      title={pagesText.devices.pair}
      onClose={onClose}
      actions={<CopyButton value={step.link} label={pair.copyLink} kind="plain" />}
    >
      <p>{local ? pair.leadLocal : pair.lead}</p>
      <div class="offer line wrap">
        {!local && <QrCode value={step.link} label={pair.qr} />}
        <WordGrid words={wordsIn(step.words)} label={pair.words} />
      </div>
      {local && (
        <p>
          {pair.elsewhere}{' '}
          <a href="/docs/web#one-address-for-all" target="_blank" rel="noreferrer">
            {pair.elsewhereHow}
          </a>
        </p>
      )}
      <p class="quiet small">{pair.secret}</p>
      <p class="quiet small" role="timer">
        <SecondsTo at={step.expiresAt}>{pair.left}</SecondsTo>
      </p>
    </Dialog>
  );
}

function Decide({ step, task, onClose }: Closable & { step: OfferAt<'compare'>; task: Task }) {
  const answer = (same: boolean) => task.button(() => call('offerAnswer', { same, digits: step.digits }));
  return (
    <Dialog
      title={pair.compareTitle}
      onClose={onClose}
      actions={
        <>
          <Button kind="danger" {...answer(false)} label={pair.differ} />
          <Button kind="primary" {...answer(true)} label={pair.match} />
        </>
      }
    >
      <p>{pair.wants(step.name)}</p>
      <Compare digits={step.digits} />
    </Dialog>
  );
}
