/** `service-mcp serve`: the tools over standard input and output, until either side closes them. */
import { once } from 'node:events';
import { Socket } from 'node:net';
import { type Readable, Writable } from 'node:stream';
import { setFlagsFromString } from 'node:v8';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { serverAddress } from '../sdk/address.js';
import type { Identity } from '../sdk/identity.js';
import { yieldToEventLoop } from '../sdk/platform.js';
import { EXIT, type ExitCode } from '../terminal/terminal.js';
import { type Timer, within } from '../protocol/clock.js';
import { sanitizeText } from '../protocol/sanitize.js';
import { Audit } from './audit.js';
import { loadPairing, readConfig, renewIdentity, type Keeper } from './config-file.js';
import type { Context, Env } from './context.js';
import { failureOf, McpError } from './errors.js';
import { holdInstance } from './lock.js';
import { readPolicy, type Policy } from './policy.js';
import { ToolServer } from './server.js';
import { toolsOf } from './tools.js';
import { Vault } from './vault.js';

export interface ServeOptions extends Context {
  readonly input: Readable;
  readonly output: Writable;
}

/** Largest message, bytes: a longer one ends the connection. */
const MESSAGE_MAX = 20 * 1024 * 1024;
/** How long running calls, and then their client, which reads the results, may take once it has closed its end, ms. */
const GRACE_MS = 5_000;
/** How long a client may leave answers unread while no more of its calls are read, ms. */
const UNREAD_MS = 60_000;

/**
 * Speaks MCP until `input` ends, `output` breaks or `interrupted` is aborted, then lets running calls finish within
 * `GRACE_MS`. Resolves with the exit code. Throws `McpError` if it cannot start or lost its lock.
 */
export async function serve(options: ServeOptions): Promise<ExitCode> {
  const { paths, platform } = options;
  const note = (text: string): void => options.note(`service-mcp: ${sanitizeText(text)}`);
  const context = { paths, platform, note };
  keepSmall();
  const policy = readPolicy(options.env);
  const ending = new AbortController();
  let failure: McpError | undefined;
  const endWith = (reason: McpError): void => {
    failure ??= reason;
    ending.abort();
  };
  const lock = await holdInstance(context, () =>
    endWith(new McpError('lock_lost', 'another instance took over while this one was stopped')),
  );
  try {
    const { identity, passwords: allowed } = await loadPairing(context);
    expectServer(options.env, identity);
    const audit = await Audit.open(context);
    const keep = async (renewed: Identity): Promise<void> => {
      if (!(await renewIdentity(context, renewed))) endWith(unpaired());
    };
    const expectPaired = async (): Promise<void> => {
      if (await isPaired(context, identity)) return;
      const reason = unpaired();
      endWith(reason);
      throw reason;
    };
    const vault = await Vault.open({ platform, identity, policy, note, keep, paths });
    try {
      const now = (): number => platform.clock.now();
      const passwords = passwordsOf(context, policy, identity);
      const tools = toolsOf({ vault, passwords, now });
      const server = new ToolServer({ version: options.version, tools, policy, expectPaired, audit, note, now });
      note(`${identity.name} serves ${described(policy, allowed)}`);
      await converse(options, server, ending);
    } finally {
      await vault.close();
    }
  } finally {
    lock.release();
  }
  if (failure !== undefined) throw failure;
  return EXIT.ok;
}

/**
 * Makes V8 collect earlier, since the program runs beside an editor all day. The first reading allocates several times
 * what it keeps; with V8's default factors a vault of 50,000 items peaks at 400 MB instead of 200, for a third less CPU
 * time. V8 ignores flags that it does not know.
 */
function keepSmall(): void {
  for (const flag of ['--heap-growing-percent=30', '--max-semi-space-size=4', '--semi-space-growth-factor=1'])
    setFlagsFromString(flag);
}

/** Agents must not use a server other than the one that SERVICE_HOST names. Throws `bad_setting`. */
function expectServer(env: Env, { serverUrl }: Identity): void {
  const named = (env['SERVICE_HOST'] ?? '').trim();
  try {
    if (named === '' || serverAddress(named) === serverUrl) return;
  } catch {
    // Not a URL: refused like another server.
  }
  const what = `SERVICE_HOST is not ${serverUrl}, the server that this machine is paired with`;
  const hint = 'Correct it or leave it out; to change the server run `service-mcp pair --force`.';
  throw new McpError('bad_setting', what, { hint });
}

const unpaired = (): McpError =>
  new McpError('not_paired', 'the pairing was replaced or ended while this program was running');

/**
 * Whether the pairing is still that of this device: one that was forgotten here while the server could not be reached
 * is still valid there. A file that cannot be read for the moment ends nothing.
 */
const isPaired = ({ paths, note }: Keeper, { deviceId }: Identity): Promise<boolean> =>
  readConfig(paths, note).then(
    (file) => file?.deviceId === deviceId,
    () => true,
  );

/**
 * Whether agents may read the secrets of passwords. Reads the pairing for each answer, so that `passwords withhold`
 * takes effect at once. A pairing that does not open, or belongs to another device, allows nothing.
 */
const passwordsOf =
  (keeper: Keeper, { redact }: Policy, { deviceId }: Identity) =>
  async (): Promise<boolean> => {
    if (redact) return false;
    try {
      const kept = await loadPairing(keeper);
      return kept.passwords && kept.identity.deviceId === deviceId;
    } catch (error) {
      keeper.note(`Secrets of passwords are withheld: ${failureOf(error).message}`);
      return false;
    }
  };

const described = ({ bins, readOnly, redact }: Policy, passwords: boolean): string =>
  [
    bins === null ? 'all bins' : `the bins ${bins.join(', ')}`,
    ...(readOnly ? ['read only'] : []),
    passwords && !redact ? 'passwords allowed' : 'passwords withheld',
  ].join(', ');

async function converse(options: ServeOptions, server: ToolServer, ending: AbortController): Promise<void> {
  const { input, output, platform, interrupted } = options;
  const { mcp } = server;
  const ended = AbortSignal.any([ending.signal, interrupted]);
  const stop = (): void => ending.abort();
  const guard = guarded(output, process.stderr, stop);
  const transport = new StdioServerTransport(input, guard.output, { maxBufferSize: MESSAGE_MAX });
  input.once('end', stop);
  input.once('close', stop);
  mcp.server.onclose = stop;
  // Not the parser's message: it would quote the input.
  mcp.server.onerror = ({ name }) => options.note(`service-mcp: a message could not be processed (${name})`);
  let late: Timer | undefined;
  const resume = (): void => {
    late?.cancel();
    late = undefined;
    input.resume();
  };
  // Else the answers to a client that sends calls and reads nothing would fill the memory.
  const waitForReader = (): void => {
    if (!guard.output.writableNeedDrain || late !== undefined) return;
    input.pause();
    guard.output.once('drain', resume);
    // An input that is not read does not show its end either.
    late = platform.clock.setTimer(UNREAD_MS, () => {
      options.note('service-mcp: the client reads no answers');
      stop();
    });
  };
  try {
    await mcp.connect(transport);
    input.on('data', waitForReader);
    if (!ended.aborted) await once(ended, 'abort');
    await within(platform.clock, GRACE_MS, server.calls.idle(), undefined);
    // The results of those calls reach the transport one turn later.
    await yieldToEventLoop();
    await mcp.close();
    const flushed = new Promise<boolean>((resolve) => guard.output.end(() => resolve(true)));
    // A client that reads nothing must not keep the program running, and with it the lock.
    if (!(await within(platform.clock, GRACE_MS, flushed, false))) output.destroy();
  } finally {
    input.off('data', waitForReader);
    guard.output.off('drain', resume);
    late?.cancel();
    input.off('end', stop);
    input.off('close', stop);
    guard.release();
    // Reading from a pipe keeps the process alive.
    input.pause();
    if (input instanceof Socket) input.unref();
  }
}

type Write = Writable['write'];

/**
 * Reserves `output` for the protocol: one stray line there breaks it. Only the returned stream writes to it; what a
 * library or the console writes to `output` goes to `strays`. `onBroken`: the reader is gone (EPIPE). `release`
 * restores `output`.
 */
function guarded(output: Writable, strays: Writable, onBroken: () => void) {
  const original = output.write.bind(output) as (chunk: Buffer, done: (error?: Error | null) => void) => boolean;
  const protocol = new Writable({
    write: (chunk: Buffer, _encoding, done) => void original(chunk, done),
  });
  // The library listens for each answer that waits.
  protocol.setMaxListeners(0);
  protocol.on('error', onBroken);
  output.on('error', onBroken);
  output.write = ((...args: Parameters<Write>) => strays.write(...args)) as Write;
  return {
    output: protocol,
    release: () => {
      output.write = original as Write;
      output.off('error', onBroken);
    },
  };
}
