/** Checksums as stores tell them, in a form that may be kept and compared. */

/** Hex and base64, and the `-<parts>` of an ETag. Anything longer is no checksum, and would swell the list of a backup. */
const VALUE = /^[A-Za-z0-9+/=_-]{1,128}$/;

/** Those of these values that are checksums; an ETag's quotes (RFC 9110, 8.8.3) are taken off. Empty where there is none. */
export function checksumOf(values: Readonly<Record<string, string | undefined>>): {
  readonly checksum?: Readonly<Record<string, string>>;
} {
  const told = Object.entries(values).flatMap(([name, value = '']) => {
    const bare = value.replace(/^"(.*)"$/, '$1');
    return VALUE.test(bare) ? [[name, bare] as const] : [];
  });
  return told.length === 0 ? {} : { checksum: Object.fromEntries(told) };
}
