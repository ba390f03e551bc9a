/** The user's devices: names, certificates, pairing and revocation. */
import { Globe, Laptop, Plus, Smartphone, Tablet, type LucideIcon } from 'lucide-preact';
import type { ComponentChild } from 'preact';
import { useState, useEffect, useRef } from 'preact/hooks';
import { NAME_MAX } from '../../protocol/limits.js';
import { isLocalHost } from '../../protocol/local-host.js';
import type { DeviceRow, Failure, Offer } from '../link/messages.js';
import { attempt } from './actions.js';
import { Compare, WordGrid } from './compare.js';
import { Button, Field, Glyph, Notice, OneLine, Points, When, Dialog, useNow } from './kit.js';
import { call, devices, info, offer } from './link.js';
import { Menu } from './menu.js';
import { QrCode } from './qr-code.js';
import { useForm, Confirm, FormDialog, CopyButton, Problem, useTask, type Task } from './screen.js';
import { PageHead, useAnswer } from './section.js';
import { SignOutDialog } from './settings.js';
import { pagesText } from './strings-pages.js';
import { text } from './strings.js';
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
  const [dialog, setDialog] = useState<{ readonly shown: ComponentChild } | null>(null);
  // Who is online is as of the last reading: a device that has just joined connects while the dialog is open.
  useAnswer(() => call('devicesRefresh'), dialog);
  const onAsk: RowProps['onAsk'] = (render) => {
    // Closes itself only: one whose call ends late must not close the next.
    const asked = { shown: render(() => setDialog((now) => (now === asked ? null : now))) };
    setDialog(asked);
  };
  const all = devices.value;
  const active = all?.filter(({ state }) => state === 'active') ?? [];
  const revoked = all?.filter(({ state }) => state === 'revoked') ?? [];
  return (
    <div class="page">
      <PageHead title={words.title}>
        <Button
          kind="primary"
          icon={Plus}
          onClick={() => onAsk((close) => <PairDialog onClose={close} />)}
          label={words.pair}
        />
      </PageHead>
      <div class="stack loose">
        {active
          .filter(({ certified }) => !certified)
          .map((device) => (
            <Uncertified key={device.id} device={device} onAsk={onAsk} />
          ))}
        {all?.length === 0 && <p class="quiet">{words.empty}</p>}
        {active.length > 0 && (
          <ul class="card flush rows">
            {[...active].sort(ownFirst).map((device) => (
              <Row key={device.id} device={device} onAsk={onAsk} />
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
      {dialog?.shown}
    </div>
  );
}

const ownFirst = (a: DeviceRow, b: DeviceRow): number =>
  Number(b.own) - Number(a.own) || Number(b.online) - Number(a.online) || b.pairedAt - a.pairedAt;

interface RowProps {
  readonly device: DeviceRow;
  /** Opens a dialog, which calls `close`. */
  readonly onAsk: (dialog: (close: () => void) => ComponentChild) => void;
}

function Row({ device, onAsk }: RowProps) {
  const rename = (): void => onAsk((close) => <RenameDialog device={device} onClose={close} />);
  const revoke = (): void => onAsk((close) => <RevokeDialog device={device} onClose={close} />);
  const leave = (): void => onAsk((close) => <SignOutDialog onClose={close} />);
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
          { label: words.rename, onSelect: rename },
          device.own
            ? { label: pagesText.settings.leave.title, danger: true, onSelect: leave }
            : { label: words.revoke, danger: true, onSelect: revoke },
        ]}
      />
    </li>
  );
}

function Seen({ device }: { device: DeviceRow }) {
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

function RevokedRow({ device }: { device: DeviceRow }) {
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

function Uncertified({ device, onAsk }: RowProps) {
  const revoke = (): void => onAsk((close) => <RevokeDialog device={device} onClose={close} />);
  const certify = (): void => onAsk((close) => <CertifyDialog device={device} onClose={close} />);
  return (
    <Notice
      kind="danger"
      title={words.uncertifiedTitle(device.name)}
      actions={
        <>
          <Button kind="danger" onClick={revoke} label={words.revoke} />
          {device.fingerprint !== null && <Button onClick={certify} label={words.isMine} />}
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
  const [typed, setTyped] = useState(device.name);
  const name = typed.trim();
  const rename = async (): Promise<void> => {
    if (name !== device.name) await call('deviceRename', { id: device.id, name });
  };
  const form = useForm(name !== '', rename, onClose);
  return (
    <FormDialog title={words.rename} action={text.kit.save} disabled={name === ''} form={form} onClose={onClose}>
      <Field label={text.kit.name} value={typed} onValue={setTyped} maxLength={NAME_MAX} />
    </FormDialog>
  );
}

function RevokeDialog({ device, onClose }: AskProps) {
  return (
    <Confirm
      title={words.revokeTitle(device.name)}
      action={words.revoke}
      onYes={() => call('deviceRevoke', device.id)}
      onClose={onClose}
    >
      <Points points={words.revokeDoes} />
    </Confirm>
  );
}

/** The user types the fingerprint from the other device's screen, because one from the server would prove nothing. */
function CertifyDialog({ device, onClose }: AskProps) {
  const [typed, setTyped] = useState('');
  const fingerprint = typed.trim();
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
      <Field label={words.fingerprint} value={typed} onValue={setTyped} mono error={other ? words.notIt : null} />
    </FormDialog>
  );
}

const { pair } = pagesText;

/** Makes an offer when it opens, and cancels the offer when it is closed. */
function PairDialog({ onClose }: { onClose: () => void }) {
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

interface StepProps<S extends Offer = Offer> {
  readonly step: S;
  readonly task: Task;
  readonly onClose: () => void;
}

function Step({ step, task, onClose, decided }: StepProps & { decided: boolean }) {
  if (task.problem !== null) return <Failed problem={task.problem} task={task} onClose={onClose} />;
  switch (step.step) {
    case 'idle':
    case 'working':
      return (
        <Dialog title={pagesText.devices.pair} onClose={onClose}>
          <p class="step-waiting" role="status">
            <span class="turning" aria-hidden="true" /> {decided ? pair.letting : pair.working}
          </p>
        </Dialog>
      );
    case 'words':
      return <Words step={step} task={task} onClose={onClose} />;
    case 'compare':
      return <Decide step={step} task={task} onClose={onClose} />;
    case 'joined':
      return (
        <Dialog
          title={pair.joinedTitle}
          onClose={onClose}
          actions={<Button kind="primary" onClick={onClose} autoFocus label={pair.done} />}
        >
          <p role="status">{pair.joined(step.name)}</p>
        </Dialog>
      );
    case 'failed':
      return <Failed problem={step.problem} task={task} onClose={onClose} />;
  }
}

function Failed({ problem, task, onClose }: { problem: Failure; task: Task; onClose: () => void }) {
  const again = (
    <Button kind="primary" busy={task.busy} onClick={() => task.run(() => call('offer'))} label={pair.again} />
  );
  return (
    <Dialog title={pair.failedTitle} onClose={onClose} actions={again}>
      {problem.code === 'rejected' ? <p role="alert">{pair.differed}</p> : <Problem problem={problem} />}
    </Dialog>
  );
}

function Words({ step, onClose }: StepProps<Extract<Offer, { step: 'words' }>>) {
  // A phone that scans `localhost` opens itself.
  const local = isLocalHost(location.hostname);
  return (
    <Dialog
      title={pagesText.devices.pair}
      onClose={onClose}
      actions={<CopyButton value={step.link} label={pair.copyLink} kind="plain" />}
    >
      <p>{local ? pair.leadLocal : pair.lead}</p>
      <div class="offer">
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
      <TimeLeft until={step.expiresAt} />
    </Dialog>
  );
}

function TimeLeft({ until }: { until: number }) {
  return (
    <p class="quiet small numbers" role="timer">
      {pair.left(Math.max(0, until - useNow(1_000)))}
    </p>
  );
}

function Decide({ step, task, onClose }: StepProps<Extract<Offer, { step: 'compare' }>>) {
  const answer = (same: boolean) => () => task.run(() => call('offerAnswer', same));
  return (
    <Dialog
      title={pair.compareTitle}
      onClose={onClose}
      actions={
        <>
          <Button kind="danger" busy={task.busy} onClick={answer(false)} label={pair.differ} />
          <Button kind="primary" busy={task.busy} onClick={answer(true)} label={pair.match} />
        </>
      }
    >
      <p>{pair.wants(step.name)}</p>
      <Compare digits={step.digits} />
    </Dialog>
  );
}
