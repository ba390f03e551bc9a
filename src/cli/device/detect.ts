/** What kind of content something is that was put without `--type`. */
import { extname } from 'node:path';
import mime from 'mime';
import type { Detected } from '../../client/payloads/detect.js';
import type { JsonObject } from '../../crypto/payload.js';
import type { ContentType } from '../../protocol/item.js';

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
  ...{ md: 'markdown', markdown: 'markdown', tex: 'latex', csv: 'csv' },
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

/** A byte order mark is part of the content: what is put comes back as it was. */
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Bytes as the text that they are; undefined: they are none. */
export function textOf(bytes: Uint8Array): string | undefined {
  try {
    const text = utf8.decode(bytes);
    return text.includes('\0') ? undefined : text;
  } catch {
    // Not UTF-8.
    return undefined;
  }
}

/** A text that has a file's name: code, in no language where none is known, since a `text` has no room for the name. */
export const textFile = (name: string, text: string): Detected => ({
  type: 'code',
  payload: { lang: languageOf(name) ?? '', label: name, text },
});

/** What a file is by its name, where that is a picture, a recording or a film. */
export function mediaType(name: string): ContentType | undefined {
  const [kind] = (mime.getType(name) ?? '').split('/');
  const media = kind === 'image' || kind === 'audio' || kind === 'video' ? kind : undefined;
  return isSource(name) ? undefined : media;
}

/** The payload of a file: what can be told without reading it. */
export function describeFile(type: ContentType, name: string, size: number): JsonObject {
  const kind = mime.getType(name) ?? 'application/octet-stream';
  if (type === 'file') return { name, size, mime: kind };
  return type === 'video' ? { title: name, mime: kind } : { label: name, mime: kind };
}

const isSource = (name: string): boolean => languageOf(name) !== undefined;

/** The language of a source file by its name. `.ts` is TypeScript here, not a video. */
export function languageOf(name: string): string | undefined {
  const lower = name.toLowerCase();
  const extension = extname(lower).slice(1);
  if (Object.hasOwn(NAMES, lower)) return NAMES[lower];
  return Object.hasOwn(LANGUAGES, extension) ? LANGUAGES[extension] : undefined;
}
