/** Compares the web app that a server shows with the files of the release that this program belongs to. */
import { hash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ifThere } from '../files/there.js';
import { parsedJson } from '../protocol/bytes.js';
import { reachedIn, type WebAsset, type WebRelease } from '../protocol/web-app.js';
import { WEB_FOLDER } from '../root.js';
import { NetworkError, ProtocolError } from '../sdk/errors.js';
import type { Platform } from '../sdk/platform.js';
import { nonEmpty, object } from '../sdk/reader.js';
import { cappedBody } from '../terminal/read-capped.js';

const ANSWER_WITHIN_MS = 15_000;
const HEALTH_MAX = 4 * 1024;
/** What is read beyond a file's size: enough to see what a larger page refers to. */
const BEYOND_MAX = 256 * 1024;
const EXTRA_MAX = 20;
/** The headers of browsers' requests, so that the bytes compared are those that browsers get. */
const AS_BROWSERS = { 'accept-encoding': 'gzip, deflate, br', accept: 'text/html,*/*;q=0.8' };

/** One file, and the result of comparing its bytes and its policy. */
export interface Compared {
  readonly path: string;
  /** `policy`: the bytes match, the content security policy does not. `extra`: only the page refers to it. */
  readonly found: 'same' | 'differs' | 'policy' | 'missing' | 'extra';
}

/** The list of files beside this program; undefined: it was installed without them. */
export async function readRelease(folder = WEB_FOLDER): Promise<WebRelease | undefined> {
  const list = await ifThere(() => readFile(join(folder, 'assets.json'), 'utf8'));
  return list === undefined ? undefined : (JSON.parse(list) as WebRelease);
}

export type Reply = Awaited<ReturnType<typeof fetchOnce>>;

/**
 * Requests a URL once, without a token and without following redirects. Returns the response with at most `max` bytes of its
 * body, and when it was sent and received, ms. Rejects with the error of `fetch`; after 15 s it aborts `stop`.
 */
export async function fetchOnce(
  { fetch, clock }: Platform,
  url: string,
  { headers, max }: { readonly headers: Readonly<Record<string, string>>; readonly max: number },
  stop = new AbortController(),
) {
  const timer = clock.setTimer(ANSWER_WITHIN_MS, () => stop.abort());
  const sentAt = clock.now();
  try {
    const how = { redirect: 'manual', credentials: 'omit', cache: 'no-store', signal: stop.signal } as const;
    const response = await fetch(url, { headers, ...how });
    const receivedAt = clock.now();
    const bytes = await cappedBody(response, max);
    return { status: response.status, headers: response.headers, bytes, sentAt, receivedAt };
  } finally {
    timer.cancel();
  }
}

function get(platform: Platform, url: string, max: number): Promise<Reply> {
  const stop = new AbortController();
  return fetchOnce(platform, url, { headers: AS_BROWSERS, max }, stop).catch((cause: unknown) => {
    throw new NetworkError(stop.signal.aborted ? 'timeout' : 'network', `no answer from ${url}`, { cause });
  });
}

const readHealth = object({ version: nonEmpty });

/** The version that the server reports. Throws `ProtocolError` where it is not this service. */
async function versionOf(platform: Platform, serverUrl: string): Promise<string> {
  const { bytes } = await get(platform, `${serverUrl}/api/health`, HEALTH_MAX);
  const refuse = (cause: unknown): Error => new ProtocolError('/api/health: must be JSON', { cause });
  return readHealth(parsedJson(bytes.toString('utf8'), refuse), '/api/health').version;
}

const hashOf = (bytes: Buffer): string => hash('sha256', bytes, 'base64url');

function judge({ path, sha256 }: WebAsset, { status, headers, bytes }: Reply): Compared['found'] {
  if (status === 404) return 'missing';
  if (status !== 200 || hashOf(bytes) !== sha256) return 'differs';
  // Pages and workers get their policy from their own response.
  const ruled = path === '/' || path.endsWith('.js');
  return ruled && reachedIn(policyOf(headers)) === undefined ? 'policy' : 'same';
}

const policyOf = (headers: Headers): string => headers.get('content-security-policy') ?? '';

/** Targets in a page that are not in the release. */
function extrasOf(page: string, serverUrl: string, known: ReadonlySet<string>): Compared[] {
  const found = new Set<string>();
  for (const [, target = ''] of page.matchAll(/\b(?:src|href|content)\s*=\s*["']?((?:[a-z]+:)?\/[^"'\s>]+)/gi)) {
    const base = `${serverUrl}/`;
    const url = URL.canParse(target, base) ? new URL(target, base) : undefined;
    const path = url === undefined || url.origin !== new URL(base).origin ? target : url.pathname;
    if (!known.has(path)) found.add(path);
  }
  return [...found].slice(0, EXTRA_MAX).map((path) => ({ path, found: 'extra' }));
}

/**
 * Compares every file of the release with the server's. `none`: no page for browsers, since `WEB_APP` is `off`, or there
 * was none in its version. `other`: a server of another version, whose files this program does not have. Rejects with
 * `NetworkError` where the server does not answer, and with `ProtocolError` where it is not this service.
 */
export async function compareWebApp(platform: Platform, serverUrl: string, release: WebRelease) {
  const version = await versionOf(platform, serverUrl);
  if (version !== release.version) return { kind: 'other', version } as const;
  const files: Compared[] = [];
  /** Origins other than the server's own that the page may send to, usually a bucket. */
  let reached: readonly string[] = [];
  for (const asset of release.assets) {
    const reply = await get(platform, `${serverUrl}${asset.path}`, asset.bytes + BEYOND_MAX);
    const found = judge(asset, reply);
    files.push({ path: asset.path, found });
    if (asset.path !== '/') continue;
    if (!/^text\/html\b/i.test(reply.headers.get('content-type') ?? '')) return { kind: 'none' } as const;
    const { host } = new URL(serverUrl);
    const own = [`ws://${host}`, `wss://${host}`];
    reached = (reachedIn(policyOf(reply.headers)) ?? []).filter((origin) => !own.includes(origin));
    const known = new Set(release.assets.map(({ path }) => path));
    if (found === 'differs') files.push(...extrasOf(reply.bytes.toString('utf8'), serverUrl, known));
  }
  return { kind: 'compared', files, reached } as const;
}
