/**
 * The report as one self-contained HTML page without scripts; charts are SVG, each with a table of the same numbers.
 * The colours are those of Okabe and Ito, distinguishable with any colour vision; lines also differ by their dashes.
 */
import { escapeHtml } from '../protocol/sanitize.js';
import type { Latency } from './histogram.js';
import { SERIES, type Series } from './meter.js';
import { KINDS } from './plan.js';
import type { Report, Second } from './report.js';

/** Points of a chart: a longer run is shown in steps of several seconds. */
const POINTS_MAX = 240;
/** Rows of the table of a chart. */
const ROWS_MAX = 60;

const WIDTH = 720;
const HEIGHT = 220;
const LEFT = 64;
const RIGHT = 16;
const TOP = 12;
const BOTTOM = 28;

interface Line {
  readonly name: string;
  /** Class of the colour and the dashes. */
  readonly style: 'one' | 'two' | 'three';
  /** By step; null: no value. */
  readonly values: readonly (number | null)[];
}

interface Chart {
  readonly id: string;
  readonly title: string;
  readonly unit: string;
  readonly lines: readonly Line[];
  /** Seconds of a step. */
  readonly step: number;
}

const number = (value: number): string =>
  value.toLocaleString('en', { maximumFractionDigits: value < 10 ? 2 : value < 100 ? 1 : 0 });

/** A round number at or above the largest value. */
function ceilingOf(most: number): number {
  if (most <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return ([1, 2, 5, 10].find((times) => times * power >= most) ?? 10) * power;
}

function pathOf(values: Line['values'], top: number): string {
  const steps = Math.max(1, values.length - 1);
  let pen = 'M';
  return values
    .map((value, at) => {
      if (value === null) {
        pen = 'M';
        return '';
      }
      const x = LEFT + ((WIDTH - LEFT - RIGHT) * at) / steps;
      const y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value / top);
      const point = `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
      pen = 'L';
      // A point without neighbours has no line, and is drawn as a cross.
      return point + (values[at - 1] == null && values[at + 1] == null ? 'm-4 0h8m-4 -4v8' : '');
    })
    .join('');
}

function svgOf({ id, title, unit, lines, step }: Chart): string {
  const top = ceilingOf(Math.max(0, ...lines.flatMap(({ values }) => values.map((value) => value ?? 0))));
  const seconds = Math.max(0, ...lines.map(({ values }) => (values.length - 1) * step));
  const grid = [0, 0.25, 0.5, 0.75, 1].map((share) => {
    const y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share;
    return `<path class="grid" d="M${LEFT} ${y}H${WIDTH - RIGHT}"/><text x="${LEFT - 8}" y="${y + 4}" text-anchor="end">${number(top * share)}</text>`;
  });
  const times = [0, 0.5, 1].map((share) => {
    const x = LEFT + (WIDTH - LEFT - RIGHT) * share;
    const anchor = share === 0 ? 'start' : share === 1 ? 'end' : 'middle';
    return `<text x="${x}" y="${HEIGHT - 8}" text-anchor="${anchor}">${number(seconds * share)} s</text>`;
  });
  const most = lines.map(
    ({ name, values }) => `${name} at most ${number(Math.max(0, ...values.map((value) => value ?? 0)))} ${unit}`,
  );
  return `<svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-labelledby="${id}-title ${id}-text">
<title id="${id}-title">${escapeHtml(title)}</title>
<desc id="${id}-text">${escapeHtml(`${most.join('; ')}, over ${number(seconds)} seconds.`)}</desc>
${grid.join('')}${times.join('')}
${lines.map(({ style, values }) => `<path class="line ${style}" d="${pathOf(values, top)}"/>`).join('\n')}
</svg>`;
}

const keyOf = (lines: readonly Line[]): string =>
  `<p class="key" aria-hidden="true">${lines
    .map(
      ({ name, style }) =>
        `<span><svg viewBox="0 0 28 8"><path class="line ${style}" d="M1 4H27"/></svg>${escapeHtml(name)}</span>`,
    )
    .join('')}</p>`;

function table(titles: readonly string[], rows: readonly (readonly string[])[], caption: string): string {
  const cells = titles.map((title) => `<th scope="col">${escapeHtml(title)}</th>`).join('');
  const titled = titles.some((title) => title !== '');
  const head = titled ? `<caption>${escapeHtml(caption)}</caption><thead><tr>${cells}</tr></thead>` : '';
  const body = rows.map(
    ([first = '', ...rest]) =>
      `<tr><th scope="row">${escapeHtml(first)}</th>${rest.map((cell) => `<td>${escapeHtml(cell)}</td>`).join('')}</tr>`,
  );
  return `<div class="scroll" tabindex="0" role="region" aria-label="${escapeHtml(caption)}"><table>${head}<tbody>${body.join('')}</tbody></table></div>`;
}

/** Values in steps of `size`: the largest of each step, null if it has none. */
const inSteps = (values: Line['values'], size: number): Line['values'] =>
  Array.from({ length: Math.ceil(values.length / size) }, (_, at) => {
    const some = values.slice(at * size, (at + 1) * size).filter((value) => value !== null);
    return some.length === 0 ? null : Math.max(...some);
  });

function chartSection(chart: Chart): string {
  const { title, unit, lines, step } = chart;
  const steps = Math.max(0, ...lines.map(({ values }) => values.length));
  const each = Math.max(1, Math.ceil(steps / ROWS_MAX));
  const columns = lines.map(({ values }) => inSteps(values, each));
  const cell = (value: number | null | undefined): string => (value == null ? '' : number(value));
  const rows = Array.from({ length: Math.ceil(steps / each) }, (_, row) => [
    `${number(row * each * step)} s`,
    ...columns.map((values) => cell(values[row])),
  ]);
  const caption = `${title}, ${unit}${each * step > 1 ? `, the largest of each ${each * step} seconds` : ''}`;
  return `<section><h2>${escapeHtml(title)}</h2>
${svgOf(chart)}
${lines.length > 1 ? keyOf(lines) : ''}
<details><summary>The numbers of ${escapeHtml(title.toLowerCase())}</summary>${table(
    ['Second', ...lines.map(({ name }) => name)],
    rows,
    caption,
  )}</details></section>`;
}

function chartsOf({ seconds }: Report): Chart[] {
  const step = Math.max(1, Math.ceil(seconds.length / POINTS_MAX));
  const line = (name: string, style: Line['style'], of: (second: Second) => number | null): Line => ({
    name,
    style,
    values: inSteps(seconds.map(of), step),
  });
  const percentiles = (what: 'push' | 'connect'): Line[] => [
    line('p50', 'one', (second) => second[what]?.p50 ?? null),
    line('p99', 'two', (second) => second[what]?.p99 ?? null),
    line('p99.9', 'three', (second) => second[what]?.p999 ?? null),
  ];
  const chart = (id: string, title: string, unit: string, lines: Line[]): Chart => ({ id, title, unit, lines, step });
  return [
    chart('sockets', 'Sockets that are open and caught up', 'sockets', [
      line('sockets', 'one', (second) => second.sockets),
    ]),
    chart('opened', 'Sockets opened and lost', 'a second', [
      line('opened', 'one', (second) => second.opened),
      line('lost', 'two', (second) => second.lost),
    ]),
    chart('connect', 'Time to connect', 'ms', percentiles('connect')),
    chart('push', 'Send to push', 'ms', percentiles('push')),
    chart('work', 'Operations answered and changes pushed', 'a second', [
      line('answered', 'one', (second) => second.done),
      line('pushed', 'two', (second) => second.pushed),
    ]),
  ];
}

/** Bars of the errors, the most frequent first, and their table. */
function errorsSection({ errors }: Report): string {
  const all = Object.entries(errors);
  if (all.length === 0) return '<section><h2>Errors by code</h2><p>None.</p></section>';
  const shown = all.slice(0, 12);
  const most = Math.max(...shown.map(([, count]) => count));
  const bars = shown.map(([code, count], at) => {
    const y = at * 26 + 4;
    const width = Math.max(2, ((WIDTH - 320) * count) / most);
    return `<text x="192" y="${y + 14}" text-anchor="end">${escapeHtml(code)}</text><rect class="bar" x="200" y="${y}" width="${width.toFixed(1)}" height="18"/><text x="${(208 + width).toFixed(1)}" y="${y + 14}">${number(count)}</text>`;
  });
  return `<section><h2>Errors by code</h2>
<svg viewBox="0 0 ${WIDTH} ${shown.length * 26 + 8}" role="img" aria-label="${escapeHtml(shown.map(([code, count]) => `${code}: ${count}`).join(', '))}">${bars.join('')}</svg>
<details><summary>The numbers of errors by code</summary>${table(
    ['Code', 'Times'],
    all.map(([code, count]) => [code, number(count)]),
    'Errors by code',
  )}</details></section>`;
}

const NAMES: Readonly<Record<Series, string>> = {
  connect: 'Connect: due to open',
  caughtUp: 'Connect: due to caught up',
  reconnect: 'Reconnect: lost to caught up',
  push: 'Send to push',
  answer: 'Send to answer, all kinds',
  lag: 'Lag of this client: due to begun',
};

function figures({ latency, answers }: Report): string {
  const row = (name: string, { count, mean, p50, p99, p999, max }: Latency): readonly string[] => [
    ...[name, number(count)],
    ...[mean, p50, p99, p999, max].map(number),
  ];
  const rows = [
    ...SERIES.filter((name) => latency[name].count > 0).map((name) => row(NAMES[name], latency[name])),
    ...KINDS.filter((kind) => answers[kind].count > 0).map((kind) => row(`Send to answer, ${kind}`, answers[kind])),
  ];
  return table(['', 'Times', 'mean', 'p50', 'p99', 'p99.9', 'longest'], rows, 'Latency, ms, from the scheduled time');
}

function facts(report: Report): string {
  const { plan, counts, audit, storms, client, server, load } = report;
  const mix = KINDS.flatMap((kind) => ((plan.mix[kind] ?? 0) > 0 ? [`${kind} ${plan.mix[kind] ?? 0}`] : []));
  const rows: (readonly string[])[] = [
    ['Server', server === null ? report.url : `${report.url}, ${server.version} (${server.commit})`],
    ['Client', `${load.version} (${load.commit}), ${client.length} processes`],
    [
      'Load',
      `${plan.rate} operations/s (${plan.arrivals}) for ${plan.seconds} s after ${plan.warmUp} s; ${mix.join(', ')}`,
    ],
    [
      'Sockets',
      `${number(report.sockets)} of ${number(report.tenants)} tenants at ${number(plan.connectRate)}/s; ${number(counts.opened)} opened, ${number(counts.lost)} lost`,
    ],
    ['Operations', `${number(report.perSecond)}/s answered; ${number(counts.pushed)} changes pushed`],
    ...storms.map((storm) => [
      `Storm at ${storm.at} s`,
      `${number(storm.cut)} cut, ${number(storm.back)} back, the last after ${storm.seconds} s`,
    ]),
    [
      'Audit',
      `${audit.faults === 0 ? 'passed' : `FAILED: ${audit.faults} differences`}; ${number(audit.acknowledged)} acknowledged, ${number(audit.stored)} items read back, ${number(audit.received)} received, ${number(audit.unanswered)} unanswered`,
    ],
    ...client.map(({ part, cpu, loopDelayP99Ms, starved }) => [
      `Process ${part + 1}`,
      `${(cpu * 100).toFixed(0)} % of a core; event loop blocked ${number(loopDelayP99Ms)} ms (p99); ${starved} times not sealed in time`,
    ]),
  ];
  return table(['', ''], rows, 'The run');
}

const STYLE = `:root{color-scheme:light dark;--ink:#1b1b1b;--dim:#555;--paper:#fff;--grid:#ddd;--one:#0072b2;--two:#d55e00;--three:#007a5a;--bad:#a30000}
@media(prefers-color-scheme:dark){:root{--ink:#eee;--dim:#b5b5b5;--paper:#161616;--grid:#3a3a3a;--one:#56b4e9;--two:#e69f00;--three:#2fc69a;--bad:#ff8f8f}}
body{margin:0 auto;padding:1.5rem;max-width:60rem;font:1rem/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper)}
h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:2rem 0 .5rem}p.dim{color:var(--dim);margin:.2rem 0 1rem}
svg{width:100%;height:auto;display:block}svg text{fill:var(--dim);font-size:12px}
.grid{stroke:var(--grid)}.line{fill:none;stroke-width:2;stroke-linecap:round;stroke-linejoin:round}
.one{stroke:var(--one)}.two{stroke:var(--two);stroke-dasharray:7 4}.three{stroke:var(--three);stroke-dasharray:1.5 5}.bar{fill:var(--one)}
.key{display:flex;flex-wrap:wrap;gap:.25rem 1.5rem;margin:.25rem 0;color:var(--dim)}.key span{display:flex;align-items:center;gap:.5rem}.key svg{width:28px}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}caption{text-align:left;color:var(--dim);padding:.25rem 0}
th,td{padding:.25rem .75rem .25rem 0;border-bottom:1px solid var(--grid);text-align:right;vertical-align:top}th[scope=row],thead th:first-child,.facts td{text-align:left;font-weight:inherit}
.doubts{border-left:4px solid var(--bad);padding:.5rem 1rem;margin:1rem 0}.doubts strong{color:var(--bad)}summary{cursor:pointer;color:var(--dim);padding:.25rem 0}`;

function doubts({ doubts: found, audit, left }: Report): string {
  const lines = [...found, ...audit.examples, ...left.map((text) => `Not removed: ${text}`)];
  if (lines.length === 0) return '';
  const title = found.length === 0 ? 'To do.' : 'Do not trust these figures.';
  return `<div class="doubts"><p><strong>${title}</strong></p><ul>${lines.map((text) => `<li>${escapeHtml(text)}</li>`).join('')}</ul></div>`;
}

/** The page. */
export const pageOf = (report: Report): string => `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>${escapeHtml(`Load test ${report.name}`)}</title>
<style>${STYLE}</style>
<main>
<h1>${escapeHtml(`Load test ${report.name}`)}</h1>
<p class="dim">${escapeHtml(report.url)}, ${escapeHtml(new Date(report.at).toISOString().slice(0, 19).replace('T', ' '))} UTC</p>
${doubts(report)}
<section>${figures(report)}</section>
<section class="facts"><h2>The run</h2>${facts(report)}</section>
${chartsOf(report).map(chartSection).join('\n')}
${errorsSection(report)}
</main>
</html>
`;
