/* WebSocket receivers: many sockets in one process, every pushed item and deletion recorded.
 *
 *   receivers port=N,N sockets=FILE [kind=service|socketio|bare] [path=/ws] [hello=1|0|later] [reconnect=1] [opening=128]
 *     [spread=SECONDS] [wait=1] [source=0] [first=0]
 *
 * port: of one server or several (see read_ports).
 * sockets: lines of "token since host". kind: what is spoken inside: the service's frames, the reference's Socket.IO, or none.
 * source: sockets are opened from 127.0.(source + 1).1 and on. wait: nothing is opened before the command `open`.
 * spread: each socket is first opened at a random moment of this time; without it all come as fast as `opening` admits.
 * reconnect=1: what is closed, refused or not open within 20 s comes back as the SDK does (src/sdk/reconnecting-socket.ts):
 * at the time that the server names, else after a wait that doubles from a second to a minute. first: number of the first
 * line in the records.
 * Says {"event":"ready"} once all sockets are open and, with hello=1, caught up. Reads commands, a line each:
 *   open             with wait=1
 *   hello            with hello=later: sends every hello, says {"event":"replayed"} when all have caught up
 *   report FROM TO   counters, and latency of the items stamped in [FROM, TO) ns
 *   dump FILE        writes and forgets the records
 *   quit */
#include "bench.h"

#include <poll.h>

enum kind { SERVICE, SOCKETIO, BARE };
enum state { CLOSED, CONNECTING, UPGRADING, OPEN, LIVE };

struct receiver {
  int fd;
  uint8_t state, again, counted, tries;
  uint32_t have, room;
  uint32_t version;
  uint32_t due; /* ms; closed: the next attempt; opening: it has failed then; live: it counts as good from then on */
  char *kept; /* the beginning of a frame whose rest has not come; only while there is one */
};

static struct receiver *sockets;
static char **tokens, **hosts;
static uint32_t count, opened, opening, opening_most, live_count, next_to_open, reopened;
static int poll_fd, reconnect;
static enum kind kind;
static const char *path, *hello;
static struct records records;
static uint64_t pings, disorder, unstamped, others, rows;
static uint64_t hello_at, replayed_at, looked_at;
static int announced, replaying, waiting, source;
static uint64_t open_at, begun_at;
static uint32_t first, absent, spread_ms;
static uint64_t codes[5000]; /* how often a socket ended with a close code, or an upgrade with a status */
#define NO_CLOSE_FRAME 1006
#define OPEN_WITHIN_MS 20000
#define GOOD_AFTER_MS 10000
#define RESTART_SPREAD_MS 3000
#define BACKOFF_FIRST_MS 1000
#define BACKOFF_MOST_MS 60000
/* The HTTP library loses one upgrade in some (src/docs/dependencies.md); more than one in this many is a fault. */
#define UPGRADES 20000
#define INPUT (1u << 20)
static char input[INPUT];

static void read_sockets(const char *file) {
  FILE *f = fopen(file, "r");
  if (!f) die("cannot read %s", file);
  char *line = NULL;
  size_t size = 0, have = 0;
  while (getline(&line, &size, f) > 0) {
    if (count == have) {
      have = have ? have * 2 : 1024;
      sockets = room(sockets, have * sizeof *sockets);
      tokens = room(tokens, have * sizeof *tokens);
      hosts = room(hosts, have * sizeof *hosts);
    }
    char *token = strtok(line, " \n"), *since = strtok(NULL, " \n"), *host = strtok(NULL, " \n");
    memset(&sockets[count], 0, sizeof *sockets);
    sockets[count].fd = -1;
    sockets[count].version = since ? (uint32_t)atoi(since) : 0;
    hosts[count] = strdup(host ? host : "127.0.0.1");
    tokens[count++] = strdup(token ? token : "-");
  }
  free(line);
  fclose(f);
}

static void watch(uint32_t i, uint32_t events, int op) {
  struct epoll_event e = {.events = events, .data.u32 = i};
  if (epoll_ctl(poll_fd, op, sockets[i].fd, &e)) die("epoll_ctl: %s", strerror(errno));
}

/* A small masked text or pong frame. All fit the socket's empty send buffer. */
static void send_frame(struct receiver *r, int opcode, const char *payload, size_t length) {
  uint8_t out[2048], mask[4];
  uint32_t random = (uint32_t)prng_next();
  size_t at = 2;
  memcpy(mask, &random, 4);
  out[0] = (uint8_t)(0x80 | opcode);
  if (length < 126) {
    out[1] = (uint8_t)(0x80 | length);
  } else {
    out[1] = 0x80 | 126, out[2] = (uint8_t)(length >> 8), out[3] = (uint8_t)length;
    at = 4;
  }
  if (length > sizeof out - 8) die("frame too long");
  memcpy(out + at, mask, 4);
  at += 4;
  for (size_t i = 0; i < length; i++) out[at + i] = (uint8_t)payload[i] ^ mask[i & 3];
  ssize_t n = send(r->fd, out, at + length, MSG_NOSIGNAL);
  if (n >= 0 && (size_t)n != at + length) die("a send buffer was full");
}

static void send_text(struct receiver *r, const char *text) { send_frame(r, 1, text, strlen(text)); }

static void send_hello(struct receiver *r) {
  char text[96];
  snprintf(text, sizeof text, "{\"type\":\"hello\",\"since\":%u,\"acks\":false}", r->version);
  send_text(r, text);
}

static uint32_t now_ms(void) { return (uint32_t)((now_ns() - begun_at) / 1000000); }

static uint32_t random_below(uint32_t bound) { return bound ? (uint32_t)(prng_next() >> 33) % bound : 0; }

static void open_socket(uint32_t i) {
  struct receiver *r = &sockets[i];
  absent--;
  r->due = now_ms() + OPEN_WITHIN_MS;
  r->have = 0;
  r->state = CONNECTING;
  /* At most 9,000 sockets an address: connect() slows down badly past 14,000 ports per pair of addresses. */
  r->fd = dial(port_of(first + i), 1 + source + (int)(i / 9000));
  watch(i, EPOLLOUT | EPOLLIN, EPOLL_CTL_ADD);
  r->counted = 1;
  opening++;
}

/* The socket no longer counts towards those that are being opened. */
static void settled(struct receiver *r) {
  opening -= r->counted;
  r->counted = 0;
}

static void now_live(struct receiver *r) {
  if (r->state == LIVE) return;
  settled(r);
  r->state = LIVE;
  r->due = now_ms() + GOOD_AFTER_MS;
  live_count++;
}

/* When a socket comes back that ended with `code`. `after`: the seconds that the server named, 0: it named none. */
static uint32_t come_back(struct receiver *r, unsigned code, uint32_t after) {
  uint32_t now = now_ms();
  if (r->state == LIVE && now >= r->due) r->tries = 0;
  if (after > 0) return now + after * 1000 + random_below(after * 250 + 1000);
  if (code == 1012) return now + random_below(RESTART_SPREAD_MS);
  uint32_t most = BACKOFF_FIRST_MS << (r->tries < 6 ? r->tries : 6);
  if (most > BACKOFF_MOST_MS) most = BACKOFF_MOST_MS;
  if (r->tries < 6) r->tries++;
  return now + most / 2 + random_below(most / 2);
}

static void ended(uint32_t i, unsigned code, uint32_t after) {
  struct receiver *r = &sockets[i];
  if (r->state == CLOSED) return;
  int anew = code == NO_CLOSE_FRAME && r->counted && reopened++ * UPGRADES < count;
  if (!reconnect && !anew) die("socket %u was closed: %u", i, code);
  if (!reconnect) fprintf(stderr, "receivers: socket %u was closed as it was opened, and is opened again\n", first + i);
  r->due = come_back(r, code, after);
  if (r->state == LIVE) live_count--;
  settled(r);
  close(r->fd);
  free(r->kept);
  r->kept = NULL;
  r->have = r->room = 0;
  r->fd = -1;
  r->state = CLOSED;
  r->again = 1;
  absent++;
  codes[code < 5000 ? code : 4999]++;
}

static void lost(uint32_t i) { ended(i, NO_CLOSE_FRAME, 0); }

/* The number after `name`, 0 where it is absent. */
static uint32_t number_after(const char *p, size_t length, const char *name) {
  size_t n = strlen(name);
  const char *at = length < n ? NULL : memmem(p, length, name, n);
  uint32_t number = 0;
  for (at = at ? at + n : p + length; at < p + length && *at >= '0' && *at <= '9' && number < 100000; at++)
    number = number * 10 + (uint32_t)(*at - '0');
  return number;
}

/* A close frame; its reason may name when to come back. */
static void closed(uint32_t i, const char *p, size_t length) {
  unsigned code = length > 1 ? (unsigned)((uint8_t)p[0] << 8 | (uint8_t)p[1]) : NO_CLOSE_FRAME;
  ended(i, code, number_after(p, length, "retry-after="));
}

static void upgraded(struct receiver *r) {
  r->state = OPEN;
  if (kind == BARE || (kind == SERVICE && !strcmp(hello, "0"))) {
    now_live(r);
  } else if (kind == SERVICE && !strcmp(hello, "later")) {
    settled(r);
    opened++;
  } else if (kind == SERVICE) {
    send_hello(r);
  }
}

/* Records id and version of an item or a deletion; NULL: it has none. */
static struct record *record_row(uint32_t i, const char *p, size_t length) {
  struct receiver *r = &sockets[i];
  rows++;
  const char *id = memmem(p, length, "\"id\":\"", 6), *version = memmem(p, length, "\"version\":", 10);
  if (!id || !version) {
    unstamped++;
    return NULL;
  }
  uint32_t v = (uint32_t)strtoul(version + 10, NULL, 10);
  if (v <= r->version) disorder++;
  r->version = v;
  struct record *one = record_add(&records);
  one->who = first + i;
  one->version = v;
  one->flags = (r->state == LIVE ? 0u : 1u) | (r->again ? 2u : 0u);
  memcpy(one->id, id + 6, 26);
  return one;
}

/* An item frame of any of the three kinds, with the stamp at the front of its ciphertext. A deletion has none. */
static void item(uint32_t i, const char *p, size_t length) {
  struct record *one = record_row(i, p, length);
  if (!one) return;
  const char *envelope = memmem(p, length, "\"payloadEnc\":{", 14);
  const char *ct = envelope ? memmem(envelope, length - (size_t)(envelope - p), "\"ct\":\"", 6) : NULL;
  uint64_t now = now_ns(), stamp = ct ? stamp_read(ct + 6) : 0;
  if (!stamp) unstamped++;
  one->stamp = stamp;
  one->latency_ns = clamp_ns(now > stamp ? now - stamp : 0);
}

static int starts(const char *p, size_t length, const char *with) {
  size_t n = strlen(with);
  return length >= n && !memcmp(p, with, n);
}

static void service_text(uint32_t i, const char *p, size_t length) {
  struct receiver *r = &sockets[i];
  if (starts(p, length, "{\"type\":\"item\"")) {
    item(i, p, length);
  } else if (starts(p, length, "{\"type\":\"delete\"")) {
    record_row(i, p, length);
  } else if (starts(p, length, "{\"type\":\"ping\"")) {
    pings++;
    send_text(r, "{\"type\":\"pong\"}");
  } else if (starts(p, length, "{\"type\":\"caught_up\"")) {
    now_live(r);
  } else {
    if (others++ < 3) fprintf(stderr, "receivers: %.*s\n", (int)(length < 300 ? length : 300), p);
  }
}

/* Engine.IO: 0 open, 2 ping, 4 message; Socket.IO inside a message: 0 connect, 2 event. */
static void socketio_text(uint32_t i, const char *p, size_t length) {
  struct receiver *r = &sockets[i];
  if (p[0] == '0') {
    char text[1024];
    snprintf(text, sizeof text, "40{\"token\":\"%s\"}", tokens[i]);
    send_text(r, text);
  } else if (p[0] == '2') {
    pings++;
    send_text(r, "3");
  } else if (starts(p, length, "40")) {
    now_live(r);
  } else if (starts(p, length, "42")) {
    item(i, p, length);
  } else {
    if (others++ < 3) fprintf(stderr, "receivers: %.*s\n", (int)(length < 300 ? length : 300), p);
  }
}

static void frame(uint32_t i, int opcode, const char *p, size_t length) {
  if (opcode == 9) send_frame(&sockets[i], 10, p, length), pings++;
  else if (opcode == 8) closed(i, p, length);
  else if (opcode != 1 || length == 0) others++;
  else if (kind == SOCKETIO) socketio_text(i, p, length);
  else if (kind == SERVICE) service_text(i, p, length);
  else item(i, p, length);
}

/* Takes every whole frame from `p`; returns how many bytes it took. Servers do not mask, and ours do not fragment. */
static size_t take_frames(uint32_t i, const char *p, size_t have) {
  size_t at = 0;
  for (;;) {
    const uint8_t *h = (const uint8_t *)p + at;
    size_t left = have - at, head = 2, length;
    if (left < 2) return at;
    length = h[1] & 127;
    if (h[1] & 128 || !(h[0] & 128)) die("a masked or fragmented frame");
    if (length == 126) {
      if (left < (head = 4)) return at;
      length = (size_t)h[2] << 8 | h[3];
    } else if (length == 127) {
      if (left < (head = 10)) return at;
      length = 0;
      for (int k = 2; k < 10; k++) length = length << 8 | h[k];
    }
    if (left < head + length) return at;
    frame(i, h[0] & 15, p + at + head, length);
    at += head + length;
    if (sockets[i].state == CLOSED) return have;
  }
}

static size_t take_upgrade(uint32_t i, const char *p, size_t have) {
  const char *end = memmem(p, have, "\r\n\r\n", 4);
  if (!end) return 0;
  if (have < 12 || memcmp(p + 9, "101", 3)) {
    if (!reconnect) die("upgrade refused: %.*s", (int)have, p);
    ended(i, have < 12 ? NO_CLOSE_FRAME : (unsigned)atoi(p + 9), number_after(p, (size_t)(end - p), "etry-After: "));
    return have;
  }
  upgraded(&sockets[i]);
  size_t head = (size_t)(end + 4 - p);
  return head + take_frames(i, p + head, have - head);
}

static void take_in(uint32_t i) {
  struct receiver *r = &sockets[i];
  uint32_t kept = r->have;
  if (kept) memcpy(input, r->kept, kept);
  ssize_t n = recv(r->fd, input + kept, INPUT - kept, 0);
  if (n < 0 && errno == EAGAIN) return;
  if (n <= 0) {
    lost(i);
    return;
  }
  size_t have = kept + (size_t)n;
  size_t took = r->state == UPGRADING ? take_upgrade(i, input, have) : take_frames(i, input, have);
  if (r->state == CLOSED) return;
  uint32_t left = (uint32_t)(have - took);
  if (left > r->room) r->kept = room(r->kept, r->room = left + 4096);
  if (left) memcpy(r->kept, input + took, left);
  else if (r->room) free(r->kept), r->kept = NULL, r->room = 0;
  r->have = left;
}

static void ready(uint32_t i, uint32_t events) {
  struct receiver *r = &sockets[i];
  if (events & (EPOLLERR | EPOLLHUP)) {
    lost(i);
  } else if (r->state == CONNECTING) {
    char out[2048];
    int n = snprintf(out, sizeof out,
                     "GET %s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                     "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
                     "Authorization: Bearer %s\r\n\r\n",
                     path, hosts[i], tokens[i]);
    r->state = UPGRADING;
    watch(i, EPOLLIN, EPOLL_CTL_MOD);
    if (send(r->fd, out, (size_t)n, MSG_NOSIGNAL) != n) lost(i);
  } else {
    take_in(i);
  }
}

static void print_codes(void) {
  printf("\"codes\":{");
  for (unsigned code = 0, any = 0; code < 5000; code++)
    if (codes[code]) printf("%s\"%u\":%llu", any++ ? "," : "", code, (unsigned long long)codes[code]);
  printf("},");
}

static void report(uint64_t from, uint64_t to) {
  printf("{\"event\":\"report\",\"live\":%u,\"pings\":%llu,\"disorder\":%llu,\"unstamped\":%llu,\"recorded\":%zu,",
         live_count, (unsigned long long)pings, (unsigned long long)disorder, (unsigned long long)unstamped,
         records.count);
  print_codes();
  print_latency(&records, from, to);
  puts("}");
}

static void command(char *line) {
  char *word = strtok(line, " \n"), *one = strtok(NULL, " \n"), *two = strtok(NULL, " \n");
  if (!word || !strcmp(word, "quit")) exit(0);
  if (!strcmp(word, "report") && one && two) {
    report(strtoull(one, NULL, 10), strtoull(two, NULL, 10));
  } else if (!strcmp(word, "dump") && one) {
    records_write(&records, one);
    puts("{\"event\":\"dumped\"}");
    records.count = 0;
  } else if (!strcmp(word, "open")) {
    waiting = 0;
    open_at = now_ns();
    for (uint32_t i = 0; i < count && spread_ms; i++) sockets[i].due = now_ms() + random_below(spread_ms);
  } else if (!strcmp(word, "hello")) {
    replaying = 1;
    hello_at = now_ns();
    for (uint32_t i = 0; i < count; i++) send_hello(&sockets[i]);
  } else {
    die("unknown command %s", word);
  }
  fflush(stdout);
}

static void commands(void) {
  static char text[4096];
  static size_t have;
  ssize_t n = read(0, text + have, sizeof text - have - 1);
  if (n <= 0) exit(0);
  have += (size_t)n;
  for (char *end; (end = memchr(text, '\n', have));) {
    *end = 0;
    size_t used = (size_t)(end + 1 - text);
    command(text);
    memmove(text, text + used, have -= used);
  }
}

/* Opens what is due, and gives up what takes too long. Looks at every socket, so ten times a second. */
static void look(void) {
  uint32_t now = now_ms();
  for (uint32_t i = 0; i < count; i++) {
    const struct receiver *r = &sockets[i];
    if (r->state == LIVE || r->due > now) continue;
    if (r->state != CLOSED && r->counted) lost(i);
    else if (r->state == CLOSED && opening < opening_most) open_socket(i);
  }
}

static void open_more(uint64_t now) {
  if (waiting) return;
  while (!spread_ms && next_to_open < count && opening < opening_most) open_socket(next_to_open++);
  if ((!spread_ms && next_to_open < count) || !(reconnect || spread_ms || reopened) || absent + opening == 0) return;
  if (now - looked_at < 100000000ull) return;
  looked_at = now;
  look();
}

static void announce(void) {
  uint32_t there = !strcmp(hello, "later") && kind == SERVICE ? opened : live_count;
  if (!announced && there == count) {
    announced = 1;
    /* As text: a double does not hold so many ns. */
    printf("{\"event\":\"ready\",\"from\":\"%llu\",\"to\":\"%llu\"}\n", (unsigned long long)open_at,
           (unsigned long long)now_ns());
    fflush(stdout);
  }
  if (replaying && !replayed_at && live_count == count) {
    replayed_at = now_ns();
    printf("{\"event\":\"replayed\",\"seconds\":%.6f,\"rows\":%llu}\n", (double)(replayed_at - hello_at) / 1e9,
           (unsigned long long)rows);
    fflush(stdout);
  }
}

int main(int argc, char **argv) {
  prng_seed();
  read_ports(option(argc, argv, "port", NULL));
  path = option(argc, argv, "path", "/ws");
  hello = option(argc, argv, "hello", "1");
  reconnect = atoi(option(argc, argv, "reconnect", "0"));
  waiting = atoi(option(argc, argv, "wait", "0"));
  source = atoi(option(argc, argv, "source", "0"));
  opening_most = (uint32_t)atoi(option(argc, argv, "opening", "128"));
  first = (uint32_t)atoi(option(argc, argv, "first", "0"));
  spread_ms = (uint32_t)(atof(option(argc, argv, "spread", "0")) * 1000);
  begun_at = now_ns();
  const char *spoken = option(argc, argv, "kind", "service");
  kind = !strcmp(spoken, "service") ? SERVICE : !strcmp(spoken, "socketio") ? SOCKETIO : BARE;
  read_sockets(option(argc, argv, "sockets", NULL));
  absent = count;
  if (spread_ms && !waiting) die("spread= takes wait=1");
  poll_fd = epoll_create1(0);
  struct epoll_event keys = {.events = EPOLLIN, .data.u32 = UINT32_MAX}, events[512];
  epoll_ctl(poll_fd, EPOLL_CTL_ADD, 0, &keys);
  for (;;) {
    open_more(now_ns());
    int n = epoll_wait(poll_fd, events, 512, absent + opening > 0 ? 20 : 1000);
    for (int k = 0; k < n; k++) {
      if (events[k].data.u32 == UINT32_MAX) commands();
      else if (sockets[events[k].data.u32].state != CLOSED) ready(events[k].data.u32, events[k].events);
    }
    announce();
  }
}
