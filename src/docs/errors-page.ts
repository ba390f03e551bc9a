/** The page on errors, generated from the catalogue. */
import { CATALOGUE, codeOf, statusOf, type ErrorName } from '../protocol/errors.js';
import type { Shape } from '../protocol/shape.js';
import { ERROR_NOTES } from './error-notes.js';

const NAMES = Object.keys(CATALOGUE) as ErrorName[];
const SHAPES: readonly Shape[] = ['a', 'b'];

const link = (code: string): string => `[\`${code}\`](#${code})`;

/** The errors of a wire code: in shape A there may be several that B tells apart. */
function meaning(code: string): readonly { readonly name: ErrorName; readonly shapes: readonly Shape[] }[] {
  return NAMES.map((name) => ({ name, shapes: SHAPES.filter((shape) => codeOf(name, shape) === code) })).filter(
    ({ shapes }) => shapes.length > 0,
  );
}

/** Every wire code, in the catalogue's order. */
const WIRE_CODES = [...new Set(NAMES.flatMap((name) => SHAPES.map((shape) => codeOf(name, shape))))];

function statuses(name: ErrorName, shapes: readonly Shape[]): string {
  const found = [...new Set(shapes.map((shape) => statusOf(name, shape)))];
  return found.length === 1
    ? String(found[0])
    : shapes.map((shape) => `${statusOf(name, shape)} in ${shape.toUpperCase()}`).join(', ');
}

function section(code: string): string {
  const parts = meaning(code).map(({ name, shapes }) => {
    const { when } = CATALOGUE[name];
    const note = ERROR_NOTES[name];
    const { remedy, details } = typeof note === 'string' ? { remedy: note, details: undefined } : note;
    const [only] = shapes.length === 1 ? shapes : [];
    const other = only === undefined ? undefined : codeOf(name, only === 'a' ? 'b' : 'a');
    const inShape =
      only === undefined ? '' : `, shape ${only.toUpperCase()} (in ${only === 'a' ? 'B' : 'A'}: ${link(other ?? '')})`;
    return [
      `**Status** ${statuses(name, shapes)}${inShape}`,
      `**When** ${when}`,
      `**What to do** ${remedy}`,
      ...(details === undefined ? [] : [`**\`details\`** ${details}.`]),
    ].join('  \n');
  });
  return `## ${code}\n\n${parts.join('\n\n')}\n`;
}

function row(name: ErrorName): string {
  const [a, b] = SHAPES.map((shape) => codeOf(name, shape));
  const status = statuses(name, SHAPES);
  return `| ${status} | ${link(a ?? '')} | ${a === b ? 'the same' : link(b ?? '')} | ${CATALOGUE[name].when} |`;
}

/** The page as Markdown. */
export function errorsPage(): string {
  return `# Errors

What each refusal means, and what a client does about it. Every answer from 400 upwards has this body, also a refused upgrade of \`/ws\`:

\`\`\`json
{ "error": { "code": "validation", "message": "ts: must be integer milliseconds, not seconds", "details": { "path": "ts", "rule": "must be integer milliseconds, not seconds" } } }
\`\`\`

- \`code\` is stable: programs match on it, not on status or message. New codes may come; none goes. A client treats an unknown code by its status: 429 and 503 may be tried again after \`Retry-After\`, 500 later, any other is final for this request. An answer without this body comes from something between client and server, and is no refusal: a request that is repeatable is sent again.
- \`message\` is for people and may change.
- \`hint\` is there in shape B only: \`/docs/errors#<code>\`, which is this page.
- \`details\` is there where it helps. Its fields are named below; in shape B they are spelled in snake_case.
- \`Retry-After\`, in whole seconds and at least 1, comes with every 429 and 503.
- \`X-Request-Id\` comes with every answer. The server's log has the cause of a 5xx under it.

Checks come in this order, and the first that fails is the answer: framing, route, tenant by host, token, tenant state, rate, body.
Shape A has fewer codes than B for the same refusals. \`bootstrap_locked\` is another name of \`bootstrap_already_done\`; the server never answers with it.

| Status | Code in A | Code in B | When |
| --- | --- | --- | --- |
${NAMES.map(row).join('\n')}

${WIRE_CODES.map(section).join('\n')}`;
}
