/** When the app cannot work: what is checked before anything else runs, why it cannot, and the shortest remedy. */
import type { ComponentChildren } from 'preact';
import { Button, Notice, Points, later } from './kit.js';
import { call, phase } from './link.js';
import { askForget } from './lock.js';
import { Copyable, Problem, Screen, useTask } from './screen.js';
import * as text from './strings.js';

const words = text.unable;

/** A missing feature. `insecure` explains most of the others, so it is reported alone. */
type Missing = keyof typeof words.parts;

type Checked = 'isSecureContext' | 'WebAssembly' | 'Worker' | 'BroadcastChannel' | 'ReadableStream' | 'indexedDB';

/** The parts of `globalThis` that are checked. */
export interface Surroundings extends Readonly<Partial<Record<Checked, unknown>>> {
  readonly crypto?: { readonly subtle?: unknown; readonly randomUUID?: unknown };
  readonly navigator?: { readonly locks?: unknown; readonly storage?: unknown };
}

/** The missing features; empty: none. */
export function whatIsMissing(here: Surroundings): readonly Missing[] {
  if (here.isSecureContext !== true) return ['insecure'];
  const parts: readonly (readonly [Missing, unknown])[] = [
    ['wasm', here.WebAssembly],
    ['workers', here.Worker],
    ['storage', here.indexedDB],
    ['locks', here.navigator?.locks],
    ['channels', here.BroadcastChannel],
    ['crypto', here.crypto?.subtle && here.crypto.randomUUID],
    ['streams', here.ReadableStream],
  ];
  return parts.filter(([, part]) => part === undefined || part === null).map(([name]) => name);
}

/** Hosts for which no public authority issues certificates: names of a home network, and IP addresses. */
const isPrivate = (host: string): boolean =>
  /^[\d.]+$|^\[|\.(local|lan|home|internal|test|home\.arpa)$/.test(host) || !host.includes('.');

const CERTIFICATE_PORT = 2080;
/** Where Caddy, run by root, keeps its own authority. */
const ROOT = '/root/.local/share/caddy/pki/authorities/local/root.crt';

/**
 * How to get https for the page at `hostname` and `port`, which was opened over http: commands for a shell on the
 * server's machine. `proxy` null: port 80 answered, so a proxy is there already and only lacks a certificate.
 * `certificate` serves the certificate of the proxy's own authority, which other devices download at `certificateUrl`;
 * both null: a public authority signs, or `proxy` is null.
 */
export function wayToHttps({ hostname, port }: { readonly hostname: string; readonly port: string }) {
  const address = `https://${hostname}`;
  const own = isPrivate(hostname);
  const signed = port === '' || !own;
  return {
    proxy:
      port === '' ? null : `sudo caddy reverse-proxy --from ${address} --to :${port}${own ? ' --internal-certs' : ''}`,
    // Copied into a separate folder: next to the original is its key, which must not be served.
    certificate: signed
      ? null
      : `sudo install -Dm644 ${ROOT} ~/ca/root.crt && caddy file-server --root ~/ca --listen :${CERTIFICATE_PORT}`,
    certificateUrl: signed ? null : `http://${hostname}:${CERTIFICATE_PORT}/root.crt`,
    address,
  };
}

/** Not part of the first view. */
const QrCode = later(async () => (await import('./qr-code.js')).QrCode);

/** Screen shown if `whatIsMissing` found something. Needs no engine. */
export function UnableScreen() {
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

function Step(props: { lead: string; command: string; children: ComponentChildren }) {
  return (
    <div class="stack tight">
      <p>{props.lead}</p>
      <Copyable value={props.command} label={text.kit.copy} />
      {props.children}
    </div>
  );
}

function TooOld({ missing }: { missing: readonly Missing[] }) {
  return (
    <Screen title={words.oldTitle}>
      <p>{words.old}</p>
      <Points points={missing.map((part) => words.parts[part])} />
      <p>{words.oldWhat}</p>
    </Screen>
  );
}

/** Error codes of a store that a retry will not open, so that the remedy is to start anew. */
const LOST: ReadonlySet<string> = new Set(['damaged', 'other_owner']);

/** Screen of the phase `failed`: the local store cannot be used. */
export function StoreFailed() {
  const task = useTask();
  const now = phase.value;
  if (now?.phase !== 'failed') return null;
  const { problem } = now;
  return (
    <Screen title={words.failedTitle}>
      <Notice kind="warn" live>
        {words.store[problem.code] ?? text.problem(problem)}
      </Notice>
      <Problem problem={task.problem} />
      <div class="step-foot stack tight">
        {problem.code === 'newer_format' || problem.code === 'closed' ? (
          <Button kind="primary" wide onClick={() => location.reload()} label={words.reload} />
        ) : (
          <Button kind="primary" wide {...task.button(() => call('retry'))} label={text.kit.tryAgain} />
        )}
        {LOST.has(problem.code) && <Button kind="danger" wide onClick={askForget} label={text.lock.forget} />}
      </div>
    </Screen>
  );
}
