/** Hidden items and the reasons, items that a restored server lost, and resynchronisation. */
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import { reasonOf } from '../../sdk/reasons.js';
import type { DeviceInfo, HiddenRow } from '../link/messages.js';
import { Button, Confirm, Notice, toast } from './kit.js';
import { call } from './link.js';
import { Problem } from './screen.js';
import { Section, useAnswer } from './section.js';
import { pagesText } from './strings-pages.js';
import { useTask } from './task.js';

const words = pagesText.settings.repair;

/** Hidden items listed at most, because a hostile server can cause any number. */
const ROWS_MAX = 100;

/** The section of the settings about items that do not verify, and items that the server lost. */
export function RepairSection({ info }: { readonly info: DeviceInfo }): JSX.Element {
  const resync = useTask();
  return (
    <Section title={words.title}>
      {info.hidden === 0 ? <p class="quiet">{words.none}</p> : <Hidden count={info.hidden} />}
      {info.orphaned > 0 && <Orphans count={info.orphaned} />}
      <p class="quiet small">{words.resyncLead}</p>
      <div>
        <Button
          busy={resync.busy}
          onClick={() =>
            resync.run(async () => {
              await call('resync');
              toast(words.resynced);
            })
          }
        >
          {words.resync}
        </Button>
      </div>
      <Problem problem={resync.problem} />
    </Section>
  );
}

function Hidden({ count }: { readonly count: number }) {
  const { value, problem } = useAnswer<readonly HiddenRow[]>(() => call('hidden'), count);
  return (
    <>
      <p>{words.hidden(count)}</p>
      <Problem problem={problem} />
      {value !== undefined && value.length > 0 && (
        <details>
          <summary>{words.which}</summary>
          <ul class="rows hidden-rows">
            {value.slice(0, ROWS_MAX).map((row) => (
              <HiddenItem key={row.id} row={row} />
            ))}
          </ul>
          {value.length > ROWS_MAX && <p class="quiet small">{words.more(value.length - ROWS_MAX)}</p>}
        </details>
      )}
    </>
  );
}

function HiddenItem({ row }: { readonly row: HiddenRow }) {
  const reason = reasonOf(row.reason);
  return (
    <li>
      <div class="stack tight">
        <p>{reason?.meaning ?? row.reason}</p>
        <p class="quiet small">
          {reason?.whatToDo} {row.kept && words.kept}
        </p>
        <code class="quiet small" dir="ltr">
          {row.id}
        </code>
      </div>
    </li>
  );
}

function Orphans({ count }: { readonly count: number }) {
  const [dropping, setDropping] = useState(false);
  const task = useTask();
  const decide = (how: 'republish' | 'discard') => (): void =>
    task.run(async () => {
      await call('orphans', how);
      setDropping(false);
    });
  return (
    <Notice
      kind="warn"
      actions={
        <>
          <Button busy={task.busy} onClick={decide('republish')}>
            {words.republish}
          </Button>
          <Button kind="danger" onClick={() => setDropping(true)}>
            {words.discard}
          </Button>
        </>
      }
    >
      {words.orphans(count)}
      <Problem problem={task.problem} />
      {dropping && (
        <Confirm
          title={words.discardTitle}
          action={words.discard}
          busy={task.busy}
          onYes={decide('discard')}
          onClose={() => setDropping(false)}
        >
          <p>{words.discardLead}</p>
        </Confirm>
      )}
    </Notice>
  );
}
