/** Screens for when the app cannot work: the reason, and the shortest remedy. */
import type { ComponentChildren, JSX } from 'preact';
import { useState } from 'preact/hooks';
import { Button, Notice } from './kit.js';
import { later } from './later.js';
import { call, phase } from './link.js';
import { ForgetDialog } from './lock.js';
import { wayToHttps, whatIsMissing, type Missing } from './unable.js';
import { Copyable, Problem, Screen } from './screen.js';
import { text } from './strings.js';
import { useTask } from './task.js';

const words = text.unable;

/** Not part of the first view. */
const QrCode = later(async () => (await import('./qr-code.js')).QrCode);

/** Screen shown if `whatIsMissing` found something. Needs no engine. */
export function UnableScreen(): JSX.Element {
  const missing = whatIsMissing(globalThis);
  return missing.includes('insecure') ? <Insecure /> : <TooOld missing={missing} />;
}

function Insecure() {
  const way = wayToHttps(location);
  return (
    <Screen title={words.insecureTitle}>
      <p>{words.insecure}</p>
      {way.proxy === null ? (
        <p>{words.proxied}</p>
      ) : (
        <Step lead={words.shortest} command={way.proxy}>
          <p class="quiet small">{words.stopped}</p>
        </Step>
      )}
      {way.certificate !== null && (
        <Step lead={words.certificate} command={way.certificate}>
          <p>
            {words.certificateThen} <a href={way.certificateUrl ?? ''}>{way.certificateUrl}</a>
          </p>
          {way.certificateUrl !== null && <QrCode value={way.certificateUrl} label={words.certificateQr} />}
          <p class="quiet small">{words.phones}</p>
        </Step>
      )}
      <p>
        {words.then} <a href={way.address}>{way.address}</a>
      </p>
      <p class="quiet small">{words.here}</p>
    </Screen>
  );
}

function Step(props: { readonly lead: string; readonly command: string; readonly children: ComponentChildren }) {
  return (
    <div class="stack tight">
      <p>{props.lead}</p>
      <Copyable value={props.command} label={words.copy} />
      {props.children}
    </div>
  );
}

function TooOld({ missing }: { readonly missing: readonly Missing[] }) {
  return (
    <Screen title={words.oldTitle}>
      <p>{words.old}</p>
      <ul class="points">
        {missing.map((part) => (
          <li key={part}>{words.parts[part]}</li>
        ))}
      </ul>
      <p>{words.oldWhat}</p>
    </Screen>
  );
}

/** Error codes of a store that a retry will not open, so that the remedy is to start anew. */
const LOST: ReadonlySet<string> = new Set(['damaged', 'other_owner']);

/** Screen of the phase `failed`: the local store cannot be used. */
export function StoreFailed(): JSX.Element | null {
  const [forgetting, setForgetting] = useState(false);
  const task = useTask();
  const now = phase.value;
  if (now?.phase !== 'failed') return null;
  const { problem } = now;
  return (
    <>
      <Screen title={words.failedTitle}>
        <Notice kind="warn" live>
          {words.store[problem.code] ?? text.problem(problem)}
        </Notice>
        <Problem problem={task.problem} />
        <div class="step-foot">
          {problem.code === 'newer_format' ? (
            <Button kind="primary" wide onClick={() => location.reload()}>
              {words.reload}
            </Button>
          ) : (
            <Button kind="primary" wide busy={task.busy} onClick={() => task.run(() => call('retry'))}>
              {words.retry}
            </Button>
          )}
          {LOST.has(problem.code) && (
            <Button kind="danger" wide onClick={() => setForgetting(true)}>
              {words.forget}
            </Button>
          )}
        </div>
      </Screen>
      {forgetting && <ForgetDialog onClose={() => setForgetting(false)} />}
    </>
  );
}
