/** The pages on errors, generated from the catalogue: one for all codes, and one per code. */
import { CATALOGUE, codeOf, statusOf, type ErrorName } from '../protocol/errors.js';
import type { Shape } from '../protocol/shape.js';
import { ERROR_DETAILS, ERROR_NOTES, OPERATOR_NOTES } from './error-notes.js';
import type { Source } from './site.js';

const NAMES = Object.keys(CATALOGUE) as ErrorName[];
const SHAPES: readonly Shape[] = ['a', 'b'];

const link = (code: string): string => `[\`${code}\`](error-${code}.md)`;

/** The errors of a wire code: a code of shape A may stand for several that B distinguishes. */
function meaning(code: string): readonly { readonly name: ErrorName; readonly shapes: readonly Shape[] }[] {
  return NAMES.map((name) => ({ name, shapes: SHAPES.filter((shape) => codeOf(name, shape) === code) })).filter(
    ({ shapes }) => shapes.length > 0,
  );
}

/** Every wire code, in the catalogue's order. */
export const WIRE_CODES: readonly string[] = [
  ...new Set(NAMES.flatMap((name) => SHAPES.map((shape) => codeOf(name, shape)))),
];

function statuses(name: ErrorName, shapes: readonly Shape[]): string {
  const found = [...new Set(shapes.map((shape) => statusOf(name, shape)))];
  return found.length === 1
    ? String(found[0])
    : shapes.map((shape) => `${statusOf(name, shape)} in ${shape.toUpperCase()}`).join(', ');
}

/** Whether a retry of the same request may succeed. */
function again(status: number): string {
  if (status === 429 || status === 503) return 'Yes, after `Retry-After`.';
  return status >= 500 ? 'Yes, later.' : 'Not as it is: the answer stays the same.';
}

/** `level`: the headings' marks. */
function part({ name, shapes }: ReturnType<typeof meaning>[number], level: '##' | '###'): string {
  const details = ERROR_DETAILS[name];
  const other = SHAPES.find((shape) => !shapes.includes(shape));
  const inShape =
    other === undefined
      ? ''
      : ` This is its name in shape ${shapes.join('').toUpperCase()}; in ${other.toUpperCase()} it is ${link(codeOf(name, other))}.`;
  return [
    `${CATALOGUE[name].when}${inShape}`,
    `| | |\n| --- | --- |\n| Status | ${statuses(name, shapes)} |\n| Send it again? | ${again(statusOf(name, 'a'))} |` +
      (details === undefined ? '' : `\n| \`details\` | ${details} |`),
    `${level} What a client does\n\n${ERROR_NOTES[name]}`,
    `${level} What an operator does\n\n${OPERATOR_NOTES[name]}`,
  ].join('\n\n');
}

function codePage(code: string): string {
  const found = meaning(code);
  const [only] = found;
  if (found.length === 1 && only !== undefined) return `# \`${code}\`\n\n${part(only, '##')}\n`;
  const parts = found.map((one) => `## ${CATALOGUE[one.name].when.replace(/[:;,.].*$/, '')}\n\n${part(one, '###')}`);
  return `# \`${code}\`\n\nThis code stands for ${found.length} refusals; \`message\` says which.\n\n${parts.join('\n\n')}\n`;
}

const section = (code: string): string =>
  `### ${code}\n\n${meaning(code)
    .map(({ name }) => CATALOGUE[name].when)
    .join(' Or: ')} [What to do](error-${code}.md)\n`;

function row(name: ErrorName): string {
  const [a, b] = SHAPES.map((shape) => codeOf(name, shape));
  const status = statuses(name, SHAPES);
  return `| ${link(a ?? '')} | ${status} | ${a === b ? 'the same' : link(b ?? '')} | ${CATALOGUE[name].when} |`;
}

function overview(): string {
  return `# Errors

What each refusal means, and what a client and an operator do about it: one page for each code. Every answer from 400 upwards has this body, also a refused upgrade of \`/ws\`:

\`\`\`json
{
  "error": {
    "code": "validation",
    "message": "ts: must be integer milliseconds, not seconds",
    "details": { "path": "ts", "rule": "must be integer milliseconds, not seconds" }
  }
}
\`\`\`

- \`code\` is stable: programs match on it, not on status or message. New codes may come; none goes. A client treats an unknown code by its status: 429 and 503 may be tried again after \`Retry-After\`, 500 later, any other is final for this request. An answer without this body comes from something between client and server, and is no refusal: a request that is repeatable is sent again.
- \`message\` is for people and may change.
- \`hint\` is there in shape B only: \`/docs/errors#<code>\`, which is this page.
- \`details\` is there where it helps. Its fields are named on the page of each code; in shape B they are spelled in snake_case.
- \`Retry-After\`, in whole seconds and at least 1, comes with every 429 and 503.
- \`X-Request-Id\` comes with every answer. The server's log has the cause of a 5xx under it.

Checks come in this order, and the first that fails is the answer: framing, route, tenant by host, token, tenant state, rate, body.
Shape A has fewer codes than B for the same refusals. \`bootstrap_locked\` is another name of \`bootstrap_already_done\`; the server never answers with it.

## In an outage

| Many of these at once | Look at |
| --- | --- |
| ${link('unavailable')} | the database, then the load |
| ${link('storage_unavailable')} | the blob store |
| ${link('internal')} | the log, under the request's id |
| ${link('unauthorized')} | \`TOKEN_SECRET\`, the clocks |
| ${link('rate_limited')} | \`TRUSTED_PROXIES\` |
| ${link('tenant_not_found')} | the proxy's \`Host\` |

## All codes

| Code in A | Status | Code in B | When |
| --- | --- | --- | --- |
${NAMES.map(row).join('\n')}

## One by one

${WIRE_CODES.map(section).join('\n')}`;
}

export function errorPages(): Source[] {
  const pages = WIRE_CODES.map((code): Source => ({
    name: `error-${code}`,
    title: code,
    parent: 'errors',
    markdown: codePage(code),
  }));
  return [{ name: 'errors', title: 'Errors', markdown: overview() }, ...pages];
}
