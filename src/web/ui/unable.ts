/** The browser features that the page needs, checked before anything else runs. */

/** A missing feature. `insecure` explains most of the others, so it is reported alone. */
export type Missing = 'insecure' | 'wasm' | 'workers' | 'storage' | 'locks' | 'channels' | 'crypto' | 'streams';

/** The parts of `globalThis` that are checked. */
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

/** How to get https for a page that was opened over http: commands for a shell on the server's machine. */
export interface WayToHttps {
  /** Null: port 80 answered, so a proxy is there already and only lacks a certificate. */
  readonly proxy: string | null;
  /** Serves the certificate of the proxy's own authority; null: a public authority signs, or `proxy` is null. */
  readonly certificate: string | null;
  /** Where other devices download that certificate. */
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
    // Copied into a separate folder: next to the original is its key, which must not be served.
    certificate: `sudo install -Dm644 ${ROOT} ~/ca/root.crt && caddy file-server --root ~/ca --listen :${CERTIFICATE_PORT}`,
    certificateUrl: `http://${hostname}:${CERTIFICATE_PORT}/root.crt`,
    address,
  };
}
