/** The steps of becoming a device that wait for the user: words, digits, the password. */
import type { JSX } from 'preact';
import { useMemo, useState } from 'preact/hooks';
import { Compare, WordGrid } from './compare.js';
import { Button, Field, Notice } from './kit.js';
import { call } from './link.js';
import { Problem, Screen } from './screen.js';
import { text } from './strings.js';
import { useTask } from './task.js';
import { placesToAsk, wordsIn } from './typed.js';

const { begin } = text;

const random = (): number => crypto.getRandomValues(new Uint32Array(1))[0] ?? 0;

/** Ends the attempt; nothing is registered. */
export function StartOver(): JSX.Element {
  const task = useTask();
  return (
    <Button kind="quiet" busy={task.busy} onClick={() => task.run(() => call('enrolCancel'))}>
      {begin.startOver}
    </Button>
  );
}

/** Claim: shows the words, then asks the user to repeat two of them. */
export function PhraseStep({ words }: { readonly words: readonly string[] }): JSX.Element {
  const [written, setWritten] = useState(false);
  return written ? (
    <AskBack key="ask" words={words} onAgain={() => setWritten(false)} />
  ) : (
    <ShowPhrase key="show" words={words} onWritten={() => setWritten(true)} />
  );
}

function ShowPhrase({ words, onWritten }: { readonly words: readonly string[]; readonly onWritten: () => void }) {
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
      <div class="step-foot no-print">
        <Button kind="primary" wide onClick={onWritten}>
          {begin.phrase.written}
        </Button>
        <Button wide onClick={() => print()}>
          {begin.phrase.print}
        </Button>
        <StartOver />
      </div>
    </Screen>
  );
}

function AskBack({ words, onAgain }: { readonly words: readonly string[]; readonly onAgain: () => void }) {
  const places = useMemo(() => placesToAsk(random), []);
  const [typed, setTyped] = useState<readonly [string, string]>(['', '']);
  const [wrong, setWrong] = useState<readonly number[]>([]);
  const task = useTask();
  const submit = (): void => {
    const bad = places.filter((place, at) => wordsIn(typed[at] ?? '').join(' ') !== words[place]);
    setWrong(bad);
    if (bad.length === 0) task.run(() => call('claimRegister'));
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
          error={wrong.includes(place) ? begin.ask.wrong(place + 1) : null}
          mono
        />
      ))}
      <Problem problem={task.problem} />
      <div class="step-foot">
        <Button kind="primary" submit wide busy={task.busy}>
          {begin.ask.go}
        </Button>
        <Button kind="quiet" onClick={onAgain}>
          {begin.ask.again}
        </Button>
      </div>
    </Screen>
  );
}

/** Join: the digits, while the other device decides. */
export function CompareStep({ digits }: { readonly digits: string }): JSX.Element {
  return (
    <Screen title={begin.compare.title}>
      <p>{begin.compare.lead}</p>
      <Compare digits={digits} />
      <p class="quiet">{begin.compare.differ}</p>
      <div class="step-foot">
        <p class="step-waiting" role="status">
          <span class="turning" aria-hidden="true" /> {begin.compare.waiting}
        </p>
        <StartOver />
      </div>
    </Screen>
  );
}

/** The account password, where one is set. */
export function PasswordStep({ wrong }: { readonly wrong: boolean }): JSX.Element {
  const [password, setPassword] = useState('');
  const task = useTask();
  return (
    <Screen
      title={begin.password.title}
      onSubmit={() => {
        if (password !== '') task.run(() => call('enrolPassword', password));
      }}
    >
      <p>{begin.password.lead}</p>
      <Field
        kind="secret"
        label={begin.password.label}
        value={password}
        onValue={setPassword}
        autoComplete="current-password"
        error={wrong ? begin.password.wrong : null}
      />
      <Problem problem={task.problem} />
      <div class="step-foot">
        <Button kind="primary" submit wide busy={task.busy} disabled={password === ''}>
          {begin.password.go}
        </Button>
        <StartOver />
      </div>
    </Screen>
  );
}

/** Whether the server has received the request is unknown: the same attempt can be continued. */
export function UndecidedStep({ message }: { readonly message: string }): JSX.Element {
  const task = useTask();
  return (
    <Screen title={begin.failed}>
      <Notice kind="warn" live>
        <p>{message}</p>
        <p>{begin.undecided}</p>
      </Notice>
      <Problem problem={task.problem} />
      <div class="step-foot">
        <Button kind="primary" wide busy={task.busy} onClick={() => task.run(() => call('enrolRetry'))}>
          {begin.tryAgain}
        </Button>
        <StartOver />
      </div>
    </Screen>
  );
}
