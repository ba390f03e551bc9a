/** Which command was meant, and how it ends. */
import type { Context } from './context.js';
import { EXIT, type ExitCode } from './errors.js';
import { failureOf } from './failure.js';

/** A command's context, with the streams of its process. */
export interface CommandContext extends Context {
  readonly input: NodeJS.ReadStream;
  readonly output: NodeJS.WriteStream;
}

/** Runs one command. Resolves with its exit code; what went wrong is on standard error by then. */
export async function runCommand(argv: readonly string[], context: CommandContext): Promise<ExitCode> {
  try {
    if (argv[0] === 'serve') {
      const { serve } = await import('./serve.js');
      return await serve(context);
    }
    context.output.write(`${context.version}\n`);
    return EXIT.ok;
  } catch (error) {
    const { code, message, hint, exitCode } = failureOf(error);
    context.note(`Error (${code}): ${message}. ${hint}`);
    return exitCode;
  }
}
