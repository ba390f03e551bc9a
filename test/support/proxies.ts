/** The proxies of deploy/ as real processes in front of a real server: Debian's Caddy and nginx, on loopback ports. */
import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { cp, mkdir, readFile, writeFile } from 'node:fs/promises';
import { Agent, request } from 'node:https';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { connect, type PeerCertificate } from 'node:tls';
import { WebSocket } from 'ws';
import { errorCode } from '../../src/protocol/error-code.js';
import { PROJECT_ROOT } from '../../src/root.js';
import { Events, soon, until } from './events.js';
import { freePort } from './free-port.js';
import { temporaryFolder, type WithTeardown } from './postgres.js';
import { replyOf, type Ask, type Json, type Reply } from './wire.js';

/** The folder with the files under test. */
export const DEPLOY = join(PROJECT_ROOT, 'deploy');

/** False when the program is there; else why a test of it is skipped. Packages are named as Debian does. */
export function missing(program: string, itsPackage = program): string | false {
  const found = spawnSync('sh', ['-c', `command -v ${program}`]).status === 0;
  return found ? false : `${program} is not here: apt-get install ${itsPackage}`;
}

/** A proxy that runs. */
export interface Proxy {
  readonly httpPort: number;
  readonly httpsPort: number;
  /** Certificates that its clients trust, PEM. */
  readonly ca: () => Promise<string>;
  /** All that it has written to its logs. */
  readonly logged: () => Promise<string>;
}

/** Replaces text that must be there: a test must not use a changed file without the replacement. */
export function replaced(text: string, changes: readonly (readonly [string, string])[]): string {
  return changes.reduce((changed, [from, to]) => {
    if (!changed.includes(from)) throw new Error(`not in the file any more: ${from}`);
    return changed.replaceAll(from, to);
  }, text);
}

interface Program {
  readonly command: string;
  readonly args: readonly string[];
  readonly env: Readonly<Record<string, string>>;
}

/** Starts a program, which is stopped after the test. Returns the lines that it writes. */
function run(t: WithTeardown, { command, args, env }: Program): Events<string> {
  const lines = new Events<string>();
  const child = spawn(command, args, {
    env: { PATH: process.env['PATH'], ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  for (const stream of [child.stdout, child.stderr]) createInterface({ input: stream }).on('line', lines.add);
  const ended = once(child, 'close');
  ended.then(
    ([code]) => lines.add(`ended with ${String(code)}`),
    (error: unknown) => lines.add(String(error)),
  );
  t.teardown(async () => {
    child.kill('SIGTERM');
    try {
      await soon(ended, () => `the end of ${command}:\n${lines.all.join('\n')}`);
    } catch (error) {
      child.kill('SIGKILL');
      throw error;
    }
  });
  return lines;
}

/** What a proxy is started with. */
export interface ProxyOptions {
  readonly domain: string;
  /** Ports of the servers behind it. */
  readonly servers: readonly number[];
}

interface CaddyOptions extends ProxyOptions {
  readonly file: 'Caddyfile.single' | 'Caddyfile.multi-2.6';
  /** Replaced in its files, where a test waits for a shorter time or needs more of something. */
  readonly changes?: readonly (readonly [string, string])[];
}

/** Caddy with a file of deploy/caddy as it is, but for its own authority's certificates, its ports and its storage. */
export async function startCaddy(t: WithTeardown, options: CaddyOptions): Promise<Proxy> {
  const { domain, servers, file, changes = [] } = options;
  const folder = await temporaryFolder(t);
  const [httpPort, httpsPort] = [await freePort(), await freePort()];
  await cp(join(DEPLOY, 'caddy'), folder, { recursive: true });
  const globals = [
    'local_certs',
    'skip_install_trust',
    'admin off',
    'default_bind 127.0.0.1',
    `http_port ${httpPort}`,
    `https_port ${httpsPort}`,
    `storage file_system ${join(folder, 'storage')}`,
  ];
  const config = join(folder, file);
  const parts = [config, join(folder, 'service.caddy')];
  const texts = await Promise.all(parts.map(async (path) => readFile(path, 'utf8')));
  const all = replaced(texts.join('\0'), changes).replace(/^\{$/m, ['{', ...globals].join('\n\t'));
  await Promise.all(all.split('\0').map(async (text, n) => writeFile(parts[n] ?? '', text)));
  const upstreams = servers.map((port) => `127.0.0.1:${port}`);
  const lines = run(t, {
    command: 'caddy',
    args: ['run', '--adapter', 'caddyfile', '--config', config],
    env: { HOME: folder, DOMAIN: domain, SERVICE_UPSTREAM: upstreams.join(' '), SERVICE_ASK: upstreams[0] ?? '' },
  });
  const root = join(folder, 'storage/pki/authorities/local/root.crt');
  const proxy: Proxy = {
    httpPort,
    httpsPort,
    ca: async () => readFile(root, 'utf8'),
    logged: async () => Promise.resolve(lines.all.join('\n')),
  };
  // The certificate is obtained in the background, and served a moment after the log reports it.
  await lines.until((all) => all.some((line) => /certificate obtained successfully|ended with/.test(line)));
  const served = async (): Promise<boolean> =>
    certificateOf(proxy, domain).then(
      () => true,
      () => false,
    );
  await until(`a certificate for ${domain}`, served);
  return proxy;
}

/** nginx with deploy/nginx/service.conf as it is, but for its names, ports, paths and a certificate of the test. */
export async function startNginx(t: WithTeardown, { domain, servers }: ProxyOptions): Promise<Proxy> {
  const folder = await temporaryFolder(t);
  const [httpPort, httpsPort] = [await freePort(), await freePort()];
  const logs = join(folder, 'logs');
  await mkdir(logs);
  const [certificate, key] = [join(folder, 'cert.pem'), join(folder, 'key.pem')];
  const names = `subjectAltName=DNS:${domain},DNS:*.${domain}`;
  const fresh = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2'];
  execFileSync('openssl', [...fresh, '-subj', '/CN=test', '-addext', names, '-keyout', key, '-out', certificate], {
    stdio: 'ignore',
  });
  const site = replaced(await readFile(join(DEPLOY, 'nginx/service.conf'), 'utf8'), [
    ['server_name sync.example.com', `server_name ${domain} *.${domain}`],
    ['/etc/letsencrypt/live/sync.example.com/fullchain.pem', certificate],
    ['/etc/letsencrypt/live/sync.example.com/privkey.pem', key],
    ['    listen [::]:80;\n', ''],
    ['    listen [::]:443 ssl http2;\n', ''],
    ['listen 80;', `listen 127.0.0.1:${httpPort};`],
    ['listen 443 ssl', `listen 127.0.0.1:${httpsPort} ssl`],
    ['server 127.0.0.1:8080 max_fails=0;', servers.map((port) => `server 127.0.0.1:${port} max_fails=0;`).join(' ')],
    ['/var/log/nginx', logs],
  ]);
  await writeFile(join(folder, 'service.conf'), site);
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
    (name) => `  ${name}_temp_path ${join(folder, name)};`,
  );
  const user = process.getuid?.() === 0 ? 'user root;' : '';
  await writeFile(
    join(folder, 'nginx.conf'),
    [
      `daemon off; ${user} pid ${join(folder, 'pid')}; error_log stderr notice; worker_processes 1;`,
      'events {}',
      `http {\n${temporary.join('\n')}\n  include ${join(folder, 'service.conf')};\n}`,
    ].join('\n'),
  );
  const lines = run(t, { command: 'nginx', args: ['-c', join(folder, 'nginx.conf'), '-p', folder], env: {} });
  await lines.until((all) => all.some((line) => /start worker process |ended with/.test(line)));
  const log = async (name: string): Promise<string> => readFile(join(logs, name), 'utf8').catch(() => '');
  return {
    httpPort,
    httpsPort,
    ca: async () => readFile(certificate, 'utf8'),
    logged: async () =>
      [lines.all.join('\n'), await log('service-access.log'), await log('service-error.log')].join('\n'),
  };
}

/**
 * Repeats what begins with a handshake until the certificate is valid. Caddy issues it in the first one, from the second
 * of its own clock on, and the clock of the TLS library, which counts in ticks, reaches a second up to 10 ms later.
 */
async function onceValid<T>(attempt: () => Promise<T>): Promise<T> {
  const results: T[] = [];
  await until('a certificate that is valid', async () => {
    try {
      results.push(await attempt());
      return true;
    } catch (error) {
      if (errorCode(error) !== 'CERT_NOT_YET_VALID') throw error;
      return false;
    }
  });
  return results[0] as T;
}

/** The certificate that a host name gets. Rejects if the handshake fails or the certificate is not trusted. */
export async function certificateOf(proxy: Proxy, host: string): Promise<PeerCertificate> {
  const ca = await proxy.ca();
  return onceValid(async () => {
    const socket = connect({ host: '127.0.0.1', port: proxy.httpsPort, servername: host, ca });
    try {
      await soon(once(socket, 'secureConnect'), `a handshake with ${host}`);
      return socket.getPeerCertificate();
    } finally {
      socket.destroy();
    }
  });
}

/** A request through the proxy, on a connection of its own. `path` begins with a slash. */
export async function askThrough(
  proxy: Proxy,
  host: string,
  path: string,
  options: Ask & { readonly method?: string } = {},
): Promise<Reply> {
  const ca = await proxy.ca();
  const { token, body, headers } = options;
  const content = body === undefined || Buffer.isBuffer(body) ? body : JSON.stringify(body);
  const ask = (): Promise<Reply> =>
    new Promise((resolve, reject) => {
      const outgoing = request(
        {
          host: '127.0.0.1',
          port: proxy.httpsPort,
          servername: host,
          ca,
          agent: false,
          method: options.method ?? (content === undefined ? 'GET' : 'POST'),
          path,
          headers: {
            host,
            ...(content === undefined ? {} : { 'content-type': 'application/json' }),
            ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
            ...headers,
          },
        },
        (incoming) => replyOf(incoming).then(resolve, reject),
      );
      outgoing.on('error', reject);
      outgoing.end(content);
    });
  return onceValid(ask);
}

/** A live socket through the proxy, opened by a ticket and past its `caught_up`. */
export async function liveThrough(
  t: WithTeardown,
  proxy: Proxy,
  { host, ticket }: { readonly host: string; readonly ticket: string },
): Promise<Events<Json>> {
  const frames = new Events<Json>();
  const socket = new WebSocket(`wss://127.0.0.1:${proxy.httpsPort}/ws?ticket=${ticket}`, {
    agent: new Agent({ ca: await proxy.ca(), servername: host, keepAlive: false }),
    headers: { host },
  });
  t.teardown(() => socket.terminate());
  socket.on('message', (data: Buffer) => frames.add(JSON.parse(data.toString('utf8')) as Json));
  await soon(once(socket, 'open'), `a socket at ${host}`);
  socket.send(JSON.stringify({ type: 'hello', since: 0 }));
  await frames.until((all) => all.some((frame) => frame['type'] === 'caught_up'));
  return frames;
}

/** Waits for a line in the proxy's logs: they are written after the answer. */
export async function untilLogged(proxy: Proxy, text: string): Promise<void> {
  await until(`${text} in the log`, async () => (await proxy.logged()).includes(text));
}
