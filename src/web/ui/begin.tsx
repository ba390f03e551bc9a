/** Becoming a device: claim a server, join with six words, recover with twelve. */
import type { TargetedKeyboardEvent } from 'preact';
import { signal } from '@preact/signals';
import { useEffect, useLayoutEffect, useMemo, useState } from 'preact/hooks';
import { NAME_MAX, PAIR_WORDS, PHRASE_WORDS } from '../../protocol/limits.js';
import type { Enrolment, Failure } from '../link/messages.js';
import { attempt } from './actions.js';
import { browserOf } from './browser-name.js';
import { Compare, WordGrid } from './compare.js';
import { Button, Field, Notice, useTyped, type FieldProps, type Typed } from './kit.js';
import { call, enrolment, phase, problemOf } from './link.js';
import { Problem, Screen, useForm, useTask, Waiting } from './screen.js';
import * as text from './strings.js';
import { placesToAsk, readFragment, readJoin, wordsIn, type Fragment } from './typed.js';

const begin = text.begin;

/** The words or token of the page's address. In memory only. */
const fragment = signal<Fragment | null>(null);

/** Moves words or a token out of the page's address, before anything else can read or keep them. */
export function takeFragment(): void {
  const read = readFragment(location.hash);
  if (read === null) return;
  history.replaceState(null, '', location.pathname + location.search);
  // An open device needs neither.
  if (phase.peek()?.phase === 'open') return;
  fragment.value = read;
}

const ownName = (): string => begin.browserOn(...browserOf(navigator));

type Method = 'claim' | 'join' | 'recover';

/** What is typed. It is kept after a failure, so that a single word can be corrected. */
type Draft = Readonly<Record<'name' | 'words' | 'phrase' | 'token', string>>;

interface MethodProps {
  readonly draft: Draft;
  readonly fieldOf: (name: keyof Draft) => Typed;
  readonly problem: Failure | null;
  readonly onMethod: (method: Method) => void;
  readonly onGo: (go: Promise<void>) => void;
}

/** Screen of the phase `empty`. */
export function BeginScreen() {
  const [chosen, setChosen] = useState<Method | null>(null);
  const [refused, setRefused] = useState<Failure | null>(null);
  const now = phase.value?.phase === 'empty' ? phase.value : { claimed: null, problem: null };
  const step: Enrolment = enrolment.value ?? { step: 'idle' };
  const failed = step.step === 'failed' && !step.undecided ? step.problem : null;
  const ask = (): void => void call('askClaimed').catch((error: unknown) => setRefused(problemOf(error)));
  useEffect(ask, []);
  useEffect(
    () => () => {
      // Used, or no longer needed.
      if (phase.peek()?.phase === 'open') fragment.value = null;
    },
    [],
  );
  useEffect(() => {
    // Another device has claimed the server meanwhile: this one can only join.
    if (failed?.code !== 'bootstrap_already_done') return;
    setChosen(null);
    ask();
  }, [failed]);
  const [draft, setDraft] = useState<Draft>(() => ({ name: ownName(), words: '', phrase: '', token: '' }));
  const given = fragment.value;
  useLayoutEffect(() => setDraft((before) => ({ ...before, ...given })), [given]);
  const method = chosen ?? methodFor(now.claimed);
  if (step.step !== 'idle' && failed === null) return <Step step={step} method={method} />;
  if (method === null) return <Asking problem={now.problem ?? refused} onAgain={ask} />;
  const Form = { claim: ClaimForm, join: JoinForm, recover: RecoverForm }[method];
  return (
    <Form
      key={method}
      draft={draft}
      fieldOf={(name) => ({ value: draft[name], onValue: (value) => setDraft({ ...draft, [name]: value }) })}
      problem={refused ?? failed}
      onMethod={setChosen}
      onGo={(go) => {
        setRefused(null);
        setChosen(method);
        go.catch((error: unknown) => setRefused(problemOf(error)));
      }}
    />
  );
}

/** Words in the address imply that the server is claimed, even while it does not answer. */
function methodFor(claimed: boolean | null): Method | null {
  if (claimed === null) return fragment.value?.words === undefined ? null : 'join';
  return claimed ? 'join' : 'claim';
}

/** The screen of an attempt under way. */
function Step({ step, method }: { step: Exclude<Enrolment, { step: 'idle' }>; method: Method | null }) {
  switch (step.step) {
    case 'working':
      return (
        <Screen key="working" title={begin.working[method ?? 'other']}>
          <Waiting />
          <div class="step-foot stack tight">
            <StartOver />
          </div>
        </Screen>
      );
    case 'phrase':
      return <PhraseStep words={step.words} />;
    case 'compare':
      return <CompareStep key="compare" digits={step.digits} />;
    case 'password':
      return <PasswordStep key="password" wrong={step.wrong} />;
    case 'failed':
      return <UndecidedStep key="failed" message={text.problem(step.problem)} />;
  }
}

/** Shown while it is not known whether the server is claimed. */
function Asking({ problem, onAgain }: { problem: Failure | null; onAgain: () => void }) {
  return (
    <Screen key={problem === null ? 'asking' : 'silent'} title={problem === null ? begin.asking : begin.noAnswer}>
      <Problem problem={problem} actions={<Button onClick={onAgain} label={begin.askAgain} />} />
    </Screen>
  );
}

function NameField(typed: Typed) {
  return <Field {...typed} label={begin.deviceName} hint={begin.deviceNameHint} maxLength={NAME_MAX} />;
}

/** The device's name as it is sent: never empty. */
const nameOf = ({ name }: Draft): string => name.trim() || ownName();

function ClaimForm({ draft, fieldOf, problem, onGo }: MethodProps) {
  const claimToken = draft.token.trim() || null;
  return (
    <Screen title={begin.claim.title} onSubmit={() => onGo(call('claim', { name: nameOf(draft), claimToken }))}>
      <p>{begin.claim.lead}</p>
      <p>{begin.claim.paper}</p>
      <Problem problem={problem} title={begin.failed} />
      <NameField {...fieldOf('name')} />
      <details open={claimToken !== null || problem?.code === 'forbidden'}>
        <summary>{begin.claim.hasToken}</summary>
        <Field {...fieldOf('token')} label={begin.claim.token} hint={begin.claim.tokenHint} mono />
      </details>
      <div class="step-foot stack tight">
        <Button kind="primary" submit wide label={begin.claim.go} />
      </div>
    </Screen>
  );
}

function JoinForm({ draft, fieldOf, problem, onMethod, onGo }: MethodProps) {
  const { words, elsewhere } = readJoin(draft.words, location.origin);
  const ready = words.length === PAIR_WORDS && elsewhere === null;
  return (
    <Screen
      title={begin.join.title}
      onSubmit={() => ready && onGo(call('join', { name: nameOf(draft), words: words.join(' ') }))}
    >
      <p>{begin.join.lead}</p>
      <Problem problem={problem} title={begin.failed} />
      <WordsField {...fieldOf('words')} words={words} label={begin.join.words} hint={begin.join.count(words.length)} />
      {elsewhere !== null && (
        <Notice
          kind="warn"
          title={begin.join.elsewhere(elsewhere)}
          actions={<Button href={`${elsewhere}/#pair=${words.join('-')}`} label={begin.join.openThere} />}
          live
        >
          {begin.join.elsewhereWhy}
        </Notice>
      )}
      <NameField {...fieldOf('name')} />
      <div class="step-foot stack tight">
        <Button kind="primary" submit wide disabled={!ready} label={begin.join.go} />
        <p class="line wrap other-way">
          <span class="quiet">{begin.join.noDevice}</span>
          <Button kind="quiet" onClick={() => onMethod('recover')} label={begin.recover.title} />
        </p>
      </div>
    </Screen>
  );
}

/** A field of several lines for words. Misspelt ones are named once it is left, and where it is shown with words. */
function WordsField({
  words,
  ...field
}: Pick<FieldProps, 'label' | 'hint' | 'value' | 'onValue'> & { words: readonly string[] }) {
  const [misspelt, setMisspelt] = useState<readonly string[]>([]);
  const check = (): void => void attempt(call('misspelt', words).then(setMisspelt));
  useEffect(check, []);
  const wrong = misspelt.filter((word) => words.includes(word));
  return (
    <div onKeyDown={sendOnEnter} onFocusOut={check}>
      <Field kind="lines" mono {...field} error={wrong.length > 0 && begin.join.misspelt(wrong)} />
    </div>
  );
}

/** Enter submits in a field of several lines, because words need no second line. */
function sendOnEnter(event: TargetedKeyboardEvent<HTMLElement>): void {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  event.currentTarget.closest('form')?.requestSubmit();
}

function RecoverForm({ draft, fieldOf, problem, onMethod, onGo }: MethodProps) {
  const words = wordsIn(draft.phrase);
  const ready = words.length === PHRASE_WORDS;
  return (
    <Screen
      title={begin.recover.title}
      onSubmit={() => ready && onGo(call('recover', { name: nameOf(draft), phrase: words.join(' ') }))}
    >
      <p>{begin.recover.lead}</p>
      <Problem problem={problem} title={begin.failed} />
      <WordsField
        {...fieldOf('phrase')}
        words={words}
        label={begin.recover.words}
        hint={begin.recover.count(words.length)}
      />
      <NameField {...fieldOf('name')} />
      <div class="step-foot stack tight">
        <Button kind="primary" submit wide disabled={!ready} label={begin.recover.go} />
        <Button kind="quiet" onClick={() => onMethod('join')} label={begin.recover.join} />
      </div>
    </Screen>
  );
}

// The steps that wait for the user: words, digits, the password.

const random = (): number => crypto.getRandomValues(new Uint32Array(1))[0] ?? 0;

/** Ends the attempt; nothing is registered. */
function StartOver() {
  const task = useTask();
  return <Button kind="quiet" {...task.button(() => call('enrolCancel'))} label={begin.startOver} />;
}

/** Claim: shows the words, then asks the user to repeat two of them. */
function PhraseStep({ words }: { words: readonly string[] }) {
  const [written, setWritten] = useState(false);
  if (written) return <AskBack words={words} onAgain={() => setWritten(false)} />;
  return (
    <Screen title={begin.phrase.title}>
      <p class="no-print">{begin.phrase.lead}</p>
      <div class="phrase-paper">
        <h2 class="print-only">{begin.phrase.paperTitle}</h2>
        <p class="print-only">
          {begin.phrase.paperServer(location.origin, new Date().toLocaleDateString(undefined, { dateStyle: 'long' }))}
        </p>
        <WordGrid words={words} label={begin.phrase.list} />
        <p class="print-only">{begin.phrase.paperUse}</p>
      </div>
      <div class="step-foot stack tight no-print">
        <Button kind="primary" wide onClick={() => setWritten(true)} label={begin.phrase.written} />
        <Button wide onClick={() => print()} label={begin.phrase.print} />
        <StartOver />
      </div>
    </Screen>
  );
}

function AskBack({ words, onAgain }: { words: readonly string[]; onAgain: () => void }) {
  const places = useMemo(() => placesToAsk(random), []);
  const [typed, setTyped] = useState<readonly [string, string]>(['', '']);
  const [wrong, setWrong] = useState<readonly number[]>([]);
  const task = useTask();
  const submit = (): void => {
    const bad = places.filter((place, at) => wordsIn(typed[at] ?? '').join(' ') !== words[place]);
    setWrong(bad);
    if (bad.length === 0) task.run(() => call('enrolRetry'));
  };
  return (
    <Screen title={begin.ask.title} onSubmit={submit}>
      <p>{begin.ask.lead}</p>
      {places.map((place, at) => (
        <Field
          key={place}
          label={begin.ask.word(place + 1)}
          value={typed[at] ?? ''}
          onValue={(value) => setTyped(at === 0 ? [value, typed[1]] : [typed[0], value])}
          error={wrong.includes(place) && (typed[at]?.trim() ? begin.ask.wrong(place + 1) : text.fields.missing)}
          mono
        />
      ))}
      <Problem problem={task.problem} />
      <div class="step-foot stack tight">
        <Button kind="primary" submit wide busy={task.busy} label={begin.ask.go} />
        <Button kind="quiet" onClick={onAgain} label={begin.ask.again} />
      </div>
    </Screen>
  );
}

/** Join: the digits, while the other device decides. */
function CompareStep({ digits }: { digits: string }) {
  return (
    <Screen title={begin.compare.title}>
      <p>{begin.compare.lead}</p>
      <Compare digits={digits} />
      <p class="quiet">{begin.compare.differ}</p>
      <div class="step-foot stack tight">
        <Waiting>{begin.compare.waiting}</Waiting>
        <StartOver />
      </div>
    </Screen>
  );
}

/** The account password, where one is set. */
function PasswordStep({ wrong }: { wrong: boolean }) {
  const typed = useTyped();
  const form = useForm(typed.value !== '', () => call('enrolPassword', typed.value));
  return (
    <Screen title={begin.password.title} onSubmit={form.submit}>
      <p>{begin.password.lead}</p>
      <Field
        {...typed}
        kind="secret"
        label={begin.password.title}
        autoComplete="current-password"
        autoFocus
        error={wrong && begin.password.wrong}
      />
      <Problem problem={form.problem} />
      <div class="step-foot stack tight">
        <Button kind="primary" submit wide busy={form.busy} disabled={typed.value === ''} label={begin.password.go} />
        <StartOver />
      </div>
    </Screen>
  );
}

/** Whether the server has received the request is unknown: the same attempt can be continued. */
function UndecidedStep({ message }: { message: string }) {
  const task = useTask();
  return (
    <Screen title={begin.failed}>
      <Notice kind="warn" live>
        <p>{message}</p>
        <p>{begin.undecided}</p>
      </Notice>
      <Problem problem={task.problem} />
      <div class="step-foot stack tight">
        <Button kind="primary" wide {...task.button(() => call('enrolRetry'))} label={text.kit.tryAgain} />
        <StartOver />
      </div>
    </Screen>
  );
}
