/** Builds the web app into `build/web`, after the compiler (`npm run build`), and prints its sizes. */
import { WEB_FOLDER } from '../root.js';
import { buildWeb } from './bundle.js';

const { sizes } = await buildWeb(WEB_FOLDER);
const kilobytes = (bytes: number): string => (bytes / 1024).toFixed(1);
// Not on standard output, where a program's JSON may follow.
process.stderr.write(
  `web app: first view ${kilobytes(sizes.first)} KB, all ${kilobytes(sizes.whole)} KB, ` +
    `reader ${kilobytes(sizes.reader)} KB (gzip)\n`,
);
