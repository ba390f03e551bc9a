/** Pairing another device from this one. */
import { useEffect, useRef } from 'preact/hooks';
import type { Failure, Offer } from '../link/messages.js';
import { Compare, WordGrid } from './compare.js';
import { Button, Dialog, useNow } from './kit.js';
import { call, offer } from './link.js';
import { QrCode } from './qr-code.js';
import { CopyButton, Problem, useTask, type Task } from './screen.js';
import { pagesText } from './strings-pages.js';
import { wordsIn } from './typed.js';

const { pair } = pagesText;

/** Makes an offer when it opens, and cancels the offer when it is closed. */
export function PairDialog({ onClose }: { onClose: () => void }) {
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
  return (
    <Dialog
      title={pagesText.devices.pair}
      onClose={onClose}
      actions={<CopyButton value={step.link} label={pair.copyLink} kind="plain" />}
    >
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
