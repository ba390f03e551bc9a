/** `doctor` in a test: a device on a real server, what stands between them, and what was found. */
import { request as httpRequest, type IncomingMessage, type ServerResponse } from 'node:http';
import { connect } from 'node:net';
import type { Duplex } from 'node:stream';
import { runDoctor } from '../../src/cli/commands/doctor.js';
import type { Finding } from '../../src/cli/doctor/finding.js';
import type { Identity } from '../../src/sdk/identity.js';
import type { Platform } from '../../src/sdk/platform.js';
import { MemoryStore, type Store } from '../../src/sdk/store/store.js';
import { wiretap } from './client-world.js';
import { LoopbackServer } from './loopback-server.js';
import { temporaryFolder, type WithTeardown } from './postgres.js';
import { contextOf, fakeTerminal, secretsIn, type FakeTerminal } from './vault-context.js';

/** What `doctor` is run with. */
interface DoctorRun {
  readonly identity?: Identity;
  readonly platform?: Platform;
  readonly store?: Store;
  readonly idle?: number;
  readonly folder?: string;
  readonly terminal?: FakeTerminal;
}

/** Runs `doctor` of a device, as JSON. What it came to; `of`: the findings of a check. */
export async function examined(t: WithTeardown, run: DoctorRun) {
  const folder = run.folder ?? (await temporaryFolder(t));
  const secrets = secretsIn(folder);
  if (run.identity !== undefined) await secrets.keep(run.identity);
  const terminal = run.terminal ?? fakeTerminal({ json: true });
  // The wire tap reads every answer as JSON, and here others come too.
  const platform = run.platform ?? { ...wiretap().platform, fetch };
  const store = run.store ?? new MemoryStore();
  const exit = await runDoctor(contextOf({ terminal, platform, secrets, folder, store }), { idle: run.idle ?? 0 });
  const [document] = terminal.documents as { checks: Finding[]; notChecked: string[] }[];
  const findings = document?.checks ?? [];
  return {
    exit,
    findings,
    notChecked: document?.notChecked ?? [],
    of: (check: Finding['check']) => findings.filter((finding) => finding.check === check),
  };
}

/** An http proxy before the real server, which a test tells what to do with requests and upgrades. */
export class HttpProxy extends LoopbackServer {
  /** Answers a request itself: then nothing is asked of the server. */
  answer: (request: IncomingMessage, response: ServerResponse) => boolean = () => false;
  /** Headers that an answer gets beside its own. */
  headers: () => Record<string, string> = () => ({});
  /** Handles an upgrade itself. */
  upgrade: (socket: Duplex) => boolean = () => false;
  /** Told what a client sends on a socket. */
  onSent: (bytes: Buffer) => void = () => undefined;
  private readonly upgraded = new Set<Duplex>();

  private constructor(private readonly target: number) {
    super();
    this.server.on('upgrade', (request, socket, head) => this.relayUpgrade(request, socket, head));
  }

  static before(t: WithTeardown, target: number): Promise<HttpProxy> {
    return new HttpProxy(target).listenFor(t);
  }

  override async stop(): Promise<void> {
    this.cut();
    await super.stop();
  }

  /** Cuts every upgraded connection, without a word. */
  cut(): void {
    for (const socket of this.upgraded) socket.destroy();
  }

  protected take(request: IncomingMessage, response: ServerResponse): void {
    if (this.answer(request, response)) return;
    const { method, url: path, headers } = request;
    const outgoing = httpRequest({ host: '127.0.0.1', port: this.target, method, path, headers }, (incoming) => {
      response.writeHead(incoming.statusCode ?? 502, { ...incoming.headers, ...this.headers() });
      incoming.pipe(response);
    });
    outgoing.on('error', () => response.destroy());
    request.pipe(outgoing);
  }

  private relayUpgrade(request: IncomingMessage, socket: Duplex, head: Buffer): void {
    this.upgraded.add(socket);
    socket.on('error', () => undefined);
    if (this.upgrade(socket)) return;
    const onward = connect(this.target, '127.0.0.1', () => {
      const lines = request.rawHeaders.flatMap((text, at, all) =>
        at % 2 === 0 ? [`${text}: ${all[at + 1] ?? ''}`] : [],
      );
      onward.write(`GET ${request.url ?? ''} HTTP/1.1\r\n${lines.join('\r\n')}\r\n\r\n`);
      onward.write(head);
      socket.on('data', (bytes: Buffer) => this.onSent(bytes));
      socket.pipe(onward).pipe(socket);
    });
    onward.on('error', () => socket.destroy());
    onward.on('close', () => socket.destroy());
    socket.on('close', () => onward.destroy());
  }
}
