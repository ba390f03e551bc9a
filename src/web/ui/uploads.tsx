/** The list of uploads. */
import type { Upload } from '../link/messages.js';
import { attempt } from './actions.js';
import { X } from 'lucide-preact';
import { Button, OneLine, Progress } from './kit.js';
import { call, uploads } from './link.js';
import { text } from './strings.js';

const words = text.uploads;

/** Renders nothing while there are no uploads. */
export function Uploads() {
  const all = uploads.value ?? [];
  if (all.length === 0) return null;
  return (
    <section class="uploads" aria-label={words.title}>
      {all.length > 1 && <p class="small quiet">{words.summary(all.length)}</p>}
      <ul>
        {all.map((one) => (
          <UploadRow key={one.id} upload={one} />
        ))}
      </ul>
    </section>
  );
}

function UploadRow({ upload: { id, name, size, done, speed, state, problem } }: { upload: Upload }) {
  return (
    <li class="upload">
      <div class="grow">
        <div class="line">
          <OneLine value={name} class="grow" />
          <span class={`small numbers ${state === 'failed' ? 'danger-text' : 'quiet'}`}>
            {state !== 'sending' && done > 0 && words.continues(Math.floor((done / Math.max(size, 1)) * 100))}
            {state === 'waiting' && done === 0 && words.waiting}
            {state === 'sending' && words.sent(text.size(done), text.size(size))}
            {state === 'sending' && speed > 0 && words.speed(text.size(speed))}
          </span>
        </div>
        {state === 'failed' ? (
          <p class="small danger-text" role="alert">
            {problem === null ? text.notices.problem : text.problem(problem)}
          </p>
        ) : (
          <Progress label={words.progress(name)} value={done} max={Math.max(size, 1)} />
        )}
      </div>
      {state === 'failed' && (
        <Button kind="quiet" onClick={() => void attempt(call('uploadRetry', id))} label={text.kit.tryAgain} />
      )}
      <Button kind="icon" icon={X} label={words.cancel(name)} onClick={() => void attempt(call('uploadCancel', id))} />
    </li>
  );
}
