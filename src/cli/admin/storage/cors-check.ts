/** May browsers on other origins use the signed URLs (the reference, Configuration, `CORS_ORIGINS`)? */
import type { SignedRequest } from '../../../blobs/ports.js';
import { ask, type StoreAnswer } from './requests.js';
import type { Verdict } from './verdict.js';

/** URLs as a client gets them. */
export interface CorsCheck {
  readonly upload: SignedRequest;
  readonly download: SignedRequest;
  readonly origins: readonly string[];
}

/** An origin of nobody's: it passes where every origin does. */
const ANYBODY = 'https://origin.example';

/** A browser sets these itself and does not ask about them. */
const OWN: ReadonlySet<string> = new Set(['content-length', 'host']);

const listOf = (text: string | null): string[] => (text ?? '').split(',').map((part) => part.trim().toLowerCase());

/** One verdict for each origin. Rejects with a fault where the store does not answer. */
export async function corsVerdicts({ upload, download, origins }: CorsCheck): Promise<readonly Verdict[]> {
  if (origins.length === 0) {
    return [{ check: 'CORS', outcome: 'skipped', seen: 'CORS_ORIGINS is empty: no browser calls from elsewhere' }];
  }
  const verdicts: Verdict[] = [];
  for (const origin of origins.map((name) => (name === '*' ? ANYBODY : name))) {
    verdicts.push(await verdictFor(origin, { upload, download }));
  }
  return verdicts;
}

async function verdictFor(origin: string, { upload, download }: Omit<CorsCheck, 'origins'>): Promise<Verdict> {
  const needed = Object.keys(upload.headers).filter((name) => !OWN.has(name));
  const headers = {
    origin,
    'access-control-request-method': 'PUT',
    'access-control-request-headers': [...needed].sort().join(','),
  };
  const preflight = await ask(upload.url, { method: 'OPTIONS', headers });
  const answer = await ask(download.url, { method: 'GET', headers: { origin } });
  const missing = [...missingBefore(preflight, { origin, needed }), ...missingIn(answer, origin)];
  const check = `CORS ${origin}`;
  if (missing.length === 0) return { check, outcome: 'ok', seen: 'browsers may upload and download' };
  const advice =
    `Give the bucket a CORS rule: origin ${origin}, methods GET, HEAD and PUT, headers ${needed.join(', ')} and range, ` +
    'exposing etag, content-length and content-range.';
  return { check, outcome: 'failed', seen: `the bucket does not allow ${missing.join(', ')}`, reason: 'cors', advice };
}

/** The origin of an answer, as browsers compare it. */
const allows = ({ headers }: StoreAnswer, origin: string): boolean =>
  ['*', origin].includes(headers.get('access-control-allow-origin') ?? '');

function missingBefore(
  answer: StoreAnswer,
  { origin, needed }: { origin: string; needed: readonly string[] },
): string[] {
  if (answer.status >= 300 || !allows(answer, origin)) return ['uploads of this origin'];
  const methods = listOf(answer.headers.get('access-control-allow-methods'));
  const named = listOf(answer.headers.get('access-control-allow-headers'));
  const headers = needed.filter((name) => !named.includes(name) && !named.includes('*'));
  const method = methods.includes('put') || methods.includes('*') ? [] : ['the method PUT'];
  return [...method, ...headers.map((name) => `the header ${name}`)];
}

const missingIn = (answer: StoreAnswer, origin: string): string[] =>
  allows(answer, origin) ? [] : ['downloads of this origin'];
