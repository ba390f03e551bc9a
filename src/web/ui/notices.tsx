/** The notices and the uploads, which are shown above the list. */
import { X } from 'lucide-preact';
import type { DeviceInfo, Notice as EventNotice, Upload } from '../link/messages.js';
import { attempt } from './actions.js';
import { Button, Dialog, later, Notice, OneLine, openDialog, Progress, useOwnDialog, When } from './kit.js';
import { call, info, notices, shared, uploads } from './link.js';
import { Orphaned } from './orphaned.js';
import { ask, useTask } from './screen.js';
import * as text from './strings.js';
import { update } from './update.js';

const words = text.notices;
/** Notices shown at the same time; further ones appear as these are dismissed. */
const SHOWN_MAX = 3;

/** All notices: update, shares, states of the device, events. */
export function Notices() {
  const events = notices.value ?? [];
  const device = info.value ?? null;
  return (
    <div class="notices stack tight" role="region" aria-label={words.label}>
      {update.value !== null && (
        <Notice
          kind="good"
          title={words.update}
          actions={<Button onClick={update.value} label={text.frame.reload} />}
        />
      )}
      <PendingShares />
      {device !== null && <DeviceStatus device={device} />}
      {events.slice(0, SHOWN_MAX).map((event) => (
        <EventRow key={event.id} event={event} />
      ))}
    </div>
  );
}

/** Shares that wait. Any page could have sent them, so they are put only when the user confirms. */
function PendingShares() {
  const { count, next } = shared.value ?? { count: 0, next: [] };
  if (next.length === 0) return null;
  const ids = next.map(({ id }) => id);
  const take = (how: 'put' | 'drop') => (): void => void attempt(call('sharedTake', { ids, how }));
  return (
    <Notice
      kind="warn"
      title={words.shared(count)}
      actions={
        <>
          <Button onClick={take('put')} label={words.sharedPut} />
          <Button kind="quiet" onClick={take('drop')} label={text.kit.discard} />
        </>
      }
      live
    >
      <ul>
        {next.map(({ id, title, files }) => (
          <li key={id}>
            <OneLine value={[title, ...files].filter((part) => part !== '').join(' · ')} />
          </li>
        ))}
      </ul>
      <p>{words.sharedWhy}</p>
    </Notice>
  );
}

/** Notices of states of the device, shown as long as the state lasts. */
function DeviceStatus({ device }: { device: DeviceInfo }) {
  const { uncertified, orphaned, hidden, halted } = device;
  return (
    <>
      {halted !== null && (
        <Notice kind="danger" title={text.frame.halted} live>
          {text.problem(halted)}
        </Notice>
      )}
      {uncertified.length > 0 && (
        <Notice
          kind="warn"
          title={words.uncertified(uncertified.length)}
          actions={<Button href="#/devices" label={words.toDevices} />}
          live
        >
          {words.uncertifiedText}
        </Notice>
      )}
      {orphaned > 0 && <Orphaned count={orphaned} live />}
      {hidden > 0 && <Hidden count={hidden} />}
    </>
  );
}

/** Not part of the first view. */
const HiddenList = later(async () => (await import('./pages.js')).HiddenList);

function Hidden({ count }: { count: number }) {
  const list = useOwnDialog();
  const show = (): void => {
    list.current = openDialog(({ onClose }) => (
      <Dialog title={words.hidden(count)} onClose={onClose}>
        <HiddenList count={count} />
      </Dialog>
    ));
  };
  return (
    <Notice title={words.hidden(count)} actions={<Button kind="quiet" onClick={show} label={words.hiddenShow} />}>
      {words.hiddenText}
    </Notice>
  );
}

function EventRow({ event }: { event: EventNotice }) {
  const { id, kind, problem, at, canResend, isNew } = event;
  const title = event.title === '' ? words.nameless : event.title;
  const heading = words[kind];
  const resend = (how: 'overwrite' | 'copy'): void => void attempt(call('resend', { noticeId: id, how }));
  // Nothing stands in the way of a new item but its size. A change of one would replace what others wrote meanwhile.
  const isFull = isNew && problem?.code === 'storage_cap_exceeded';
  const question = useOwnDialog();
  const task = useTask();
  const dismiss = (): void => {
    // What was typed is nowhere else.
    if (canResend)
      question.current = ask({
        title: text.item.discardTitle,
        action: text.kit.discard,
        onYes: () => call('dismiss', id),
      });
    else task.run(() => attempt(call('dismiss', id)));
  };
  return (
    <Notice
      kind={kind === 'rejected' || kind === 'missing' || kind === 'problem' ? 'danger' : 'warn'}
      title={<bdi>{typeof heading === 'string' ? heading : heading(title.slice(0, 100))}</bdi>}
      onDismiss={dismiss}
      live
      actions={
        kind === 'same_name' ? (
          <Button href="#/devices" label={words.toDevices} />
        ) : (
          canResend && (
            <>
              <Button onClick={() => resend('overwrite')} label={isFull ? text.kit.tryAgain : words.overwrite} />
              {!isFull && <Button onClick={() => resend('copy')} label={words.asCopy} />}
            </>
          )
        )
      }
    >
      {problem !== null && <p>{text.problem(problem)}</p>}
      <p class="small quiet">
        <When at={at} />
      </p>
    </Notice>
  );
}

/** Renders nothing while there are no uploads. */
export function Uploads() {
  const all = uploads.value ?? [];
  if (all.length === 0) return null;
  return (
    <section class="uploads card" aria-label={text.uploads.title}>
      {all.length > 1 && <p class="small quiet">{text.uploads.summary(all.length)}</p>}
      <ul>
        {all.map((one) => (
          <UploadRow key={one.id} upload={one} />
        ))}
      </ul>
    </section>
  );
}

function UploadRow({ upload: { id, name, size, done, speed, state, problem } }: { upload: Upload }) {
  const task = useTask();
  return (
    <li class="upload line">
      <div class="grow">
        <div class="line">
          <OneLine value={name} class="grow" />
          <span class={`small numbers ${problem === null ? 'quiet' : 'danger-text'}`}>
            {state !== 'sending' && done > 0 && text.uploads.continues(Math.floor((done / Math.max(size, 1)) * 100))}
            {state === 'waiting' && done === 0 && text.uploads.waiting}
            {state === 'sending' && text.uploads.sent(text.size(done), text.size(size))}
            {state === 'sending' && speed > 0 && text.uploads.speed(text.size(speed))}
          </span>
        </div>
        {state === 'failed' ? (
          <p class={`small ${problem === null ? 'quiet' : 'danger-text'}`} role="alert">
            {problem === null ? text.uploads.later : text.problem(problem)}
          </p>
        ) : (
          <Progress label={text.uploads.progress(name)} value={done} max={Math.max(size, 1)} />
        )}
      </div>
      {state === 'failed' && (
        <Button kind="quiet" onClick={() => void attempt(call('uploadRetry', id))} label={text.kit.tryAgain} />
      )}
      <Button
        kind="icon"
        icon={X}
        label={text.uploads.cancel(name)}
        {...task.button(() => attempt(call('uploadCancel', id)))}
      />
    </li>
  );
}
