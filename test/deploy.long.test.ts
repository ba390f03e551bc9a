/** The compose file, in every mode and with every variable missing. */
import t from 'tap';
import { readConfig } from '../src/server/config/config.js';
import { composed, deployed, filled, REQUIRED } from './support/deployed.js';
import { missing } from './support/proxies.js';
import { at } from './support/wire.js';

t.test('DEPLOY-07 HTTP-11: the compose file needs its secrets', { skip: missing('docker-compose') }, async (t) => {
  const example = await deployed('.env.example');
  t.not((await composed(t)).status, 0, 'without .env');
  for (const name of REQUIRED) {
    const { status, output } = await composed(t, filled(example, [name]));
    t.not(status, 0, `without ${name}`);
    t.match(output, name);
  }
  for (const mode of ['single', 'multi']) {
    const { status, output, config } = await composed(t, `${filled(example)}\nTENANT_MODE=${mode}\n`);
    t.equal(status, 0, output);
    const of = (path: string): unknown => at(config, `services.${path}`);
    for (const name of ['server', 'postgres']) t.equal(of(`${name}.ports`), undefined, `${name} has no port`);
    t.same(Object.keys(of('postgres.networks') as object), ['back']);
    t.same(Object.keys(of('caddy.networks') as object), ['front']);
    t.equal(at(config, 'networks.back.internal'), true);
    t.match(JSON.stringify(of('caddy.command')), new RegExp(`/etc/caddy/Caddyfile\\.${mode}[ "]`));
    const env = of('server.environment') as Record<string, string>;
    t.equal(env['METRICS_PORT'] ?? '', '');
    const range = at(config, 'networks.front.ipam.config.0.subnet');
    t.same(readConfig(env).trustedProxies, [range], 'the trusted proxies are the network of Caddy and the server');
    t.equal(readConfig(env).tenantMode, mode, 'the server accepts what compose gives it');
    t.equal(readConfig(env).databaseUrl, 'postgres://service:abcdef0123456789@postgres:5432/service');
  }
});
