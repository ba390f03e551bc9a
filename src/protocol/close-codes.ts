/** Close codes of the server for a device's socket (reference, Sockets). */
export const CLOSE = {
  /** The first frame is none of the three that a client may start with; shape A only. */
  protocol: 4400,
  /** The token of the socket has expired. */
  expired: 4401,
  /** The device was revoked, or its tenant wiped. */
  revoked: 4403,
  /** No `hello` in time, or no sign of life. */
  silent: 4408,
  /** The socket exceeded the rate of frames or of their bytes. */
  tooMuch: 4429,
  /** The server stops, is drained, has another history or drops the tenant's state: reconnect with the cursor, when it says. */
  restart: 1012,
  /** The server, or the client in reading, cannot keep up: reconnect later. */
  overloaded: 1013,
  /** A frame over FRAME_MAX. */
  tooLarge: 1009,
} as const;
