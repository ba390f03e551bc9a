/** Detects whether a text is code, and its language. Pure. */

interface Code {
  /** As in the reference, Content types; empty: not known. */
  readonly lang: string;
  readonly text: string;
}

/** Characters examined. */
const LOOK_MAX = 20_000;
const JSON_MAX = 200_000;

/** Common language names after a fence. */
const ALIASES: ReadonlyMap<string, string> = new Map(
  Object.entries({
    ts: 'typescript',
    js: 'javascript',
    py: 'python',
    rb: 'ruby',
    rs: 'rust',
    sh: 'shell',
    bash: 'shell',
    zsh: 'shell',
    yml: 'yaml',
    'c++': 'cpp',
    'c#': 'csharp',
    cs: 'csharp',
    md: 'markdown',
    golang: 'go',
    console: 'shell',
  }),
);

const KNOWN_COMMAND =
  /^(?:\$ |# )?(?:sudo )?(?:npm (?:i|install|ci|run|test)|npx \S+|git (?:add|clone|commit|push|pull|checkout|rebase|log|diff|status|switch|stash|fetch)|docker (?:run|compose|ps|build|exec|pull)|(?:apt|apt-get|brew|dnf|pip3?|cargo|go|yarn|pnpm|pacman) (?:-\w+ )?(?:install|add|get|build|run|update)|kubectl \w+|systemctl \w+)(?: [^\n]*)?$/;
/** A command with an option, a pipe or a path, so that sentences that begin with such a word do not match. */
const OTHER_COMMAND =
  /^(?:\$ |sudo )?(?:curl|wget|ssh|scp|rsync|tar|grep|find|sed|awk|chmod|chown|ls|cat|echo|export|cd|mkdir|rm|cp|mv|openssl|ffmpeg|psql|make|node|python3?) (?:[^\n]*\s)?(?:-{1,2}\w|[|>]|\.{0,2}\/\w|~\/)[^\n]*$/;

type Sign = readonly [lang: string, ...all: readonly RegExp[]];

/**
 * The first entry whose patterns all match gives the language. Each pattern takes linear time: a match attempt that can
 * start in every line ends in that line, or after a bounded length.
 */
const SIGNS: readonly Sign[] = [
  ['python', /^#!.*\bpython/],
  ['javascript', /^#!.*\b(node|deno|bun)\b/],
  ['shell', /^#!.*\b(ba|z|k|da)?sh\b/],
  ['php', /^\s*<\?php\b/],
  ['xml', /^\s*<\?xml\b/],
  [
    'html',
    /^\s*<(!doctype html|html|head|body|div|p|span|a|ul|table|form|section|script|svg|h[1-6])\b[^>]*>[\s\S]*<\/\w+>/i,
  ],
  ['xml', /^\s*<([a-z][\w:.-]*)(\s[^>]*)?>[\s\S]*<\/\1>\s*$/i],
  ['diff', /^(diff --git |--- \S+[^\n]*\n\+\+\+ )/m],
  ['dockerfile', /^FROM \S+/m, /^(RUN|COPY|CMD|ENTRYPOINT|WORKDIR) /m],
  ['cpp', /^[ \t]*#include\s*[<"]/m, /\b(std::|template\s*<|class \w+|namespace \w+)/],
  ['c', /^[ \t]*#include\s*[<"]/m],
  ['go', /^package \w+\s*$/m],
  ['go', /^func (\(\w+ \*?\w+\) )?\w+\(/m, /\{\s*$/m],
  ['rust', /^[ \t]*(pub )?fn \w+\s*(<[^>\n]*>)?\(/m, /\{/],
  [
    'java',
    /^[ \t]*(public|private|protected) (static |final |abstract )*(class|interface|enum|void|\w+(<[^>\n]*>)?) \w+/m,
    /[;{]\s*$/m,
  ],
  ['csharp', /^using [\w.]+;\s*$/m, /\b(namespace|class) \w+/],
  ['python', /^[ \t]*(async )?def \w+\([^)]{0,1000}\)[^:\n]*:\s*$/m],
  ['python', /^[ \t]*class \w+(\([^)\n]*\))?:\s*$/m],
  [
    'python',
    /^(from [\w.]+ import \S+|import [\w.]+( as \w+)?)\s*$/m,
    /^[ \t]*(print\(|for \w+ in |if .*:\s*$|\w+ = )/m,
  ],
  ['typescript', /^[ \t]*(export )?(interface \w+( extends [^{\n]+)? \{|type \w+(<[^>\n]*>)? = )/m],
  ['typescript', /\b(const|let|function)\b/, /[\w)\]]\s*:\s*(string|number|boolean|void|unknown|Promise<|readonly )/],
  [
    'javascript',
    /^[ \t]*(import [\w{*][^\n]* from ['"]|export (default|const|function|class) |const \w+ = require\()/m,
  ],
  ['javascript', /^[ \t]*(const|let|var) [\w{[][^\n=]*=/m],
  ['javascript', /^[ \t]*(async )?function\*? \w*\([^)\n]*\)\s*\{/m],
  ['javascript', /\bconsole\.(log|error)\(|\([\w, ]*\) => [\w({]/],
  ['css', /^[ \t]*([.#@:]?[\w-][^{};\n]*)\{\s*[\w-]+\s*:[^;{}]+;/m],
  [
    'sql',
    /^\s*(SELECT\b[\s\S]*\bFROM|INSERT INTO|UPDATE\b[\s\S]*\bSET|DELETE FROM|CREATE (TABLE|INDEX|VIEW)|ALTER TABLE|WITH \w+ AS) /,
  ],
  [
    'sql',
    /^\s*(select\b[\s\S]*\bfrom|insert into|update\b[\s\S]*\bset|delete from|create (table|index|view)|alter table)\s/i,
    /;\s*$/,
  ],
  ['toml', /^\[[\w.-]+\]\s*$/m, /^[\w.-]+ ?= ?("|\d|true|false|\[)/m],
  ['ini', /^\[[\w .-]+\]\s*$/m, /^[\w.-]+ ?=/m],
  ['yaml', /^---\s*\n[\w-]+:/],
  ['yaml', /^[a-z][\w-]*:[ \t]*\r?\n\s+(- )?[\w"'-]/m, /^[a-z][\w-]*:( |\s*$)/m],
];

/** The code in a text; undefined: the text is not code. */
export function codeIn(raw: string): Code | undefined {
  const fenced = fencedIn(raw.trim());
  if (fenced !== undefined) return fenced;
  const lang = languageOf(raw);
  return lang === undefined ? undefined : { lang, text: raw };
}

/** The code between a first and a last line that are the same fence. */
function fencedIn(trimmed: string): Code | undefined {
  const [begin, end] = [trimmed.indexOf('\n'), trimmed.lastIndexOf('\n')];
  if (end < 0) return undefined;
  const [, fence, tag = ''] = /^(`{3,9}|~{3,9}) ?([\w+#.-]{0,30})/.exec(trimmed.slice(0, begin)) ?? [];
  if (fence === undefined || trimmed.slice(end).trim() !== fence) return undefined;
  const name = tag.toLowerCase();
  const inner = trimmed.slice(begin + 1, Math.max(begin + 1, end));
  return { lang: (ALIASES.get(name) ?? name) || languageOf(inner) || '', text: inner };
}

/** Undefined: not code. Empty: code of an unknown language. */
function languageOf(raw: string): string | undefined {
  const trimmed = raw.trim();
  if (isJson(trimmed)) return 'json';
  const look = trimmed.slice(0, LOOK_MAX);
  const lines = look.split('\n').filter((line) => line.trim() !== '');
  if (lines.length > 0 && lines.length <= 20 && lines.every(isCommand)) return 'shell';
  const lang = signedLanguage(look);
  if (lang !== undefined) return lang;
  const ends = lines.filter((line) => /[;{}]\s*$|^\s*[)}\]]+[;,]?\s*$/.test(line)).length;
  return lines.length >= 3 && ends / lines.length >= 0.5 ? '' : undefined;
}

/** The language by typical lines. The page waits for it, so the time must be linear in the length of any text. */
export const signedLanguage = (text: string): string | undefined =>
  SIGNS.find(([, ...all]) => all.every((one) => one.test(text)))?.[0];

/** A comment line after the first line counts as a command. */
const isCommand = (line: string, at: number): boolean =>
  KNOWN_COMMAND.test(line.trim()) || OTHER_COMMAND.test(line.trim()) || (at > 0 && /^\s*#\s/.test(line));

function isJson(text: string): boolean {
  if (text.length < 2 || text.length > JSON_MAX || !/^(\{[\s\S]*\}|\[[\s\S]*\])$/.test(text)) return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    // Not JSON despite its brackets.
    return false;
  }
}
