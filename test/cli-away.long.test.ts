/** The short test's texts, many more of them: each is a process of its own, and a rare failure may need so many. */
import t from 'tap';
import { textsKept } from './support/door.js';

t.setTimeout(600_000);

t.test('CLI-19 CLI-38: forty texts are kept for an address that closes at once', (t) => textsKept(t, 40));
