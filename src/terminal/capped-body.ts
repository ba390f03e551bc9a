/** Reads the body of an untrusted response, at most `max` bytes: the chunk that exceeds them is dropped as a whole. */
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
