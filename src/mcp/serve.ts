/** `service-mcp serve`. */
import type { Context } from './context.js';
import type { ExitCode } from './errors.js';

/** Standard input and output as the transport takes them. */
export interface ServeOptions extends Context {
  readonly input: NodeJS.ReadableStream;
  readonly output: NodeJS.WritableStream;
}

/** Speaks MCP until `input` ends or `interrupted` is aborted. Resolves with the exit code; throws `McpError`. */
export declare function serve(options: ServeOptions): Promise<ExitCode>;
