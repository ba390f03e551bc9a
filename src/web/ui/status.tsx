/** The status line: connection, and whether changes are sent and everything is here. */
import type { DeviceInfo } from '../link/messages.js';
import { attempt } from './actions.js';
import { CircleCheck, CloudOff, RefreshCw, TriangleAlert } from 'lucide-preact';
import { Button } from './kit.js';
import { call, info } from './link.js';
import { text } from './strings.js';

const words = text.frame;

interface Said {
  readonly mood: 'good' | 'busy' | 'away' | 'bad';
  readonly says: string;
}

const clock = (at: number): string => {
  const today = new Date(at).toDateString() === new Date().toDateString();
  return new Date(at).toLocaleString(
    undefined,
    today ? { timeStyle: 'short' } : { dateStyle: 'short', timeStyle: 'short' },
  );
};

/** The text of the line, and its appearance. */
export function statusOf({ connection, waiting, complete, halted }: DeviceInfo): Said {
  if (halted !== null) return { mood: 'bad', says: words.halted };
  const { count, since } = waiting;
  if (connection.state === 'waiting' || connection.state === 'closed')
    return {
      mood: 'away',
      says: count > 0 && since !== null ? words.offlineWaiting(count, clock(since)) : words.offline,
    };
  if (connection.state === 'connecting') return { mood: 'busy', says: words.connecting };
  if (count > 0) return { mood: 'busy', says: words.sending(count) };
  if (complete === true) return { mood: 'good', says: words.here };
  return { mood: 'busy', says: words.catchingUp };
}

const SIGNS = { good: CircleCheck, busy: RefreshCw, away: CloudOff, bad: TriangleAlert } as const;

/** `short`: for the head of the list, shown only if there is something to report. */
export function Status({ short = false }: { short?: boolean }) {
  const about = info.value ?? null;
  const said = about === null ? null : statusOf(about);
  const Sign = said === null ? null : SIGNS[said.mood];
  return (
    <div class={`status ${said?.mood ?? ''}${short ? ' short' : ''}`}>
      <p role={short ? undefined : 'status'} class="line">
        {Sign !== null && <Sign />}
        <span>{said?.says ?? ''}</span>
      </p>
      {said?.mood === 'away' && (
        <Button kind="quiet" onClick={() => void attempt(call('reconnect'))} label={words.connect} />
      )}
    </div>
  );
}
