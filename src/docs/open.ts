/** The whole reference, ready to be served: the pages of a folder, and pages and documents made from the code. */
import { endpointsPage } from './endpoints-page.js';
import { errorsPage } from './errors-page.js';
import { frameSchemas } from './frame-schemas.js';
import { openApi, type RouteFacts } from './openapi.js';
import { openSite, type Site, type Source } from './site.js';

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
  return openSite({ folder, made: madePages(routes), version, documents });
}

/** The pages that follow from the code. */
export function madePages(routes: readonly RouteFacts[]): Source[] {
  const endpoints = (['a', 'b'] as const).map((shape) => ({
    name: `endpoints-${shape}`,
    title: `Endpoints in shape ${shape.toUpperCase()}`,
    // The version stands at the foot of every page.
    markdown: () => endpointsPage(shape, openApi(shape, routes, '')),
  }));
  return [{ name: 'errors', title: 'Errors', markdown: errorsPage }, ...endpoints];
}
