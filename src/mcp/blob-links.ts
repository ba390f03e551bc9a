/**
 * Signed addresses for the items of one answer whose content is a blob (MCP-63). The content stays
 * where it is, and stays encrypted: the address needs no token, and lasts some minutes.
 */
import { ClientError, isPassing } from '../sdk/errors.js';
import type { ItemView } from '../sdk/events.js';
import type { DownloadUrl } from '../sdk/replies.js';
import type { McpError } from './errors.js';
import type { ItemOutput } from './schemas.js';
import { isoOf } from './shown.js';
import { toolFailure } from './failure.js';

/** Requests at once. */
const AT_ONCE = 8;

/** What an item says of its blob; undefined: it has none. */
export type BlobLink = NonNullable<ItemOutput['blob']>;

/**
 * The links of the items that have a blob, by id. One that cannot be had says why; where the server is in trouble, the
 * rest is not asked for. Throws what concerns the whole answer: this machine was revoked, or closed.
 */
export async function blobLinks(
  views: readonly ItemView[],
  urlOf: (id: string) => Promise<DownloadUrl>,
): Promise<ReadonlyMap<string, BlobLink>> {
  const links = new Map<string, BlobLink>();
  const left = views.flatMap(({ id, blob }) => (blob === null ? [] : [{ id, holds: blob.holds }]));
  let trouble: McpError | undefined;
  const work = async (): Promise<void> => {
    for (let next = left.shift(); next !== undefined; next = left.shift()) {
      const { id, holds } = next;
      if (trouble !== undefined) {
        links.set(id, { ...without(trouble), holds });
        continue;
      }
      try {
        const { url, size, expiresAt } = await urlOf(id);
        links.set(id, { url, size, expiresAt: isoOf(expiresAt), holds });
      } catch (error) {
        if (error instanceof ClientError) throw error;
        const failure = toolFailure(error);
        if (isPassing(error)) trouble = failure;
        links.set(id, { ...without(failure), holds });
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return links;
}

const without = ({ code, message }: McpError) => ({
  url: null,
  size: null,
  expiresAt: null,
  problem: `${code}: ${message}`,
});
