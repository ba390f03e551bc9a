/** What a search goes through: the searched fields of an item as one text, made once. Pure. */
import { fold, SEARCH_TEXT_MAX, SEARCHED } from '../client/search.js';
import type { JsonObject } from '../crypto/payload.js';
import type { ContentType } from '../protocol/item.js';

/** Between two fields: folding leaves no line break in a text, so no match goes over it. */
const BREAK = '\n';

/** The searched fields of a payload, folded. Secrets are not among them. */
export const searchedText = (type: ContentType, payload: JsonObject | null): string =>
  payload === null
    ? ''
    : SEARCHED[type]
        .flatMap((field) => {
          const value = Object.hasOwn(payload, field) ? payload[field] : undefined;
          return typeof value === 'string' && value !== '' ? [fold(value)] : [];
        })
        .join(BREAK);

/** A query as it is looked for: without case, accents and superfluous white space. Empty: it says nothing. */
export const neededText = (query: string): string => fold(query.slice(0, SEARCH_TEXT_MAX));
