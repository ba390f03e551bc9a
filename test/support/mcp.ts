/** The companion in a test: its server over a pair of streams in memory, on a real device of a real server. */
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { InMemoryTransport } from '@modelcontextprotocol/sdk/inMemory.js';
import type { CallToolResult, Progress } from '@modelcontextprotocol/sdk/types.js';
import type { Identity } from '../../src/sdk/identity.js';
import type { Platform } from '../../src/sdk/platform.js';
import type { AuditEntry } from '../../src/mcp/audit.js';
import { mcpPlatform } from '../../src/mcp/context.js';
import { readPolicy } from '../../src/mcp/policy.js';
import type { ItemOutput } from '../../src/mcp/schemas.js';
import { ToolServer } from '../../src/mcp/server.js';
import { toolsOf } from '../../src/mcp/tools.js';
import { Vault } from '../../src/mcp/vault.js';
import type { World } from './client-world.js';
import { temporaryFolder, type WithTeardown } from './postgres.js';

/** What a list or a search gives. */
export interface Listing {
  readonly items: readonly ItemOutput[];
  readonly total: number;
  readonly nextCursor: string | null;
  readonly complete: boolean | null;
  readonly notes: readonly string[];
}

/** A call that was refused: what stands in the result's `_meta`. */
export interface Refusal {
  readonly code: string;
  readonly message: string;
  readonly hint: string;
}

export interface Companion {
  readonly client: Client;
  readonly vault: Vault;
  readonly audit: AuditEntry[];
  /** Lines for the person. */
  readonly notes: string[];
  /** A call as it is answered. */
  raw(name: string, args?: object, progress?: (progress: Progress) => void): Promise<CallToolResult>;
  /** What a call gives; fails where it is refused. */
  call<T = Listing>(name: string, args?: object): Promise<T>;
  /** What a call is refused with; fails where it is not. */
  refused(name: string, args?: object): Promise<Refusal>;
  list(args?: object): Promise<Listing>;
  search(query: string, args?: object): Promise<Listing>;
  put(bin: string, payload: object, type?: string): Promise<{ readonly id: string; readonly version: number }>;
}

export interface CompanionOptions {
  readonly identity: Identity;
  readonly platform?: Platform;
  readonly env?: Readonly<Record<string, string>>;
  /** Agents may read the secrets of passwords. */
  readonly passwords?: boolean;
  readonly keep?: (identity: Identity) => Promise<unknown>;
  /** Where it stores the device list; default: a folder of its own. */
  readonly folder?: string;
  /** Is given each record of a call too. */
  readonly record?: (entry: AuditEntry) => void;
}

/** Text of a result. */
export const textOf = ({ content }: CallToolResult): string =>
  content.map((part) => (part.type === 'text' ? part.text : '')).join('\n');

/** A companion with an identity, and a client of it. Both end with the test. */
export async function companion(t: WithTeardown, options: CompanionOptions): Promise<Companion> {
  const { identity, platform = await mcpPlatform(), env = {}, keep = () => Promise.resolve() } = options;
  const passwords = (): Promise<boolean> => Promise.resolve(options.passwords === true && !policy.redact);
  const policy = readPolicy(env);
  const notes: string[] = [];
  const audit: AuditEntry[] = [];
  const note = (text: string): void => void notes.push(text);
  const now = (): number => platform.clock.now();
  const paths = { folder: options.folder ?? (await temporaryFolder(t)) };
  const vault = await Vault.open({ platform, identity, policy, note, keep, paths });
  t.teardown(async () => vault.close());
  const { mcp } = new ToolServer({
    ...{ version: '1.2.3', policy, expectPaired: () => Promise.resolve(), note, now },
    tools: toolsOf({ vault, passwords, now }),
    audit: {
      write: (entry) => {
        audit.push(entry);
        options.record?.(entry);
      },
    },
  });
  const [here, there] = InMemoryTransport.createLinkedPair();
  await mcp.connect(there);
  const client = new Client({ name: 'test', version: '1' });
  await client.connect(here);
  // The client holds results against the output schemas of the tools that it has listed.
  await client.listTools();
  t.teardown(async () => client.close());
  const raw: Companion['raw'] = async (name, args = {}, onprogress) =>
    (await client.callTool({ name, arguments: { ...args } }, undefined, { onprogress })) as CallToolResult;
  const call: Companion['call'] = async <T>(name: string, args?: object) => {
    const result = await raw(name, args);
    if (result.isError === true) throw new Error(`${name} was refused: ${textOf(result)}`);
    return result.structuredContent as T;
  };
  return {
    ...{ client, vault, audit, notes, raw, call },
    refused: async (name, args) => {
      const result = await raw(name, args);
      if (result.isError !== true) throw new Error(`${name} was not refused: ${textOf(result)}`);
      return result._meta?.['service-mcp/error'] as Refusal;
    },
    list: (args) => call('sb_list_items', args),
    search: (query, args) => call('sb_search', { query, ...args }),
    put: (bin, payload, type) => call('sb_put_item', { bin, payload, ...(type === undefined ? {} : { type }) }),
  };
}

/** A companion that was paired with the first device of a world. */
export async function paired(
  t: WithTeardown,
  world: World,
  env?: CompanionOptions['env'],
  passwords = false,
): Promise<Companion> {
  await world.first.device.connect();
  const second = await world.pair('Agent');
  second.device.close();
  return companion(t, { identity: second.identity(), passwords, ...(env === undefined ? {} : { env }) });
}
