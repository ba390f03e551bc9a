/** What kind of content something is that was put without `--type`. */
import { basename, extname } from 'node:path';
import mime from 'mime';
import type { Detected } from '../../client/payload-detect.js';
import { needsBlob } from './payloads.js';

/** Extension to the name that `lang` takes. */
const LANGUAGES: Readonly<Record<string, string>> = {
  ...{
    ts: 'typescript',
    tsx: 'tsx',
    mts: 'typescript',
    js: 'javascript',
    jsx: 'jsx',
    mjs: 'javascript',
    cjs: 'javascript',
  },
  ...{ py: 'python', rb: 'ruby', go: 'go', rs: 'rust', java: 'java', kt: 'kotlin', swift: 'swift', scala: 'scala' },
  ...{
    c: 'c',
    h: 'c',
    cc: 'cpp',
    cpp: 'cpp',
    hpp: 'cpp',
    cs: 'csharp',
    m: 'objectivec',
    php: 'php',
    pl: 'perl',
    lua: 'lua',
  },
  ...{ sh: 'shell', bash: 'shell', zsh: 'shell', fish: 'fish', ps1: 'powershell', bat: 'batch' },
  ...{ html: 'html', htm: 'html', css: 'css', scss: 'scss', xml: 'xml', vue: 'vue', sql: 'sql', graphql: 'graphql' },
  ...{ json: 'json', yaml: 'yaml', yml: 'yaml', toml: 'toml', ini: 'ini', tf: 'terraform', proto: 'protobuf' },
  ...{
    hs: 'haskell',
    ml: 'ocaml',
    ex: 'elixir',
    exs: 'elixir',
    erl: 'erlang',
    clj: 'clojure',
    dart: 'dart',
    r: 'r',
    jl: 'julia',
  },
};
const NAMES: Readonly<Record<string, string>> = { dockerfile: 'dockerfile', makefile: 'makefile' };

const utf8 = new TextDecoder('utf-8', { fatal: true });

/** Bytes of nobody knows what: text where they are UTF-8. Throws `CommandError` code `needs_blob` for anything else. */
export function ofBytes(bytes: Uint8Array, what: string): string {
  try {
    const text = utf8.decode(bytes);
    if (!text.includes('\0')) return text;
  } catch {
    // Not UTF-8: said below, with everything else that is no text.
  }
  throw needsBlob(`${what} is no text`);
}

/** A file by its name and content: a source file is code. Throws as `ofBytes`. */
export function ofFile(path: string, bytes: Uint8Array): Detected {
  const name = basename(path);
  const kind = mime.getType(name) ?? '';
  if (/^(image|audio|video|font)\//.test(kind) && !isSource(name)) throw needsBlob(`${name} is ${kind}`);
  const text = ofBytes(bytes, name);
  const lang = languageOf(name);
  if (lang !== undefined) return { type: 'code', payload: { lang, label: name, text } };
  return { type: 'text', payload: { text } };
}

const isSource = (name: string): boolean => languageOf(name) !== undefined;

/** The language of a source file by its name. `.ts` is TypeScript here, not a video. */
export function languageOf(name: string): string | undefined {
  const lower = name.toLowerCase();
  const extension = extname(lower).slice(1);
  if (Object.hasOwn(NAMES, lower)) return NAMES[lower];
  return Object.hasOwn(LANGUAGES, extension) ? LANGUAGES[extension] : undefined;
}
