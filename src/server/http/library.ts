/** Identifies the build of uWebSockets.js, a third-party binary that handles all traffic (reference, Dependencies). */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { basename, dirname, join } from 'node:path';

/** SHA-256 of the builds in the package that `package-lock.json` names, for Node 20, 22 and 24. */
export const KNOWN_LIBRARIES: Readonly<Record<string, string>> = {
  'uws_linux_x64_115.node': 'f4fa5d7b697529b45ac8aa3d57385d9af51bc1d2b26aa9f5b68ca4361542e665',
  'uws_linux_x64_127.node': '78e38a9a163b1cf33ce539619e5908111dea95a12e7943d95fbcdd524879caa8',
  'uws_linux_x64_137.node': '3b549c14e01d9d1faf234cdf4b6f0fb08158605e3692cd0eb1b905e327bd3449',
  'uws_linux_arm64_115.node': '034e0fcccdc08f90df3b130f421516311831b1352fe38eab91abc2984c2fdf3a',
  'uws_linux_arm64_127.node': 'a7d9bc3ec166421a49416d5ea4f49118ae68ea1dbf8a765c4f45a79b0b6adb13',
  'uws_linux_arm64_137.node': 'b6eb007d627e00bcce03ad38f197124e9027c03f6fe784b37f97b8a6ea709cb4',
  'uws_darwin_x64_115.node': '7552dc27e278be4a5f9ca4f571676e9046929ef8753b1bb63b84f78e1a752a11',
  'uws_darwin_x64_127.node': '1bcd63a9cd5cda811d899b80f9b1f7c9f29d128feafebe6976069ab1045a0335',
  'uws_darwin_x64_137.node': '7df6e0b2be43048200370a64ee91d6563879f5d3b0207f846dc81377ffc4e189',
  'uws_darwin_arm64_115.node': 'f6132ac4d0954ce32ed716d5b367270904c5885bc6e01dcc8ae5809a8967d504',
  'uws_darwin_arm64_127.node': '84ab0c487fbbb895afbfa24c7ac02db5922b2eb468b3a4663aaca52af29b420c',
  'uws_darwin_arm64_137.node': 'dd7623e7e600dcc1384c4a639ac05849f0c27125be8c431b702e0513e86613f0',
};

/** The file that the package loads, chosen as in its `uws.js`. Throws where the package is not installed. */
export function libraryFile(): string {
  const folder = dirname(createRequire(import.meta.url).resolve('uWebSockets.js'));
  return join(folder, `uws_${process.platform}_${process.arch}_${process.versions.modules}.node`);
}

/** A warning where the library is not one that this version was tested with; else undefined. */
export function untestedLibrary(): string | undefined {
  const file = libraryFile();
  const sha256 = createHash('sha256').update(readFileSync(file)).digest('hex');
  if (KNOWN_LIBRARIES[basename(file)] === sha256) return undefined;
  return `uWebSockets.js: ${file} is not the library that this version was tested with (its SHA-256 is ${sha256}).`;
}
