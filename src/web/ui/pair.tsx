/** Pairing another device from this one. */
import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import type { Offer } from '../link/messages.js';
import { Compare, WordGrid } from './compare.js';
import { Button, Dialog } from './kit.js';
import { call, offer } from './link.js';
import { QrCode } from './qr-code.js';
import { CopyButton, Problem } from './screen.js';
import { pagesText } from './strings-pages.js';
import { useTask, type Task } from './task.js';
import { wordsIn } from './typed.js';

const { pair } = pagesText;

/** Makes an offer when it opens, and cancels the offer when it is closed. */
export function PairDialog({ onClose }: { readonly onClose: () => void }): JSX.Element {
  const task = useTask();
  const step: Offer = offer.value ?? { step: 'working' };
  const decided = useRef(false);
  if (step.step === 'compare') decided.current = true;
  else if (step.step === 'words') decided.current = false;
  useEffect(() => task.run(() => call('offer')), []);
  const close = (): void => {
    if (step.step !== 'idle') task.run(() => call('offerCancel'));
    onClose();
  };
  if (task.problem !== null) {
    return (
      <Dialog title={pair.failedTitle} onClose={close} actions={<Again task={task} />}>
        <Problem problem={task.problem} />
      </Dialog>
    );
  }
  return <Step step={step} task={task} onClose={close} decided={decided.current} />;
}

function Again({ task }: { readonly task: Task }) {
  return (
    <Button kind="primary" busy={task.busy} onClick={() => task.run(() => call('offer'))}>
      {pair.again}
    </Button>
  );
}

interface StepProps<S extends Offer = Offer> {
  readonly step: S;
  readonly task: Task;
  readonly onClose: () => void;
}

function Step({ step, task, onClose, decided }: StepProps & { readonly decided: boolean }): JSX.Element {
  switch (step.step) {
    case 'idle':
    case 'working':
      return (
        <Dialog title={pair.title} onClose={onClose}>
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
          actions={
            <Button kind="primary" onClick={onClose} autoFocus>
              {pair.done}
            </Button>
          }
        >
          <p role="status">{pair.joined(step.name)}</p>
        </Dialog>
      );
    case 'failed':
      return (
        <Dialog title={pair.failedTitle} onClose={onClose} actions={<Again task={task} />}>
          {step.problem.code === 'rejected' ? <p role="alert">{pair.differed}</p> : <Problem problem={step.problem} />}
        </Dialog>
      );
  }
}

function Words({ step, onClose }: StepProps<Extract<Offer, { step: 'words' }>>) {
  return (
    <Dialog title={pair.title} onClose={onClose} actions={<CopyButton value={step.link} label={pair.copyLink} plain />}>
      <p>{pair.lead}</p>
      <div class="offer">
        <QrCode value={step.link} label={pair.qr} />
        <WordGrid words={wordsIn(step.words)} label={pair.words} />
      </div>
      <p class="quiet small">{pair.secret}</p>
      <TimeLeft until={step.expiresAt} />
    </Dialog>
  );
}

const SECOND_MS = 1_000;

function TimeLeft({ until }: { readonly until: number }) {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), SECOND_MS);
    return () => clearInterval(timer);
  }, []);
  return (
    <p class="quiet small numbers" role="timer">
      {pair.left(Math.max(0, until - now))}
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
          <Button kind="danger" busy={task.busy} onClick={answer(false)}>
            {pair.differ}
          </Button>
          <Button kind="primary" busy={task.busy} onClick={answer(true)}>
            {pair.match}
          </Button>
        </>
      }
    >
      <p>{pair.wants(step.name)}</p>
      <Compare digits={step.digits} />
    </Dialog>
  );
}
