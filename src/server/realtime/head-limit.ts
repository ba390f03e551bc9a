/**
 * The largest head of a request for uWebSockets.js, which reads it from the environment when it is loaded: to be imported
 * before it. Without it the library takes 4 KiB, less than a browser may send (reference, Dependencies).
 */
import { HEAD_MAX } from '../../protocol/limits.js';

process.env['UWS_HTTP_MAX_HEADERS_SIZE'] = String(HEAD_MAX);
