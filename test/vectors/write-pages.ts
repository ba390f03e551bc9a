/** Writes the sections of the reference that show an item, a claim and a pairing with fixed keys. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { startDemoServer } from '../../src/demo/server.js';
import { PROJECT_ROOT } from '../../src/root.js';
import { ITEM_SECTION } from './example.js';
import { transcripts, withSection } from './transcripts.js';

function put(name: string, ...sections: readonly string[]): void {
  const path = join(PROJECT_ROOT, 'src/docs', name);
  writeFileSync(path, sections.reduce(withSection, readFileSync(path, 'utf8')));
}

const server = await startDemoServer();
try {
  const { claim, pairing } = await transcripts(server.url);
  put('cryptography.md', ITEM_SECTION);
  put('pairing.md', claim, pairing);
} finally {
  await server.stop();
}
