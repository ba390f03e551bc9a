/** The reference (`hint` of an error names its pages). */
import { ServiceError } from '../../protocol/errors.js';
import type { Docs } from './ports.js';
import { Page } from './reply.js';
import type { Handler } from './route.js';

/** The start page's file: whoever reads `index.md` in the repository tries its name here. */
const START = 'index';

/** `GET /docs` and `GET /docs/:name`. Throws `not_found`. */
export const docsPage: Handler<{ readonly docs?: Docs }, Page> = (ctx, { docs }) => {
  const page = docs?.page(ctx.id === START ? '' : ctx.id);
  if (page === undefined) throw new ServiceError('not_found', 'no such page');
  return new Page(page);
};
