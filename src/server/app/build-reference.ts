/** Writes the reference's pages into `build/docs`, after the compiler: part of `npm run build`. */
import { join } from 'node:path';
import { writeSite } from '../../docs/write-site.js';
import { DOCS_FOLDER, PROJECT_ROOT, REFERENCE_FOLDER, SERVER_VERSION } from '../../root.js';
import { ALL_ROWS } from './route-table.js';

await writeSite({
  folder: DOCS_FOLDER,
  script: join(PROJECT_ROOT, 'build', 'src', 'docs', 'page', 'main.js'),
  target: REFERENCE_FOLDER,
  version: SERVER_VERSION,
  routes: ALL_ROWS,
});
