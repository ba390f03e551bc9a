/** Detects the type of a file from its name and its bytes. */
import mime from 'mime';
import type { JsonObject } from '../crypto/payload.js';
import { utf8Text } from '../protocol/bytes.js';
import type { ContentType } from '../protocol/item.js';
import { type Detected, filePayload } from '../sdk/payloads/shapes.js';

/** Values of `lang`, each with its file extensions. */
const LANGUAGES = `
  typescript: ts mts; tsx: tsx; javascript: js mjs cjs; jsx: jsx; python: py; ruby: rb; go: go; rust: rs;
  java: java; kotlin: kt; swift: swift; scala: scala; c: c h; cpp: cc cpp hpp; csharp: cs; objectivec: m;
  php: php; perl: pl; lua: lua; shell: sh bash zsh; fish: fish; powershell: ps1; batch: bat; html: html htm;
  css: css; scss: scss; xml: xml; vue: vue; sql: sql; graphql: graphql; markdown: md markdown; latex: tex;
  csv: csv; json: json; yaml: yaml yml; toml: toml; ini: ini; terraform: tf; protobuf: proto; haskell: hs;
  ocaml: ml; elixir: ex exs; erlang: erl; clojure: clj; dart: dart; r: r; julia: jl`;
const LANGUAGE_OF: ReadonlyMap<string, string> = new Map(
  LANGUAGES.split(';').flatMap((entry) => {
    const [language = '', extensions = ''] = entry.trim().split(': ');
    return extensions.split(' ').map((extension) => [extension, language] as const);
  }),
);
/** Files without an extension, whose name is the language. */
const NAMES: ReadonlySet<string> = new Set(['dockerfile', 'makefile']);

/** UTF-8 without NUL as text; undefined for other bytes. */
export function textOf(bytes: Uint8Array): string | undefined {
  const text = utf8Text(bytes);
  return text?.includes('\0') === true ? undefined : text;
}

/** A text file. It is `code`, perhaps without a language, since a `text` has no field for the name. */
export const textFile = (name: string, text: string): Detected => ({
  type: 'code',
  payload: { lang: languageOf(name) ?? '', label: name, text },
});

/** The media type of a file by its name, if it is one. */
export function mediaType(name: string): ContentType | undefined {
  const [kind] = (mime.getType(name) ?? '').split('/');
  const media = kind === 'image' || kind === 'audio' || kind === 'video' ? kind : undefined;
  return languageOf(name) === undefined ? media : undefined;
}

/** The payload of a file, without reading it. */
export const describeFile = (type: ContentType, name: string, size: number): JsonObject =>
  filePayload(type, { name, size, mime: mime.getType(name) ?? 'application/octet-stream' });

/** The language of a source file by its name. `.ts` is TypeScript, not a video. */
export function languageOf(name: string): string | undefined {
  const lower = name.slice(name.search(/[^/\\]*$/)).toLowerCase();
  // A name that only begins with a dot has no extension.
  const [, extension = ''] = /.\.([^.]*)$/.exec(lower) ?? [];
  return NAMES.has(lower) ? lower : LANGUAGE_OF.get(extension);
}
