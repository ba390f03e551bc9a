/** The complete reference: the pages of a folder, and pages and documents generated from the code. */
import { endpointsPage } from './endpoints-page.js';
import { errorsPage } from './errors-page.js';
import { frameSchemas } from './frame-schemas.js';
import { openApi, type RouteFacts } from './openapi.js';
import { openSite, type Site, type Source } from './site.js';

/** Reads the pages of `folder`. `version`: the server's. Throws if the folder cannot be read. */
export function openReference(folder: string, version: string, routes: readonly RouteFacts[]): Promise<Site> {
  const documents = {
    // The conventional name has the default shape.
    'openapi.json': () => openApi('a', routes, version),
    'openapi-a.json': () => openApi('a', routes, version),
    'openapi-b.json': () => openApi('b', routes, version),
    'frames-a.json': () => frameSchemas('a'),
    'frames-b.json': () => frameSchemas('b'),
  };
  return openSite({ folder, made: madePages(routes), version, documents });
}

/** The generated pages. */
export function madePages(routes: readonly RouteFacts[]): Source[] {
  const endpoints = (['a', 'b'] as const).map((shape) => ({
    name: `endpoints-${shape}`,
    title: `Endpoints in shape ${shape.toUpperCase()}`,
    // No version: the footer of every page has it.
    markdown: () => endpointsPage(shape, openApi(shape, routes, '')),
  }));
  return [{ name: 'errors', title: 'Errors', markdown: errorsPage }, ...endpoints];
}
