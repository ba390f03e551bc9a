/** The built web app and its content security policy: served by the server, compared by `verify-web`. */

export interface WebAsset {
  /** Path of its URL; `/` is index.html. */
  readonly path: string;
  /** SHA-256 of its bytes, base64url. */
  readonly sha256: string;
  readonly bytes: number;
  /** Its size in transfer, bytes: after gzip, or uncompressed if compression gains nothing. */
  readonly gzip: number;
}

/** The built files, as listed by `assets.json` in their folder. */
export interface WebRelease {
  /** The version of the program that it was built with. */
  readonly version: string;
  readonly assets: readonly WebAsset[];
}

/** A file's path in the build folder. */
export const webFileName = ({ path }: Pick<WebAsset, 'path'>): string => (path === '/' ? 'index.html' : path.slice(1));

/**
 * The `Content-Security-Policy` of the web app's page and workers: nothing from elsewhere, no inline script or style.
 * `reached`: the origins in addition to its own that it may connect to.
 */
export const webPolicy = (reached: readonly string[]): string =>
  [
    "default-src 'none'",
    "script-src 'self' 'wasm-unsafe-eval'",
    "style-src 'self'",
    "img-src 'self' blob: data:",
    "media-src 'self' blob:",
    "font-src 'self'",
    ["connect-src 'self'", ...reached].join(' '),
    "frame-src 'self' blob:",
    "worker-src 'self'",
    "manifest-src 'self'",
    "form-action 'self'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    'trusted-types service-web',
  ].join('; ');

/** The origins that a policy allows besides the web app's own; undefined if the rest of it is not `webPolicy`. */
export function reachedIn(policy: string): readonly string[] | undefined {
  const [, listed = ''] = /; connect-src 'self'((?: [^\s;,']+)*);/.exec(policy) ?? [];
  const reached = listed.split(' ').filter((origin) => origin !== '');
  return policy === webPolicy(reached) ? reached : undefined;
}
