/** libsodium's WebAssembly as a file of its own. Its package has it as base64 in a script, which is a third more to load. */
import { readFile } from 'node:fs/promises';
import type { Plugin } from 'esbuild';

/** A function that decodes, called with the text: as Emscripten writes it (`SINGLE_FILE`), within an async function. */
const EMBEDDED = /\(\w+=>\{for\(var [^{}]*return \w+\}\)\("(AGFzbQ[A-Za-z0-9+/]+=*)"\)/;

/**
 * Puts a request for the file in the place of the text. `place` is given the file's bytes and returns its path. Fails the
 * build where libsodium is not as expected.
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
