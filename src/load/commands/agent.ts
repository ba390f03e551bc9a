/** `service-load agent`: a part of a run, on orders of a coordinator on another machine. */
import { availableParallelism } from 'node:os';
import type { CommandOptions } from '../../terminal/program.js';
import type { LoadCommand, LoadContext } from '../context.js';
import { accessOf, confirmedUrl, endOf, numberOf, sharedSecret } from '../options.js';
import { serveAsAgent } from '../remote-crew.js';

type AgentOptions = Record<'join' | 'url', string> &
  CommandOptions<'confirm' | 'secretFile' | 'deviceList' | 'adminTokenFile' | 'processes'>;

export function registerAgent(program: LoadCommand): void {
  program
    .command('agent')
    .summary('load from this machine, on orders of a coordinator')
    .description('Join a run of several machines; exits when it ends')
    .requiredOption('--join <host:port>', 'the coordinator: service-load run --agents')
    .requiredOption('--url <url>', 'the same server as the coordinator: no other is loaded')
    .option('--confirm <host>', 'its host name again, if it is not this machine')
    .option('--secret-file <file>', 'instead of LOAD_SECRET in the environment')
    .option('--device-list <file>', 'the same file on every machine')
    .option('--admin-token-file <file>', 'instead of ADMIN_TOKEN in the environment')
    .option('--processes <count>', 'default: one for each core')
    .examples('agent --join 10.0.0.5:7070 --url https://sync.example.org --confirm sync.example.org')
    .changes(agent);
}

async function agent({ terminal }: LoadContext, options: AgentOptions): Promise<void> {
  const url = await confirmedUrl(terminal, options.url, options.confirm);
  const secret = await sharedSecret(terminal, options.secretFile);
  const access = await accessOf(terminal, options);
  const processes = numberOf('processes', options.processes ?? String(availableParallelism()));
  const onNote = (text: string): void => terminal.note(text);
  const signal = terminal.interrupted;
  await serveAsAgent({ ...endOf('join', options.join), url, secret, access, processes, signal, onNote });
  terminal.note('The run is over.');
}
