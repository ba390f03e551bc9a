/** The pages of the alerts, checked against deploy/ and against a running server. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import t from 'tap';
import { render } from '../src/docs/markdown.js';
import { readSources } from '../src/docs/site.js';
import { DOCS_FOLDER, PROJECT_ROOT } from '../src/root.js';
import { ERROR_NOTES, OPERATOR_NOTES } from '../src/docs/error-notes.js';
import { freePort } from './support/free-port.js';
import { runServer } from './support/server.js';

const sources = await readSources(DOCS_FOLDER, []);
const pages = new Map(sources.map(({ name, markdown }) => [name, markdown()]));
const night = sources.filter(({ parent, name }) => parent === 'alerts' || name === 'alerts').map(({ name }) => name);

interface Alert {
  readonly name: string;
  readonly severity: string;
  readonly runbook: string;
}

const alerts = readFileSync(join(PROJECT_ROOT, 'deploy/prometheus/alerts.yml'), 'utf8')
  .split(/^ +- alert: /m)
  .slice(1)
  .map((text): Alert => ({
    name: /^\w+/.exec(text)?.[0] ?? '',
    severity: /severity: (\w+)/.exec(text)?.[1] ?? '',
    runbook: /runbook_url: (\S+)/.exec(text)?.[1] ?? '',
  }));

t.test('REF-20: every alert has its page with severity and three sections, and every page has its alert', (t) => {
  t.ok(alerts.length >= 7);
  for (const { name, severity, runbook } of alerts) {
    const page = runbook.replace(/^\/docs\//, '');
    const text = pages.get(page) ?? '';
    t.match(text, `The alert \`${name}\`.`, name);
    t.match(text, `Severity: ${severity}.`, name);
    const headings = render(text).headings.map((heading) => heading.text);
    t.same(headings.slice(1), ['First', 'Do not', 'It is over when'], name);
    t.match(pages.get('alerts'), `| [\`${name}\`](${page}.md) | ${severity} |`, `${name} is in the table`);
  }
  const named = alerts.map(({ runbook }) => runbook.replace('/docs/', ''));
  t.same([...night].sort(), ['alerts', ...named].sort());
  t.end();
});

/** Programs that a server's machine has. */
const PROGRAMS: ReadonlySet<string> = new Set([
  'systemctl',
  'journalctl',
  'curl',
  'df',
  'uptime',
  'nproc',
  'service-admin',
  'grep',
  'tail',
  'ss',
  'date',
  'docker',
]);

t.test('REF-20: the commands, options, metrics and variables on these pages exist', async (t) => {
  const port = await freePort();
  await runServer(t, { env: { METRICS_PORT: String(port) } });
  const scraped = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
  const operating = pages.get('operating') ?? '';
  const configuration = pages.get('configuration') ?? '';
  const notes = Object.entries({ ...ERROR_NOTES, ...OPERATOR_NOTES }).map(([name, note]) => [
    name,
    JSON.stringify(note),
  ]);
  const texts = [...night.map((name) => [name, pages.get(name) ?? '']), ...notes] as [string, string][];
  for (const [name, text] of texts) {
    const blocks = [...text.matchAll(/^ {4}(\S.*)$/gm)].map(([, line = '']) => line);
    for (const line of blocks) {
      for (const part of line.split(' | ')) t.ok(PROGRAMS.has(part.split(' ', 1)[0] ?? ''), `${name}: ${part}`);
    }
    for (const [, command = ''] of text.matchAll(/service-admin ([a-z-]+(?: (?:list|activate|suspend|delete)\b)?)/g))
      t.match(operating, `| \`${command}`, `${name}: service-admin ${command}`);
    for (const [metric] of text.matchAll(/\b(?:service|nodejs|process)_[a-z0-9]+_[a-z0-9_]+/g)) {
      const family = metric.replace(/_(?:sum|count|bucket)$/, '').replace(/_$/, '');
      t.ok(scraped.includes(family), `${name}: ${metric}`);
    }
    for (const [, variable = ''] of text.matchAll(/`([A-Z]+(?:_[A-Z]+)+)`/g))
      t.match(configuration, `| \`${variable}\``, `${name}: ${variable}`);
  }
});
