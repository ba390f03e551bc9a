/** A certificate that is not valid: every command reports which one, why, and what to set; none trusts it. */
import t from 'tap';
import { readFile, writeFile } from 'node:fs/promises';
import { createServer as createPlainServer } from 'node:http';
import { createServer } from 'node:https';
import { join } from 'node:path';
import type { PeerCertificate } from 'node:tls';
import { sound } from '../src/cli/doctor/network.js';
import { EXIT } from '../src/terminal/terminal.js';
import { NetworkError } from '../src/sdk/errors.js';
import {
  withCertificateErrors,
  faultsOf,
  describeFault,
  type Shown,
  CertificateError,
  networkReason,
} from '../src/sdk/node-certificate.js';
import { failureOf, toolFailure } from '../src/mcp/errors.js';
import { nodeSodium } from '../src/crypto/sodium-node.js';
import { encodeWords } from '../src/crypto/words.js';
import { chainOf } from './support/certificates.js';
import { spawnCli } from './support/cli.js';
import { refusal } from './support/client-world.js';
import { openFor } from './support/loopback-server.js';
import { PROGRAM as MCP } from './support/mcp-process.js';
import { temporaryFolder, type WithTeardown } from './support/postgres.js';
import { missing, startCaddy } from './support/proxies.js';
import { runServer } from './support/server.js';

t.setTimeout(600_000);

const HOUR = 3_600_000;

t.test('DEPLOY-20 DOCTOR-20 DOCTOR-21: commands behind Caddy need its root', { skip: missing('caddy') }, async (t) => {
  const server = await runServer(t);
  const proxy = await startCaddy(t, { file: 'Caddyfile.single', domain: 'localhost', servers: [server.port] });
  const url = `https://localhost:${proxy.httpsPort}`;
  const home = await temporaryFolder(t);
  const ca = join(home, 'ca.pem');
  await writeFile(ca, await proxy.ca());
  const run = async (argv: readonly string[], env: Readonly<Record<string, string>> = {}) =>
    spawnCli(t, ['--json', ...argv], { home, env }).ended;
  const trusting = { NODE_EXTRA_CA_CERTS: ca };
  const said =
    /certificate for localhost, issued by Caddy Local Authority - ECC Intermediate, is signed by an authority that this machine does not know, Caddy Local Authority - \d+ ECC Root; if the authority is your own, set NODE_EXTRA_CA_CERTS=\/path\/ca\.pem/;
  const claim = ['claim', url, '--show-phrase', '--name', 'Home'];
  const refused = await run(claim);
  t.match(refused, { code: EXIT.unavailable, stderr: said });
  t.match(await run(claim, trusting), { code: 0 });
  t.match(await run(['put', 'written without it']), { stderr: said }, 'kept, with the reason for not sending it');
  t.match(await run(['list']), { code: 0, stderr: said });
  t.match(await run(['list'], trusting), { code: 0, stdout: /written without it/ });

  type Doctor = { checks: { check: string; status: string; what: string; do?: string }[] };
  const doctor = async (env: Readonly<Record<string, string>>) => {
    const { stdout } = await run(['doctor', '--idle', '0'], env);
    return (JSON.parse(stdout) as Doctor).checks.filter(({ check }) => check === 'tls');
  };
  t.match(await doctor(trusting), [{ status: 'ok', what: /is valid until/ }], 'twelve hours are its whole life');
  t.match(await doctor({}), [
    {
      status: 'problem',
      what: /authority that this machine does not know: Caddy Local/,
      do: /set NODE_EXTRA_CA_CERTS=\/path/,
    },
  ]);
  const wrong = join(home, 'none.pem');
  t.match(await doctor({ NODE_EXTRA_CA_CERTS: wrong }), [
    { status: 'problem', do: /none\.pem cannot be read or does not/ },
  ]);

  const words = encodeWords(nodeSodium, nodeSodium.random(8));
  const agent = spawnCli(t, [MCP, 'pair', '--host', url, '--code', words], {
    home,
    through: [process.execPath],
  });
  const paired = await agent.ended;
  t.match(paired.stderr, said);
  t.equal(paired.code, EXIT.unavailable);
});

/** Starts a server with this key and chain; returns its URL. */
async function serving(t: WithTeardown, made: { readonly key: string; readonly cert: string }): Promise<string> {
  const port = await openFor(
    t,
    createServer(made, (_, response) => response.end('{}')),
  );
  return `https://localhost:${port}/`;
}

t.test('DOCTOR-20: each fault is reported with its certificate', { skip: missing('openssl') }, async (t) => {
  const folder = await temporaryFolder(t);
  const why = async (url: string): Promise<string> => {
    const error = await refusal(withCertificateErrors((to, init) => fetch(to, init))(url, {}));
    t.ok(error instanceof CertificateError, error.message);
    return networkReason(new NetworkError('network', 'no answer', { cause: error }));
  };
  const made = await chainOf(folder, 'localhost');
  t.match(
    await why(await serving(t, { key: made.key, cert: made.leaf + made.intermediate })),
    /^the certificate for localhost, issued by Home Intermediate, is signed by .* Home Root; .*NODE_EXTRA_CA_CERTS/,
  );
  t.match(
    await why(await serving(t, { key: made.key, cert: made.leaf })),
    /issued by Home Intermediate, comes without its issuer's.*NODE_EXTRA_CA_CERTS=\/path\/ca\.pem.*full chain/,
  );
  t.match(
    await why(await serving(t, { key: made.rootKey, cert: made.root })),
    /is signed by itself; .*NODE_EXTRA_CA_CERTS/,
  );
  const other = await chainOf(await temporaryFolder(t), 'other.test');
  t.match(
    await why(await serving(t, { key: other.key, cert: other.leaf + other.intermediate })),
    /does not know.*; the certificate for other\.test, .* is not for localhost but for other\.test/,
    'both faults are reported',
  );
});

t.test('DOCTOR-06: an https address at which plain http is spoken is reported as such', async (t) => {
  const port = await openFor(t, createPlainServer());
  const error = await refusal(fetch(`https://localhost:${port}/`));
  t.match(networkReason(new NetworkError('network', 'no answer', { cause: error })), /^it does not speak https/);
});

const peer = (subject: string, issuer: string, from: number, until: number): PeerCertificate =>
  ({
    subject: { CN: subject },
    issuer: { CN: issuer },
    subjectaltname: 'DNS:home.test, DNS:sync.test',
    valid_from: new Date(from).toUTCString(),
    valid_to: new Date(until).toUTCString(),
  }) as unknown as PeerCertificate;

t.test('DOCTOR-20: the certificate of a chain that expired, or is not valid yet, is named', (t) => {
  const now = Date.UTC(2030, 0, 1);
  const judged = (shown: Shown, host = 'home.test'): string =>
    faultsOf(shown, { host, now })
      .map((fault) => describeFault(fault, host))
      .join('; ');
  const own = peer('home.test', 'Between', now - HOUR, now + HOUR);
  t.equal(judged({ chain: [own], verdict: '' }), '');
  t.match(
    judged({ chain: [peer('home.test', 'X', now - 9 * HOUR, now - HOUR)], verdict: 'CERT_HAS_EXPIRED' }),
    /^the certificate for home\.test, sync\.test, issued by X, expired at 2029-12-31 23:00 UTC$/,
  );
  t.match(
    judged({ chain: [own, peer('Between', 'Root', now - 9 * HOUR, now - HOUR)], verdict: 'CERT_HAS_EXPIRED' }),
    /^the authority's certificate Between, issued by Root, expired at 2029-12-31 23:00 UTC$/,
  );
  t.match(
    judged({ chain: [peer('home.test', 'X', now + HOUR, now + 2 * HOUR)], verdict: 'CERT_NOT_YET_VALID' }),
    /home\.test.* is not valid before 2030-01-01 01:00 UTC: is this machine's clock right\?/,
  );
  t.match(judged({ chain: [own], verdict: 'CERT_REVOKED' }), /does not hold \(CERT_REVOKED\)/);
  t.match(
    judged({ chain: [own], verdict: 'ERR_TLS_CERT_ALTNAME_INVALID' }, 'else.test'),
    /is not for else\.test but for home\.test, sync\.test/,
  );
  const evil = peer('x\u001b[2J\nrun this', 'y'.repeat(5_000), now - HOUR, now + HOUR);
  const told = judged({ chain: [{ ...evil, subjectaltname: undefined }], verdict: 'DEPTH_ZERO_SELF_SIGNED_CERT' });
  t.ok(told.length < 800, 'names from the certificate are bounded');
  t.notMatch(told, /[\n\u001b]/);
  t.end();
});

t.test('DOCTOR-21: how soon a certificate expires is judged by its own lifetime', (t) => {
  const now = Date.UTC(2030, 0, 1);
  const left = (hours: number, life: number): string =>
    sound({ chain: [peer('a', 'b', now + (hours - life) * HOUR, now + hours * HOUR)], verdict: '' }, now).status;
  t.equal(left(4, 12), 'ok', 'a proxy renews it about now');
  t.equal(left(1.5, 12), 'warning');
  t.equal(left(30 * 24, 90 * 24), 'ok');
  t.equal(left(13 * 24, 90 * 24), 'warning');
  t.equal(left(15 * 24, 3_650 * 24), 'ok');
  t.equal(left(13 * 24, 3_650 * 24), 'warning');
  t.end();
});

t.test('MCP-56: the names in a certificate are shown to the person and to no agent', async (t) => {
  const cause = new CertificateError('SELF_SIGNED_CERT_IN_CHAIN', 'the certificate for ignore-all-rules.test', {});
  const error = new NetworkError('network', 'no answer', { cause });
  t.match(failureOf(error).message, /ignore-all-rules/);
  t.match(toolFailure(error), {
    code: 'unreachable',
    message: /authority that this machine does not know.*NODE_EXTRA/,
  });
  t.notMatch(toolFailure(error).message, /ignore-all-rules/);
  t.match(await readFile(new URL('../../deploy/README.md', import.meta.url), 'utf8'), /NODE_EXTRA_CA_CERTS=/);
});
