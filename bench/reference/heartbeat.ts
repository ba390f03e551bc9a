/** Time between two heartbeats of a socket, s: WS_PING_INTERVAL_MS, which the servers of a run read as well, or its default. */
export const PING_S = Number(process.env['WS_PING_INTERVAL_MS'] ?? 30_000) / 1_000;
