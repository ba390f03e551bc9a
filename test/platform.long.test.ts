/**
 * The image's platform, Debian 13 with Node 24: the checkout is installed, built and tested there from nothing.
 * `PLATFORM_PARTS="http commit"` runs only the files whose names contain one of these.
 */
import t from 'tap';
import { onOtherSystem, withoutOtherSystem } from './support/other-system.js';

const SUITE_MAX_MS = 110 * 60_000;
/** Least number of assertions of the whole suite; a part of it needs one. */
const PASSED_MIN = 5_000;

t.setTimeout(SUITE_MAX_MS);

t.test(
  'PLAT-01 PLAT-02: the whole suite passes on Debian 13 with Node 24',
  {
    skip: withoutOtherSystem() ?? false,
    timeout: SUITE_MAX_MS,
  },
  async (t) => {
    const parts = (process.env['PLATFORM_PARTS'] ?? '').split(' ').filter((part) => /^[a-z0-9-]+$/.test(part));
    await onOtherSystem(
      (line) => void process.stderr.write(`  debian 13: ${line}\n`),
      async (step) => {
        const about = await step('. /etc/os-release && echo "$VERSION_ID" && node --version');
        t.match(about.lines, ['13', /^v24\./]);
        const installed = await step('npm ci --no-audit --no-fund');
        t.equal(installed.code, 0, installed.lines.join('\n'));
        t.same(
          installed.lines.filter((line) => /npm (warn|error)/i.test(line) && !line.includes('Unknown user config')),
          [],
          'npm prints no warning',
        );
        const built = await step('npm run --silent build');
        t.equal(built.code, 0, built.lines.join('\n'));
        const tested = await step(`node --enable-source-maps build/test/run.js ${parts.join(' ')}`);
        const [, passed, failed] = /^(\d+) passed, (\d+) failed$/.exec(tested.lines.at(-1) ?? '') ?? [];
        t.equal(tested.code, 0, tested.lines.filter((line) => line.startsWith('FAILED')).join('\n'));
        t.equal(failed, '0', tested.lines.at(-1) ?? '');
        t.ok(Number(passed) >= (parts.length === 0 ? PASSED_MIN : 1), `${passed ?? 'no'} assertions`);
      },
    );
  },
);
