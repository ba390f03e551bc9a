/** The receivers in Node, for machines without a compiler: same options and lines as native/receivers.c. */
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { WebSocket } from 'ws';
import { option, say } from '../reference/say.js';
import { Log, stampOf } from './records.js';

const port = Number(option('port'));
const path = option('path', '/ws');
const kind = option('kind', 'service');
const hello = option('hello', '1');
const reconnect = option('reconnect', '0') === '1';
const openingMost = Number(option('opening', '128'));
const PER_ADDRESS = 9_000;
const RETRY_MS = 100;

interface Socket {
  readonly token: string;
  readonly host: string;
  version: number;
  ws: WebSocket | undefined;
  live: boolean;
  opening: boolean;
  again: boolean;
}

const sockets: Socket[] = readFileSync(option('sockets'), 'utf8')
  .trim()
  .split('\n')
  .map((line) => {
    const [token = '', since = '0', host = ''] = line.split(' ');
    return { token, host, version: Number(since), ws: undefined, live: false, opening: false, again: false };
  });
const log = new Log();
const counts = { rows: 0, pings: 0, disorder: 0, unstamped: 0 };
let live = 0;
let opened = 0;
let opening = 0;
let next = 0;
let announced = false;
let helloAt = 0;
let replayed = false;

function announce(): void {
  const later = kind === 'service' && hello === 'later';
  if (!announced && (later ? opened : live) === sockets.length) {
    announced = true;
    say({ event: 'ready' });
  }
  if (helloAt > 0 && !replayed && live === sockets.length) {
    replayed = true;
    say({ event: 'replayed', seconds: (performance.now() - helloAt) / 1000, rows: counts.rows });
  }
}

function settled(socket: Socket): void {
  if (!socket.opening) return;
  socket.opening = false;
  opening--;
  openMore();
}

function nowLive(socket: Socket): void {
  if (socket.live) return;
  socket.live = true;
  live++;
  settled(socket);
  announce();
}

const sendHello = (socket: Socket): void => {
  socket.ws?.send(JSON.stringify({ type: 'hello', since: socket.version, acks: false }));
};

function item(who: number, socket: Socket, text: string): void {
  const stamp = stampOf(/"payloadEnc":\{.*?"ct":"([^"]{16})/.exec(text)?.[1] ?? '');
  if (stamp === 0n) counts.unstamped++;
  record(who, socket, { text, stamp, latencyNs: Number(process.hrtime.bigint() - stamp) });
}

interface Received {
  readonly text: string;
  readonly stamp: bigint;
  readonly latencyNs: number;
}

function record(who: number, socket: Socket, { text, stamp, latencyNs }: Received): void {
  counts.rows++;
  const id = /"id":"([^"]{26})"/.exec(text)?.[1];
  const version = Number(/"version":(\d+)/.exec(text)?.[1]);
  if (id === undefined || !(version > socket.version)) counts.disorder++;
  socket.version = version;
  const flags = (socket.live ? 0 : 1) | (socket.again ? 2 : 0);
  log.entries.push({ stamp, latencyNs, who, version, flags, id: id ?? '' });
}

function serviceText(who: number, socket: Socket, text: string): void {
  if (text.startsWith('{"type":"item"')) {
    item(who, socket, text);
  } else if (text.startsWith('{"type":"delete"')) {
    // It has no stamp, so its latency is unknown.
    record(who, socket, { text, stamp: 0n, latencyNs: 0 });
  } else if (text.startsWith('{"type":"ping"')) {
    counts.pings++;
    socket.ws?.send('{"type":"pong"}');
  } else if (text.startsWith('{"type":"caught_up"')) {
    nowLive(socket);
  }
}

function socketIoText(who: number, socket: Socket, text: string): void {
  if (text.startsWith('0')) {
    socket.ws?.send(`40${JSON.stringify({ token: socket.token })}`);
  } else if (text.startsWith('2')) {
    counts.pings++;
    socket.ws?.send('3');
  } else if (text.startsWith('40')) {
    nowLive(socket);
  } else if (text.startsWith('42')) {
    item(who, socket, text);
  }
}

function heard(who: number, socket: Socket, text: string): void {
  if (kind === 'service') serviceText(who, socket, text);
  else if (kind === 'socketio') socketIoText(who, socket, text);
  else item(who, socket, text);
}

function upgraded(socket: Socket): void {
  if (kind === 'bare' || (kind === 'service' && hello === '0')) {
    nowLive(socket);
  } else if (kind === 'service' && hello === 'later') {
    opened++;
    settled(socket);
    announce();
  } else if (kind === 'service') {
    sendHello(socket);
  }
}

function open(who: number, socket: Socket): void {
  socket.opening = true;
  opening++;
  const ws = new WebSocket(`ws://127.0.0.1:${port}${path}`, {
    headers: { host: socket.host, authorization: `Bearer ${socket.token}` },
    localAddress: `127.0.${1 + Math.floor(who / PER_ADDRESS)}.1`,
    perMessageDeflate: false,
  });
  socket.ws = ws;
  ws.on('open', () => upgraded(socket));
  ws.on('message', (data: Buffer) => heard(who, socket, data.toString('latin1')));
  ws.on('error', (error) => {
    if (!reconnect) throw error;
  });
  ws.on('close', () => {
    if (!reconnect) throw new Error(`socket ${who} was closed`);
    if (socket.live) live--;
    socket.live = false;
    socket.again = true;
    settled(socket);
    setTimeout(() => open(who, socket), RETRY_MS);
  });
}

function openMore(): void {
  while (next < sockets.length && opening < openingMost) {
    const who = next++;
    const socket = sockets[who];
    if (socket) open(who, socket);
  }
}

function command(line: string): void {
  const [word, one = '0', two = '0'] = line.split(' ');
  if (word === 'quit') process.exit(0);
  if (word === 'report') {
    const latency = log.latency(BigInt(one), BigInt(two));
    say({ event: 'report', live, ...counts, recorded: log.entries.length, ...latency });
  } else if (word === 'dump') {
    log.write(one);
    say({ event: 'dumped' });
    log.entries = [];
  } else if (word === 'hello') {
    helloAt = performance.now();
    sockets.forEach(sendHello);
  } else {
    throw new Error(`unknown command ${line}`);
  }
}

createInterface({ input: process.stdin })
  .on('line', command)
  .on('close', () => process.exit(0));
openMore();
