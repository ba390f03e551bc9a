/** Decodes a part of an address; one that is not percent-encoded is returned unchanged. */
export function percentDecoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
