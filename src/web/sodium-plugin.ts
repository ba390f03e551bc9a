/** Makes libsodium's WebAssembly a separate file. Its package embeds it as base64, which is a third larger. */
import { readFile } from 'node:fs/promises';
import type { Plugin } from 'esbuild';

/** The call of a decoder with the base64 text, as Emscripten (`SINGLE_FILE`) emits it within an async function. */
const EMBEDDED = /\(\w+=>\{for\(var [^{}]*return \w+\}\)\("(AGFzbQ[A-Za-z0-9+/]+=*)"\)/;

/**
 * Replaces the embedded text with a fetch of the file. `place` gets the file's bytes and returns its path. Fails the
 * build if libsodium is not as expected.
 */
export const separateSodium = (place: (wasm: Buffer) => string): Plugin => ({
  name: 'separate-sodium',
  setup(build) {
    build.onLoad({ filter: /[/\\]libsodium-sumo\.mjs$/ }, async ({ path }) => {
      const source = await readFile(path, 'utf8');
      const [embedded, text = ''] = EMBEDDED.exec(source) ?? [];
      const wasm = Buffer.from(text, 'base64');
      if (embedded === undefined || !WebAssembly.validate(wasm))
        throw new Error(`${path}: no WebAssembly was found in it`);
      const address = JSON.stringify(place(wasm));
      const fetched =
        `(new Uint8Array(await fetch(${address}).then(r=>{` +
        `if(!r.ok)throw new Error("libsodium: "+r.status);return r.arrayBuffer()})))`;
      return { contents: source.replace(embedded, () => fetched), loader: 'js' };
    });
  },
});
