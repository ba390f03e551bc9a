/**
 * What an entry gives in the place of the other platform's own: the same names, so that a program for both compiles
 * whichever entry its tools look at, and an error that says where it runs.
 */
import { ClientError } from './errors.js';

/** A function that throws `ClientError` `wrong_platform`. */
const elsewhere = (name: string, needs: string, instead: string) => (): never => {
  throw new ClientError('wrong_platform', `${name} works in ${needs} only: use ${instead} here`);
};

/** Of a function of Node, called elsewhere. */
export const onlyInNode = (name: string, instead: string) => elsewhere(name, 'Node', instead);
/** Of a function of browsers, called elsewhere. */
export const onlyInBrowsers = (name: string, instead: string) => elsewhere(name, 'browsers', instead);
