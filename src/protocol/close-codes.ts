/** With what codes the server closes a device's socket (reference, Sockets). */
export const CLOSE = {
  /** A first frame that is none of the three a client may begin with; shape A only. */
  protocol: 4400,
  /** The token that the socket was opened with has ended. */
  expired: 4401,
  /** The device was revoked, or its tenant wiped. */
  revoked: 4403,
  /** No `hello` in time, or no sign of life. */
  silent: 4408,
  /** More frames, or bytes of frames, than a socket may send. */
  tooMuch: 4429,
  /** The server stops, or the tenant starts anew here: come back at once, with the cursor. */
  restart: 1012,
  /** The server, or the client as a reader, cannot keep up: come back later. */
  overloaded: 1013,
  /** A frame over FRAME_MAX. */
  tooLarge: 1009,
} as const;
