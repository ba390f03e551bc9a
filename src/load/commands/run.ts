/** `service-load run`. */
import { errorCode } from '../../protocol/error-code.js';
import { EXIT, type ExitCode, type Terminal, usageError } from '../../terminal/terminal.js';
import { counted, sanitizeText } from '../../terminal/output.js';
import { NewFile } from '../../terminal/new-file.js';
import { Coordinator, processesOf } from '../coordinator.js';
import { accessOf, confirmedUrl, endOf, nameOf, numberOf, sharedSecret } from '../options.js';
import { mixOf, sourcesOf, stormOf } from '../options.js';
import { LocalCrew, type Crew, type Phase, type Progress } from '../orders.js';
import { byName, PLAN_BOUNDS, sum, type Plan, type Storm } from '../plan.js';
import type { CommandOptions } from '../../terminal/program.js';
import type { LoadCommand, LoadContext } from '../context.js';
import { AgentListener } from '../remote-crew.js';
import { pageOf } from '../report-page.js';
import type { Report } from '../report.js';
import type { Access } from '../worker.js';

/** The numbers of a plan, each an option of that name. */
const NUMBERS = Object.keys(PLAN_BOUNDS) as (keyof typeof PLAN_BOUNDS)[];
/** Options that are required or have a default. */
type Given = keyof typeof PLAN_BOUNDS | 'url' | 'arrivals' | 'mix' | 'agents' | 'listen';
type Optional = 'confirm' | 'name' | 'deviceList' | 'adminTokenFile' | 'processes' | 'from' | 'secretFile' | 'out';
interface RunOptions extends Readonly<Record<Given, string>>, CommandOptions<Optional, 'force'> {
  readonly storm: readonly Storm[];
}

/** Default load per process: sockets, and operations per second. */
const SOCKETS_PER_PROCESS = 15_000;
const RATE_PER_PROCESS = 1_500;
/** The server's own default for one device (reference, HTTP, Rates). */
const DEVICE_WRITES_PER_S = 10;
const PROGRESS_EVERY_MS = 1_000;

export function registerRun(program: LoadCommand): void {
  program
    .command('run')
    .summary('load a server and report')
    .description('Connect at a rate, hold, write at a rate; then audit, report, and remove what was made')
    .requiredOption('--url <url>', 'the server')
    .option('--confirm <host>', 'its host name again, if it is not this machine')
    .option('--name <name>', 'name of the run; default: random')
    .option('--tenants <count>', 'tenants to make, with ADMIN_TOKEN of a server in multi mode', '10')
    .option('--devices <count>', 'devices of each, all with a socket', '5')
    .option('--device-list <file>', 'instead: existing devices (service-load devices)')
    .option('--admin-token-file <file>', 'instead of ADMIN_TOKEN in the environment')
    .option('--connect-rate <rate>', 'sockets opened a second', '500')
    .option('--hold <seconds>', 'how long they are held before the first write', '5')
    .option('--rate <rate>', 'operations a second, by schedule', '50')
    .option('--seconds <seconds>', 'how long', '30')
    .option('--warm-up <seconds>', 'before that, not in the figures', '2')
    .option('--arrivals <how>', 'poisson or fixed', 'poisson')
    .option('--mix <shares>', 'insert, replace, delete, list, blob-put, blob-get', 'insert=100')
    .option('--size <bytes>', "an item's ciphertext", '768')
    .option('--blob-size <bytes>', 'a blob', '65536')
    .option(
      '--storm <at,share>',
      'cut this share of the sockets so many seconds into the writing; may be repeated',
      storms,
      [],
    )
    .option('--processes <count>', 'processes of this machine; default: by sockets and rate')
    .option('--connections <count>', 'HTTP connections of a process', '256')
    .option('--from <addresses>', 'source addresses: 127.0.1.1-20, for more than 28,000 sockets')
    .option('--agents <count>', 'machines that load instead of this one: service-load agent', '0')
    .option('--listen <host:port>', 'where they join', '127.0.0.1:7070')
    .option('--secret-file <file>', 'instead of LOAD_SECRET in the environment')
    .option('--out <name>', 'name of the report, without .html and .json; default: name of the run')
    .option('--force', 'replace a report of that name')
    .examples('run --url http://localhost:8080 --tenants 32 --devices 5 --rate 200 --seconds 60')
    .changes(run);
}

const storms = (text: string, before: readonly Storm[]): readonly Storm[] => [...before, stormOf(text)];

async function planOf(terminal: Terminal, options: RunOptions): Promise<Plan> {
  const { arrivals } = options;
  if (arrivals !== 'poisson' && arrivals !== 'fixed') throw usageError('--arrivals takes poisson or fixed.');
  return {
    name: nameOf(options.name),
    url: await confirmedUrl(terminal, options.url, options.confirm),
    ...byName(NUMBERS, (name) => numberOf(name, options[name])),
    arrivals,
    mix: mixOf(options.mix),
    storms: options.storm,
    from: options.from === undefined ? [] : sourcesOf(options.from),
  };
}

async function run({ terminal, release }: LoadContext, options: RunOptions): Promise<ExitCode> {
  const plan = await planOf(terminal, options);
  const agents = numberOf('agents', options.agents);
  const outs = ['html', 'json'].map((ending) => `${options.out ?? plan.name}.${ending}`);
  for (const out of outs) await NewFile.expectFree(out, options.force === true);
  // With agents the token only finds tenants of this name, and removes what a lost agent left.
  const access = await accessOf(terminal, options, agents === 0);
  warn(terminal, plan, access);
  const { adminToken } = access;
  const coordinator = new Coordinator({ plan, load: release, adminToken, signal: terminal.interrupted });
  const { onNews } = coordinator;
  const { crews, close } =
    agents === 0 ? localCrew(options, plan, access, onNews) : await agentCrews(terminal, options, agents, onNews);
  const timer = setInterval(() => terminal.progress(progressLine(coordinator, crews)), PROGRESS_EVERY_MS);
  try {
    const report = await coordinator.run(crews);
    clearInterval(timer);
    terminal.progress('');
    await save(report, outs, options.force === true);
    show(terminal, report, outs);
    const passed = report.audit.faults === 0 && report.lostParts.length === 0 && report.left.length === 0;
    return passed ? EXIT.ok : EXIT.failure;
  } finally {
    clearInterval(timer);
    for (const text of coordinator.left) terminal.note(sanitizeText(`Not removed: ${text}. Run service-load clean.`));
    close();
  }
}

function warn(terminal: Terminal, plan: Plan, { deviceList }: Access): void {
  const each = plan.rate / (plan.tenants * plan.devices);
  if (deviceList === undefined && each > DEVICE_WRITES_PER_S)
    terminal.note(
      `Each device writes ${Math.round(each)} times a second: a server answers 429 beyond RATE_WRITE_PER_S ` +
        `(${DEVICE_WRITES_PER_S} unless it is set). Add tenants or devices, or expect that.`,
    );
}

function localCrew(options: RunOptions, plan: Plan, access: Access, onNews: (news: Progress) => void) {
  const wanted = Math.max((plan.tenants * plan.devices) / SOCKETS_PER_PROCESS, plan.rate / RATE_PER_PROCESS, 1);
  const most = access.deviceList === undefined ? plan.tenants : Infinity;
  const processes = numberOf('processes', options.processes ?? String(Math.min(Math.ceil(wanted), most, 256)));
  const crew = new LocalCrew(processes, access, onNews);
  return { crews: [crew], close: () => crew.end() };
}

async function agentCrews(terminal: Terminal, options: RunOptions, agents: number, onNews: (news: Progress) => void) {
  const secret = await sharedSecret(terminal, options.secretFile);
  const listener = new AgentListener({ secret, wanted: agents, onNews, onNote: (text) => terminal.note(text) });
  const end = endOf('listen', options.listen);
  const port = await listener.listen(end).catch((cause: unknown) => {
    const hint = 'Give an address of this machine, and a port that nothing else uses.';
    throw usageError(`nobody can join at ${options.listen} (${errorCode(cause)})`, hint);
  });
  terminal.note(`Waiting for ${counted(agents, 'agent')} at ${end.host}:${port}.`);
  const close = (): void => listener.close();
  try {
    return { crews: await listener.allJoined(terminal.interrupted), close };
  } catch (error) {
    close();
    throw error;
  }
}

const PHASE_TEXT: Readonly<Record<Phase, string>> = {
  prepare: 'Making tenants and sealing items',
  connect: 'Connecting',
  write: 'Writing',
  finish: 'Auditing',
  remove: 'Removing',
};

function progressLine(coordinator: Coordinator, crews: readonly Crew[]): string {
  const { phase, timeline } = coordinator;
  const second = timeline.latest(processesOf(crews));
  if (second === undefined || (phase !== 'connect' && phase !== 'write')) return `${PHASE_TEXT[phase]} ...`;
  const errors = sum(Object.values(second.errors), (count) => count);
  const push = second.push === null ? '' : `, push p50 ${second.push.p50} p99 ${second.push.p99} ms`;
  return (
    `${PHASE_TEXT[phase]}, second ${second.second}: ${second.sockets} sockets, ${second.opened} opened, ` +
    `${second.done} answered, ${second.pushed} pushed${push}, ${errors} errors`
  );
}

async function save(report: Report, [html = '', json = '']: readonly string[], force: boolean): Promise<void> {
  await NewFile.save(html, Buffer.from(pageOf(report)), force);
  await NewFile.save(json, Buffer.from(`${JSON.stringify(report, null, 1)}\n`), force);
}

function show(terminal: Terminal, report: Report, files: readonly string[]): void {
  if (terminal.json) return terminal.data(report);
  const { latency, audit, perSecond, sockets, tenants } = report;
  const line = (name: string, { count, p50, p99, p999 }: Report['latency']['push']): void => {
    if (count > 0) terminal.print(`${name.padEnd(20)} p50 ${p50}  p99 ${p99}  p99.9 ${p999} ms  (${count})`);
  };
  terminal.print(`${counted(tenants, 'tenant')}, ${counted(sockets, 'socket')}, ${perSecond.toFixed(1)} operations/s`);
  line('connect', latency.connect);
  line('caught up', latency.caughtUp);
  line('reconnect', latency.reconnect);
  line('send to answer', latency.answer);
  line('send to push', latency.push);
  for (const storm of report.storms)
    terminal.print(`storm at ${storm.at} s: ${storm.cut} cut, ${storm.back} back within ${storm.seconds} s`);
  for (const [code, count] of Object.entries(report.errors)) terminal.print(`error ${sanitizeText(code)}: ${count}`);
  terminal.print(
    `audit: ${audit.acknowledged} acknowledged, ${audit.stored} items read back, ${audit.received} received, ` +
      `${audit.unanswered} unanswered, ${audit.faults} differences`,
  );
  for (const text of audit.examples) terminal.print(`  ${sanitizeText(text)}`);
  for (const text of report.doubts) terminal.note(sanitizeText(`Do not trust these figures. ${text}`));
  terminal.note(`The report is in ${files.join(' and ')}.`);
}
