/** The reference (contract 3: `error.hint` names its pages). */
import { ServiceError } from '../../protocol/errors.js';
import { Page, type Handler } from '../router.js';

/** `GET /docs` and `GET /docs/:name`. Throws `not_found`. */
export const docsPage: Handler<Page> = (call, { docs }) => {
  const page = docs?.page(call.id);
  if (page === undefined) throw new ServiceError('not_found', 'no such page');
  return new Page(page);
};
