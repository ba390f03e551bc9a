/** Bounded reading of bytes from outside. */

/** Reads at most `max` bytes. `whole` false: there were more, and the chunk that exceeds them was dropped. */
export async function readCapped(chunks: AsyncIterable<Uint8Array>, max: number) {
  const read: Uint8Array[] = [];
  let size = 0;
  for await (const chunk of chunks) {
    size += chunk.length;
    if (size > max) break;
    read.push(chunk);
  }
  return { bytes: Buffer.concat(read), whole: size <= max };
}

/** The body of an untrusted response, at most `max` bytes of it. */
export const cappedBody = async ({ body }: Response, max: number): Promise<Buffer> =>
  body === null ? Buffer.alloc(0) : (await readCapped(body as AsyncIterable<Uint8Array>, max)).bytes;
