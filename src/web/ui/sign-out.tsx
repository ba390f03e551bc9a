/** Signing out of this browser, after an explanation of the consequences. */
import { useState } from 'preact/hooks';
import { Button, Dialog } from './kit.js';
import { call, info } from './link.js';
import { Problem } from './screen.js';
import { text } from './strings.js';
import { pagesText } from './strings-pages.js';
import { useTask } from './task.js';

const words = pagesText.settings.leave;

/** Asks before this browser is signed out; if the server is unreachable, the device is forgotten but not revoked. */
export function SignOutDialog({ onClose }: { onClose: () => void }) {
  const [knows, setKnows] = useState(false);
  const task = useTask();
  const waiting = info.value?.waiting.count ?? 0;
  const connected = info.value?.connection.state === 'connected';
  const go = (how: 'signOut' | 'forget') => (): void => task.run(() => call(how), onClose);
  const barred = waiting > 0 && !knows;
  return (
    <Dialog
      title={words.dialog}
      onClose={onClose}
      plain
      actions={
        <>
          <Button onClick={onClose} autoFocus>
            {text.kit.cancel}
          </Button>
          <Button kind="danger" busy={task.busy} disabled={barred} onClick={go(connected ? 'signOut' : 'forget')}>
            {connected ? words.title : words.forget}
          </Button>
        </>
      }
    >
      <p>{connected ? words.does : words.offline}</p>
      <p>{words.only}</p>
      {waiting > 0 && (
        <div>
          <p class="danger-text">{words.waiting(waiting)}</p>
          <label class="check">
            <input type="checkbox" checked={knows} onChange={(event) => setKnows(event.currentTarget.checked)} />
            <span>{words.lose}</span>
          </label>
        </div>
      )}
      <Problem
        problem={task.problem}
        actions={
          connected && (
            <Button kind="danger" disabled={barred} onClick={go('forget')}>
              {words.forget}
            </Button>
          )
        }
      />
    </Dialog>
  );
}
