/**
 * Standard output belongs to the protocol: one stray line there ends the conversation. So the transport gets a stream of
 * its own, and whatever else writes to standard output, a library or the console, ends on standard error.
 */
import { Writable } from 'node:stream';

/** Where the transport writes, and the end of that arrangement. */
export interface Guarded {
  readonly output: Writable;
  /** Puts everything back as it was. */
  release(): void;
}

type Write = NodeJS.WritableStream['write'];

/**
 * Takes `output` for the protocol alone; others' writes to it go to `strays`. `onBroken`: nobody reads any more (EPIPE).
 */
export function guarded(output: NodeJS.WritableStream, strays: NodeJS.WritableStream, onBroken: () => void): Guarded {
  const original = output.write.bind(output) as (chunk: Buffer, done: (error?: Error | null) => void) => boolean;
  const protocol = new Writable({
    write: (chunk: Buffer, _encoding, done) => void original(chunk, done),
  });
  protocol.on('error', onBroken);
  output.on('error', onBroken);
  const own = Object.getOwnPropertyDescriptor(output, 'write');
  output.write = ((...args: Parameters<Write>) => strays.write(...args)) as Write;
  return {
    output: protocol,
    release: () => {
      if (own === undefined) Reflect.deleteProperty(output, 'write');
      else Object.defineProperty(output, 'write', own);
      output.off('error', onBroken);
    },
  };
}
