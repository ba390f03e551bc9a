/** The process that clears the clipboard (see `clipboard.ts`). Reads its task from standard input. */
import { text } from 'node:stream/consumers';
import { systemClock } from '../protocol/clock.js';
import { type Clearing, clearWhenDue } from './clipboard.js';

const task = JSON.parse(await text(process.stdin)) as Clearing;
await clearWhenDue({ clock: systemClock, env: process.env }, task);
