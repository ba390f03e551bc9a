/** The side bar: bins with their dialogs, links to the other pages, and the status line. */
import * as icons from 'lucide-preact';
import type { ComponentChildren, JSX } from 'preact';
import type { DeviceInfo } from '../link/messages.js';
import { attempt, binName } from './actions.js';
import { BinDialog } from './bin-dialog.js';
import { BinSign, Button, closeDialogs, follows, openDialog, useModal, type Closable } from './kit.js';
import { KeysDialog } from './keys.js';
import { bins, call, info, isRevoked } from './link.js';
import { binId, go, hashOf, page, type Place } from './route.js';
import * as text from './strings.js';

const words = text.frame;

const PAGE_LINKS = [
  ['devices', icons.MonitorSmartphone],
  ['settings', icons.Settings],
  ['trust', icons.ShieldCheck],
] as const;

/** The content of the side bar, beside the list or in a drawer. */
export function Sidebar({ close }: { close?: ComponentChildren }) {
  const known = bins.value ?? [];
  const showKeys = (): void => {
    closeDialogs();
    openDialog(KeysDialog);
  };
  const total = known.reduce((sum, { count }) => sum + count, 0);
  return (
    <div class="side-inner stack tight">
      <div class="side-head line between">
        <span class="side-brand">{document.title}</span>
        {close}
      </div>
      <nav class="side-nav" aria-label={words.bins}>
        <ul>
          <NavItem to={{}} icon={<icons.Layers />} label={words.all} count={total} />
        </ul>
        <div class="side-title line between">
          <p class="small quiet strong">{words.bins}</p>
          {!isRevoked.value && (
            <Button kind="icon" icon={icons.Plus} label={text.bins.create} onClick={() => openDialog(BinDialog)} />
          )}
        </div>
        <ul>
          {known.map((bin) => (
            <NavItem
              key={bin.id}
              to={{ binId: bin.id }}
              icon={<BinSign emoji={bin.emoji} />}
              label={binName(bin.id)}
              count={bin.count}
              onEdit={isRevoked.value ? undefined : () => openDialog((dialog) => <BinDialog {...dialog} bin={bin} />)}
            />
          ))}
        </ul>
      </nav>
      <nav class="side-foot" aria-label={words.menu}>
        <ul>
          {!isRevoked.value &&
            PAGE_LINKS.map(([to, Sign]) => <NavItem key={to} to={{ page: to }} icon={<Sign />} label={words[to]} />)}
          <LockEntry />
          <li class="nav keys-entry">
            <NavButton icon={icons.Keyboard} label={text.keys.title} onClick={showKeys} />
          </li>
        </ul>
      </nav>
      {!isRevoked.value && <Status />}
    </div>
  );
}

/** By itself, so that a change of the status does not render all bins again. */
function LockEntry() {
  if (info.value == null || info.value.lock.kind === 'none') return null;
  return (
    <li class="nav">
      <NavButton icon={icons.Lock} label={words.lock} onClick={() => void attempt(call('lock'))} />
    </li>
  );
}

function NavButton({ icon: Sign, label, onClick }: { icon: icons.LucideIcon; label: string; onClick: () => void }) {
  return (
    <button type="button" class="nav-link line grow" onClick={onClick}>
      <Sign />
      <span class="grow">{label}</span>
    </button>
  );
}

interface NavItemProps {
  readonly to: Partial<Place>;
  readonly icon: JSX.Element;
  readonly label: string;
  readonly count?: number;
  readonly onEdit?: (() => void) | undefined;
}

function NavItem({ to, icon, label, count, onEdit }: NavItemProps) {
  const { page: toPage = null, binId: toBin = null } = to;
  const on = page.value === toPage && binId.value === toBin;
  return (
    // Files can be dropped on a bin.
    <li class={`nav${on ? ' on' : ''}`} data-bin={toBin}>
      <a
        class="nav-link line grow"
        href={hashOf(to)}
        aria-current={on ? 'page' : undefined}
        onClick={follows(() => {
          closeDialogs();
          go(to);
        })}
      >
        {icon}
        <bdi class="grow clip">{label}</bdi>
        {count !== undefined && <span class="nav-count small quiet numbers">{count.toLocaleString()}</span>}
      </a>
      {onEdit !== undefined && (
        <span class="nav-edit">
          <Button kind="icon" icon={icons.Pencil} label={words.binMenu(label)} onClick={onEdit} />
        </span>
      )}
    </li>
  );
}

/** The side bar over the list, if there is no room beside it. */
export function Drawer({ onClose }: Closable) {
  const modal = useModal(onClose);
  return (
    <dialog {...modal} class="drawer" aria-label={words.menu}>
      <Sidebar close={<Button kind="icon" icon={icons.X} label={text.kit.close} onClick={onClose} />} />
    </dialog>
  );
}

const SIGNS = {
  good: icons.CircleCheck,
  busy: icons.RefreshCw,
  away: icons.CloudOff,
  bad: icons.TriangleAlert,
} as const;

const clock = (at: number): string => {
  const time = new Date(at);
  const today = time.toDateString() === new Date().toDateString();
  return time.toLocaleString(undefined, { dateStyle: today ? undefined : 'short', timeStyle: 'short' });
};

/** The text of the line, and its appearance. */
function statusOf({ connection, waiting, complete, halted }: DeviceInfo): readonly [keyof typeof SIGNS, string] {
  if (halted !== null) return ['bad', words.halted];
  const { count, since } = waiting;
  if (connection.state === 'waiting' || connection.state === 'closed')
    return ['away', since === null ? words.offline : words.offlineWaiting(count, clock(since))];
  if (connection.state === 'connecting') return ['busy', words.connecting];
  if (count > 0) return ['busy', words.sending(count)];
  return complete === true ? ['good', words.here] : ['busy', words.catchingUp];
}

/** `short`: for the head of the list, shown only if there is something to report. */
export function Status({ short = false }: { short?: boolean }) {
  const [mood, says] = info.value == null ? [] : statusOf(info.value);
  const Sign = mood && SIGNS[mood];
  return (
    <div class={`status line wrap between small quiet ${mood ?? ''}${short ? ' short narrow-only' : ''}`}>
      <p role={short ? undefined : 'status'} class="line">
        {Sign && <Sign />}
        <span>{says}</span>
      </p>
      {mood === 'away' && <Button kind="quiet" onClick={() => void attempt(call('reconnect'))} label={words.connect} />}
    </div>
  );
}
