/** Becoming a device: claim a server, join with six words, recover with twelve. */
import type { JSX, TargetedKeyboardEvent } from 'preact';
import { signal } from '@preact/signals';
import { useEffect, useState } from 'preact/hooks';
import { NAME_MAX } from '../../protocol/limits.js';
import type { Enrolment, Failure } from '../link/messages.js';
import { CompareStep, PasswordStep, PhraseStep, StartOver, UndecidedStep } from './begin-steps.js';
import { Button, Field, Notice, type FieldProps } from './kit.js';
import { call, enrolment, phase, problemOf } from './link.js';
import { Problem, Screen } from './screen.js';
import { text } from './strings.js';
import { deviceName, PAIR_WORDS, PHRASE_WORDS, readFragment, readJoin, wordsIn, type Fragment } from './typed.js';

const { begin } = text;

/** The words or token of the page's address. In memory only. */
let fragment: Fragment | null = null;
/** Counts the fragments taken from the address, so that the form shows a new one. */
const opened = signal(0);

/** Moves words or a token out of the page's address, before anything else can read or keep them. */
export function takeFragment(): void {
  const read = readFragment(location.hash);
  if (read === null) return;
  history.replaceState(null, '', location.pathname + location.search);
  // An open device needs neither.
  if (phase.peek()?.phase === 'open') return;
  fragment = read;
  opened.value++;
}

/** What Chromium-based browsers report in addition to the user agent. */
interface AgentData {
  readonly brands?: readonly { readonly brand: string }[];
  readonly platform?: string;
}

function ownName(): string {
  const agent = (navigator as Navigator & { readonly userAgentData?: AgentData }).userAgentData;
  return deviceName(
    {
      userAgent: navigator.userAgent,
      brands: agent?.brands?.map(({ brand }) => brand) ?? [],
      platform: agent?.platform ?? '',
      touch: navigator.maxTouchPoints > 1,
    },
    begin.browserOn,
  );
}

type Way = 'claim' | 'join' | 'recover';

/** What is typed. It is kept after a failure, so that a single word can be corrected. */
interface Draft {
  readonly name: string;
  readonly words: string;
  readonly phrase: string;
  readonly token: string;
}

interface WayProps {
  readonly draft: Draft;
  readonly onDraft: (change: Partial<Draft>) => void;
  readonly problem: Failure | null;
  readonly onWay: (way: Way) => void;
  readonly onGo: (go: Promise<void>) => void;
}

/** Screen of the phase `empty`. */
export function BeginScreen(): JSX.Element {
  const [chosen, setChosen] = useState<Way | null>(null);
  const [refused, setRefused] = useState<Failure | null>(null);
  const now = phase.value?.phase === 'empty' ? phase.value : { claimed: null, problem: null };
  const step: Enrolment = enrolment.value ?? { step: 'idle' };
  const failed = step.step === 'failed' && !step.undecided ? step.problem : null;
  const ask = (): void => void call('askClaimed').catch((error: unknown) => setRefused(problemOf(error)));
  useEffect(ask, []);
  useEffect(
    () => () => {
      // Used, or no longer needed.
      if (phase.peek()?.phase === 'open') fragment = null;
    },
    [],
  );
  useEffect(() => {
    // Another device has claimed the server meanwhile: this one can only join.
    if (failed?.code !== 'bootstrap_already_done') return;
    setChosen(null);
    ask();
  }, [failed]);
  const [draft, setDraft] = useState<Draft>(firstDraft);
  const taken = opened.value;
  useEffect(() => setDraft((before) => ({ ...before, ...linked() })), [taken]);
  const way = chosen ?? wayFor(now.claimed);
  if (step.step !== 'idle' && failed === null) return <Step step={step} way={way} />;
  if (way === null) return <Asking problem={now.problem ?? refused} onAgain={ask} />;
  const Form = { claim: ClaimForm, join: JoinForm, recover: RecoverForm }[way];
  return (
    <Form
      key={way}
      draft={draft}
      onDraft={(change) => setDraft({ ...draft, ...change })}
      problem={refused ?? failed}
      onWay={setChosen}
      onGo={(go) => {
        setRefused(null);
        setChosen(way);
        go.catch((error: unknown) => setRefused(problemOf(error)));
      }}
    />
  );
}

const firstDraft = (): Draft => ({ ...{ name: ownName(), words: '', phrase: '', token: '' }, ...linked() });

/** The part of the draft that the page's address gave. */
function linked(): Partial<Draft> {
  if (fragment?.kind === 'pair') return { words: fragment.words };
  return fragment === null ? {} : { token: fragment.token };
}

/** Words in the address imply that the server is claimed, even while it does not answer. */
function wayFor(claimed: boolean | null): Way | null {
  if (claimed === null) return fragment?.kind === 'pair' ? 'join' : null;
  return claimed ? 'join' : 'claim';
}

/** The screen of an attempt under way. */
function Step({ step, way }: { readonly step: Exclude<Enrolment, { step: 'idle' }>; readonly way: Way | null }) {
  switch (step.step) {
    case 'working':
      return (
        <Screen key="working" title={begin.working[way ?? 'other']}>
          <p class="step-waiting">
            <span class="turning" aria-hidden="true" />
          </p>
          <div class="step-foot">
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
function Asking({ problem, onAgain }: { readonly problem: Failure | null; readonly onAgain: () => void }) {
  return (
    <Screen key={problem === null ? 'asking' : 'silent'} title={problem === null ? begin.asking : begin.noAnswer}>
      <Problem problem={problem} actions={<Button onClick={onAgain}>{begin.askAgain}</Button>} />
    </Screen>
  );
}

function NameField({ draft, onDraft }: Pick<WayProps, 'draft' | 'onDraft'>) {
  return (
    <Field
      label={begin.deviceName}
      hint={begin.deviceNameHint}
      value={draft.name}
      maxLength={NAME_MAX}
      onValue={(name) => onDraft({ name })}
    />
  );
}

/** The device's name as it is sent: never empty. */
const nameOf = ({ name }: Draft): string => name.trim() || ownName();

function ClaimForm({ draft, onDraft, problem, onGo }: WayProps) {
  const claimToken = draft.token.trim() || null;
  return (
    <Screen title={begin.claim.title} onSubmit={() => onGo(call('claim', { name: nameOf(draft), claimToken }))}>
      <p>{begin.claim.lead}</p>
      <p>{begin.claim.paper}</p>
      <Problem problem={problem} title={begin.failed} />
      <NameField draft={draft} onDraft={onDraft} />
      <details open={claimToken !== null || problem?.code === 'forbidden'}>
        <summary>{begin.claim.hasToken}</summary>
        <Field
          label={begin.claim.token}
          hint={begin.claim.tokenHint}
          value={draft.token}
          mono
          onValue={(token) => onDraft({ token })}
        />
      </details>
      <div class="step-foot">
        <Button kind="primary" submit wide>
          {begin.claim.go}
        </Button>
      </div>
    </Screen>
  );
}

function JoinForm({ draft, onDraft, problem, onWay, onGo }: WayProps) {
  const { words, elsewhere } = readJoin(draft.words, location.origin);
  const ready = words.length === PAIR_WORDS && elsewhere === null;
  return (
    <Screen
      title={begin.join.title}
      onSubmit={() => {
        if (ready) onGo(call('join', { name: nameOf(draft), words: words.join(' ') }));
      }}
    >
      <p>{begin.join.lead}</p>
      <Problem problem={problem} title={begin.failed} />
      <WordsField
        label={begin.join.words}
        hint={begin.join.count(words.length)}
        value={draft.words}
        onValue={(typed) => onDraft({ words: typed })}
      />
      {elsewhere !== null && (
        <Notice
          kind="warn"
          title={begin.join.elsewhere(elsewhere)}
          actions={<Button href={`${elsewhere}/#pair=${words.join('-')}`}>{begin.join.openThere}</Button>}
          live
        >
          {begin.join.elsewhereWhy}
        </Notice>
      )}
      <NameField draft={draft} onDraft={onDraft} />
      <div class="step-foot">
        <Button kind="primary" submit wide disabled={!ready}>
          {begin.join.go}
        </Button>
        <p class="line wrap other-way">
          <span class="quiet">{begin.join.noDevice}</span>
          <Button kind="quiet" onClick={() => onWay('recover')}>
            {begin.join.recover}
          </Button>
        </p>
      </div>
    </Screen>
  );
}

/** A field of several lines for words. */
function WordsField(props: Pick<FieldProps, 'label' | 'hint' | 'value' | 'onValue'>) {
  return (
    <div onKeyDown={sendOnEnter}>
      <Field kind="lines" mono {...props} />
    </div>
  );
}

/** Enter submits in a field of several lines, because words need no second line. */
function sendOnEnter(event: TargetedKeyboardEvent<HTMLElement>): void {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  event.currentTarget.closest('form')?.requestSubmit();
}

function RecoverForm({ draft, onDraft, problem, onWay, onGo }: WayProps) {
  const words = wordsIn(draft.phrase);
  const ready = words.length === PHRASE_WORDS;
  return (
    <Screen
      title={begin.recover.title}
      onSubmit={() => {
        if (ready) onGo(call('recover', { name: nameOf(draft), phrase: words.join(' ') }));
      }}
    >
      <p>{begin.recover.lead}</p>
      <Problem problem={problem} title={begin.failed} />
      <WordsField
        label={begin.recover.words}
        hint={begin.recover.count(words.length)}
        value={draft.phrase}
        onValue={(phrase) => onDraft({ phrase })}
      />
      <NameField draft={draft} onDraft={onDraft} />
      <div class="step-foot">
        <Button kind="primary" submit wide disabled={!ready}>
          {begin.recover.go}
        </Button>
        <Button kind="quiet" onClick={() => onWay('join')}>
          {begin.recover.join}
        </Button>
      </div>
    </Screen>
  );
}
