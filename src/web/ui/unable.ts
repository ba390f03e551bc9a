/** What a browser must have for this page to work, looked at before anything else runs. */

/** What is missing. `insecure` alone explains most of the others, so nothing else is named beside it. */
export type Missing = 'insecure' | 'wasm' | 'workers' | 'storage' | 'locks' | 'channels' | 'crypto' | 'streams';

/** The parts of `globalThis` that are looked at. */
export interface Surroundings {
  readonly isSecureContext?: boolean;
  readonly WebAssembly?: unknown;
  readonly Worker?: unknown;
  readonly BroadcastChannel?: unknown;
  readonly ReadableStream?: unknown;
  readonly indexedDB?: unknown;
  readonly crypto?: { readonly subtle?: unknown; readonly randomUUID?: unknown };
  readonly navigator?: { readonly locks?: unknown; readonly storage?: unknown };
}

/** Nothing: an empty list. */
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

/** Names that no certificate authority on the internet signs for: those of a home network, and numbers. */
const isPrivate = (host: string): boolean =>
  /^[\d.]+$|^\[|\.(local|lan|home|internal|test|home\.arpa)$/.test(host) || !host.includes('.');

/** The way to https for a page that was opened over http: commands for a shell on the server's machine. */
export interface WayToHttps {
  /** Null: port 80 answered, so a proxy is there already and only lacks a certificate. */
  readonly proxy: string | null;
  /** Hands out the certificate that the proxy signs with; null: it is one that every device knows. */
  readonly certificate: string | null;
  /** Where another device finds that certificate. */
  readonly certificateUrl: string | null;
  readonly address: string;
}

const CERTIFICATE_PORT = 2080;
/** Where Caddy, run by root, keeps its own authority. */
const ROOT = '/root/.local/share/caddy/pki/authorities/local/root.crt';

/** `hostname` and `port` of the page's address. */
export function wayToHttps({ hostname, port }: { readonly hostname: string; readonly port: string }): WayToHttps {
  const address = `https://${hostname}`;
  if (port === '') return { proxy: null, certificate: null, certificateUrl: null, address };
  const own = isPrivate(hostname);
  const proxy = `sudo caddy reverse-proxy --from ${address} --to :${port}${own ? ' --internal-certs' : ''}`;
  if (!own) return { proxy, certificate: null, certificateUrl: null, address };
  return {
    proxy,
    // Into a folder of its own: beside the certificate lies its key, which nobody may get.
    certificate: `sudo install -Dm644 ${ROOT} ~/ca/root.crt && caddy file-server --root ~/ca --listen :${CERTIFICATE_PORT}`,
    certificateUrl: `http://${hostname}:${CERTIFICATE_PORT}/root.crt`,
    address,
  };
}
