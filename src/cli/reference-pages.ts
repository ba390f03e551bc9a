/** `npm run reference`: writes the pages of the reference that follow from the code. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ALL_ROWS } from '../front/route-table.js';
import { generatedPages } from '../reference/open.js';
import { REFERENCE_FOLDER } from '../root.js';

for (const [file, text] of Object.entries(generatedPages(ALL_ROWS))) {
  await writeFile(join(REFERENCE_FOLDER, file), text);
  process.stdout.write(`${join(REFERENCE_FOLDER, file)}\n`);
}
