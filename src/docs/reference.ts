/** The complete reference: the pages of a folder, and pages and documents generated from the code. */
import { ENDPOINT_ALIASES, endpointPages } from './endpoints-pages.js';
import { errorPages } from './errors-page.js';
import { frameSchemas } from './frame-schemas.js';
import type { Places } from './markdown.js';
import { openApi, type RouteFacts } from './openapi.js';
import { makeSite, type SiteFiles, type Source } from './site.js';

interface ReferenceOptions {
  readonly folder: string;
  /** The server's version. */
  readonly version: string;
  readonly routes: readonly RouteFacts[];
  readonly script: string;
  readonly places: Places;
}

/** The generated pages. */
export function madePages(routes: readonly RouteFacts[]): Source[] {
  return [...errorPages(), ...endpointPages(routes)];
}

/** Makes every file of the site. Throws if the folder cannot be read. */
export async function makeReference({ routes, version, ...options }: ReferenceOptions): Promise<SiteFiles> {
  const documents = {
    // The document with the conventional name is that of the default shape.
    'openapi.json': () => openApi('a', routes, version),
    'openapi-a.json': () => openApi('a', routes, version),
    'openapi-b.json': () => openApi('b', routes, version),
    'frames-a.json': () => frameSchemas('a'),
    'frames-b.json': () => frameSchemas('b'),
  };
  const files = new Map(await makeSite({ ...options, made: madePages(routes), version, documents }));
  for (const name of ENDPOINT_ALIASES) files.set(name, files.get('endpoints') ?? '');
  return files;
}
