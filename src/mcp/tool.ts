/** What a tool is to the server that offers it. */
import type { ToolAnnotations } from '@modelcontextprotocol/sdk/types.js';
import type { z } from 'zod';
import type { Progress } from './vault.js';

/** What a call brings beside its arguments. */
export interface ToolCall {
  /** Aborted when the agent does not wait any more. */
  readonly signal: AbortSignal;
  /** Tells how far a long reading is; undefined where nobody asked. */
  readonly progress: Progress | undefined;
}

/** What a call gives. */
export interface ToolAnswer<O> {
  readonly output: O;
  /** The same for a reader. */
  readonly text: string;
  /** Items that were handed out, written or deleted. */
  readonly ids: readonly string[];
  /** Id of the bin that the arguments named, for the record; absent: they named none. */
  readonly bin?: string;
}

/** One tool: what it says of itself, what it takes and gives, and what it does. */
export interface Tool<I extends z.ZodType = z.ZodType, O extends z.ZodType = z.ZodType> {
  readonly name: string;
  readonly title: string;
  readonly description: string;
  readonly annotations: ToolAnnotations;
  /** True: it is not offered, and refused, where nothing may be written. */
  readonly writes: boolean;
  readonly input: I;
  readonly output: O;
  /** The bin that the arguments name, for the record. */
  readonly binOf: (args: z.infer<I>) => string | null;
  /** Throws `McpError`, or what `toolFailure` makes one of. */
  readonly run: (args: z.infer<I>, call: ToolCall) => Promise<ToolAnswer<z.infer<O>>>;
}
