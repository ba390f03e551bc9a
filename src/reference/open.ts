/** The whole reference, ready to be served: the pages of a folder and the documents made from the types. */
import { endpointsPage } from './endpoints-page.js';
import { errorsPage } from './errors-page.js';
import { frameSchemas } from './frame-schemas.js';
import { openApi, type RouteFacts } from './openapi.js';
import { openSite, type Site } from './site.js';

/** What the reference is made of. */
export interface ReferenceOptions {
  /** Folder of the pages. */
  readonly folder: string;
  /** The server's version. */
  readonly version: string;
  /** The route table. */
  readonly routes: readonly RouteFacts[];
}

/** Reads the pages. Throws when the folder cannot be read. */
export function openReference({ folder, version, routes }: ReferenceOptions): Promise<Site> {
  const documents = {
    // Whoever looks for the usual name finds the default shape.
    'openapi.json': () => openApi('a', routes, version),
    'openapi-a.json': () => openApi('a', routes, version),
    'openapi-b.json': () => openApi('b', routes, version),
    'frames-a.json': () => frameSchemas('a'),
    'frames-b.json': () => frameSchemas('b'),
  };
  return openSite({ folder, version, documents });
}

/** The pages that follow from the code, by their file names. What is in the repository must be equal. */
export function generatedPages(routes: readonly RouteFacts[]): Record<string, string> {
  return {
    'errors.md': errorsPage(),
    // The version is on every page that is served, and would change files at each release.
    'endpoints-a.md': endpointsPage('a', openApi('a', routes, '')),
    'endpoints-b.md': endpointsPage('b', openApi('b', routes, '')),
  };
}
