/** The body of an answer that may come from anybody. */

/** The first bytes of a body, at most about so many; the rest is not read. */
export async function cappedBody({ body }: Response, max: number): Promise<Buffer> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  for await (const chunk of body ?? []) {
    size += (chunk as Uint8Array).length;
    if (size > max) break;
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}
