/* HTTP writers: keep-alive connections that POST item writes, each answer awaited before its connection's next.
 *
 *   writers port=N,N plan=FILE connections=N seconds=S [warmup=S] [rate=R] [retry=1] [path=/api/items] out=FILE
 *
 * port: of one server or several (see read_ports); the number of connections is a multiple of theirs.
 * plan: lines of "token host deviceId keyDevice,keyDevice,..."; connection c writes with lines c, c+N, c+2N, ... in turn.
 * Without rate: closed loop. With rate: open loop, arrivals by a Poisson schedule; the stamp is the scheduled time,
 * so that waiting for a free connection counts as latency.
 * retry=1: what got no answer, or another than 200, is sent again unchanged until it is answered with 200.
 * A connection that a server closes while nothing is under way on it is opened anew; one that is closed before its answer
 * is a fault, but with retry=1.
 * Says on stdout, a JSON line each: {"event":"window"}, {"event":"end"}, {"event":"result", ...}. */
#include "bench.h"

#include <ctype.h>
#include <math.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>

struct credential {
  char *request;
  uint32_t length, id, ts, ct, nonce, master, sig;
};

enum state { OPENING, IDLE, WAITING, SENDING, RESTING };

struct connection {
  int fd;
  enum state state;
  uint32_t credential; /* whose turn it is */
  uint32_t sent, have;
  uint64_t stamp, until;
  uint64_t idle_since;
  int again; /* the request in `credential` is unanswered and goes out once more, unchanged */
  char in[8192];
};

static struct credential *credentials;
static uint32_t credential_count, connection_count;
static struct connection *connections;
static struct connection **idle;
static uint32_t idle_count;
static int poll_fd, retry;
static struct records acked;
static uint64_t begin_at, window_from, window_to, failed_count, status_count[600];
static double mean_gap_ns;
static uint64_t *due; /* ring of scheduled times that wait for a free connection */
static uint32_t due_head, due_tail;
#define DUE_ROOM (1u << 20)
#define CT_BYTES 768
/* Servers close what was idle for 8 to 12 s (uWebSockets.js). A connection that is close to it is not used again but opened
 * anew: a request that crosses the close would be lost. */
#define IDLE_MOST_NS 6000000000ull

static char *append(char *at, const char *format, ...) {
  va_list args;
  va_start(args, format);
  at += vsprintf(at, format, args);
  va_end(args);
  return at;
}

static char *append_random(char *at, size_t bytes) {
  random_base64(at, bytes);
  return at + base64_chars(bytes);
}

/* The whole request of one device; only id, ts and the random fields change from write to write. */
static void make_request(struct credential *c, const char *path, char *line) {
  char *token = strtok(line, " \n"), *host = strtok(NULL, " \n");
  char *device = strtok(NULL, " \n"), *keys = strtok(NULL, " \n");
  if (!token || !host || !device || !keys) die("bad plan line");
  char *body = room(NULL, base64_chars(CT_BYTES) + strlen(keys) * 6 + 4096), *at = body;
  at = append(at, "{\"id\":\"");
  uint32_t id = (uint32_t)(at - body);
  at = append(at, "%26s\",\"binId\":\"inbox\",\"type\":\"text\",\"ts\":", "");
  uint32_t ts = (uint32_t)(at - body);
  at = append(at, "%13s,\"payloadEnc\":{\"ct\":\"", "");
  uint32_t ct = (uint32_t)(at - body);
  at = append_random(at, CT_BYTES);
  at = append(at, "\",\"nonce\":\"");
  uint32_t nonce = (uint32_t)(at - body);
  at = append_random(at, 24);
  at = append(at, "\",\"keys\":{");
  int first = 1;
  for (char *key = strtok(keys, ","); key; key = strtok(NULL, ","), first = 0) {
    at = append(at, "%s\"%s\":\"", first ? "" : ",", key);
    at = append_random(at, 80);
    at = append(at, "\"");
  }
  at = append(at, "},\"master\":{\"nonce\":\"");
  uint32_t master = (uint32_t)(at - body);
  at = append_random(at, 24);
  at = append(at, "\",\"ct\":\"");
  at = append_random(at, 48);
  at = append(at, "\"},\"sig\":\"");
  uint32_t sig = (uint32_t)(at - body);
  at = append_random(at, 32);
  at = append(at, "\"}}");

  size_t body_length = (size_t)(at - body);
  c->request = room(NULL, body_length + strlen(token) + strlen(host) + 512);
  at = append(c->request,
              "POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"
              "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
              path, host, token, body_length);
  uint32_t head = (uint32_t)(at - c->request);
  memcpy(at, body, body_length);
  free(body);
  c->length = head + (uint32_t)body_length;
  c->id = head + id, c->ts = head + ts, c->ct = head + ct, c->nonce = head + nonce;
  c->master = head + master, c->sig = head + sig;
}

static void read_plan(const char *file, const char *path) {
  FILE *f = fopen(file, "r");
  if (!f) die("cannot read %s", file);
  char *line = NULL;
  size_t size = 0, have = 0;
  while (getline(&line, &size, f) > 0) {
    if (credential_count == have) credentials = room(credentials, (have = have ? have * 2 : 1024) * sizeof *credentials);
    make_request(&credentials[credential_count++], path, line);
  }
  free(line);
  fclose(f);
  if (credential_count < connection_count) die("more connections than plan lines");
}

static void watch(struct connection *c, uint32_t events, int op) {
  struct epoll_event e = {.events = events, .data.ptr = c};
  if (epoll_ctl(poll_fd, op, c->fd, &e)) die("epoll_ctl: %s", strerror(errno));
}

static void open_connection(struct connection *c) {
  c->state = OPENING;
  c->have = 0;
  c->fd = dial(port_of((uint32_t)(c - connections)), 0);
  watch(c, EPOLLIN | EPOLLOUT, EPOLL_CTL_ADD);
}

static void push_out(struct connection *c) {
  const struct credential *who = &credentials[c->credential];
  ssize_t n = send(c->fd, who->request + c->sent, who->length - c->sent, MSG_NOSIGNAL);
  if (n > 0) c->sent += (uint32_t)n;
  /* An error shows up as a hang-up on the next poll. */
  enum state next = c->sent == who->length ? WAITING : SENDING;
  if (next != c->state && (next == SENDING || c->state == SENDING))
    watch(c, next == SENDING ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD);
  c->state = next;
}

static void send_write(struct connection *c, uint64_t stamp) {
  struct credential *who = &credentials[c->credential];
  if (!c->again) {
    char *r = who->request, ts[14];
    uint64_t ms = wall_ms();
    c->stamp = stamp;
    random_ulid(r + who->id, ms);
    snprintf(ts, sizeof ts, "%013llu", (unsigned long long)ms);
    memcpy(r + who->ts, ts, 13);
    random_base64(r + who->ct, CT_BYTES);
    stamp_write(r + who->ct, stamp);
    random_base64(r + who->nonce, 24);
    random_base64(r + who->master, 24);
    random_base64(r + who->sig, 32);
  }
  c->again = retry;
  c->sent = 0;
  push_out(c);
}

/* The next thing for a connection with nothing under way. */
static void next_write(struct connection *c) {
  if (c->again) {
    send_write(c, c->stamp);
  } else if (mean_gap_ns > 0) {
    if (due_head != due_tail) send_write(c, due[due_head++ % DUE_ROOM]);
    else c->state = IDLE, c->idle_since = now_ns(), idle[idle_count++] = c;
  } else if (now_ns() < window_to) {
    send_write(c, now_ns());
  } else {
    c->state = IDLE;
  }
}

/* Closes, and opens again 50 ms later: see wake_resting. */
static void rest(struct connection *c) {
  close(c->fd);
  c->state = RESTING;
  c->until = now_ns() + 50000000ull;
}

/* Takes an idle connection off the list, wherever it stands there. */
static void not_idle(const struct connection *c) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < idle_count; i++)
    if (idle[i] != c) idle[kept++] = idle[i];
  idle_count = kept;
}

static void reopen(struct connection *c) {
  close(c->fd);
  open_connection(c);
}

static void lose(struct connection *c) {
  int was_idle = c->state == IDLE;
  if (was_idle) not_idle(c);
  if (!retry && was_idle) {
    reopen(c);
    return;
  }
  if (!retry) die("a connection was lost");
  failed_count++;
  rest(c);
}

/* Length of the whole answer in `in`, 0 when it is not all there yet. */
static uint32_t answer_length(const struct connection *c, const char **body) {
  const char *end = memmem(c->in, c->have, "\r\n\r\n", 4);
  if (!end) return 0;
  uint32_t length = 0;
  for (const char *p = c->in; p < end; p = (const char *)memchr(p, '\n', (size_t)(end + 2 - p)) + 1)
    if (!strncasecmp(p, "content-length:", 15)) length = (uint32_t)strtoul(p + 15, NULL, 10);
  *body = end + 4;
  uint32_t whole = (uint32_t)(end + 4 - c->in) + length;
  return c->have >= whole ? whole : 0;
}

/* On to the connection's next line. Lines stay with their connection, so that no two ever share a request buffer. */
static void turn(struct connection *c) {
  c->have = 0;
  c->again = 0;
  c->credential += connection_count;
  if (c->credential >= credential_count) c->credential %= connection_count;
}

static void answered(struct connection *c, const char *body, const char *end) {
  unsigned status = (unsigned)strtoul(c->in + 9, NULL, 10);
  status_count[status < 600 ? status : 599]++;
  const char *version = memmem(body, (size_t)(end - body), "\"version\":", 10);
  if (status != 200 || !version) {
    if (status_count[status < 600 ? status : 599] == 1)
      fprintf(stderr, "writers: %u %.*s\n", status, (int)(end - body), body);
    failed_count++;
    if (retry) {
      rest(c);
    } else {
      turn(c);
      next_write(c);
    }
    return;
  }
  struct record *r = record_add(&acked);
  r->stamp = c->stamp;
  r->latency_ns = clamp_ns(now_ns() - c->stamp);
  r->who = c->credential;
  r->version = (uint32_t)strtoul(version + 10, NULL, 10);
  memcpy(r->id, credentials[c->credential].request + credentials[c->credential].id, 26);
  turn(c);
  next_write(c);
}

static void take_in(struct connection *c) {
  ssize_t n = recv(c->fd, c->in + c->have, sizeof c->in - c->have, 0);
  if (n < 0 && errno == EAGAIN) return;
  if (n <= 0 || c->have + (uint32_t)n >= sizeof c->in) {
    lose(c);
    return;
  }
  c->have += (uint32_t)n;
  const char *body;
  uint32_t whole = answer_length(c, &body);
  if (whole) answered(c, body, c->in + whole);
}

static void ready(struct connection *c, uint32_t events) {
  if (events & (EPOLLERR | EPOLLHUP)) {
    lose(c);
  } else if (c->state == OPENING) {
    watch(c, EPOLLIN, EPOLL_CTL_MOD);
    next_write(c);
  } else {
    if (c->state == SENDING && events & EPOLLOUT) push_out(c);
    if (events & EPOLLIN) take_in(c);
  }
}

/* Opens anew what has rested after a failure. */
static void wake_resting(uint64_t now) {
  for (uint32_t i = 0; i < connection_count; i++) {
    struct connection *c = &connections[i];
    if (c->state != RESTING || c->until > now) continue;
    open_connection(c);
  }
}

static uint64_t gap(void) {
  double u = (double)((prng_next() >> 11) + 1) / 9007199254740993.0;
  return (uint64_t)(-log(u) * mean_gap_ns);
}

static void arm(int timer, uint64_t at) {
  struct itimerspec t = {.it_value = {(time_t)(at / 1000000000ull), (long)(at % 1000000000ull)}};
  timerfd_settime(timer, TFD_TIMER_ABSTIME, &t, NULL);
}

/* Hands every arrival that is due to a free connection, oldest first. Returns the next arrival's time. */
static uint64_t arrivals(uint64_t next, uint64_t now) {
  for (; next <= now && next < window_to; next += gap()) due[due_tail++ % DUE_ROOM] = next;
  if (due_tail - due_head > DUE_ROOM) die("the server fell hopelessly behind the schedule");
  while (due_head != due_tail && idle_count) {
    struct connection *c = idle[--idle_count];
    if (now - c->idle_since < IDLE_MOST_NS || c->idle_since > now) send_write(c, due[due_head++ % DUE_ROOM]);
    else reopen(c);
  }
  return next;
}

static int finished(void) {
  for (uint32_t i = 0; i < connection_count; i++)
    if (connections[i].state != IDLE) return 0;
  return 1;
}

static void run(void) {
  int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), announced = 0;
  struct epoll_event tick = {.events = EPOLLIN, .data.ptr = NULL}, events[512];
  epoll_ctl(poll_fd, EPOLL_CTL_ADD, timer, &tick);
  uint64_t next = begin_at, checked = 0;
  for (;;) {
    uint64_t now = now_ns();
    if (announced == 0 && now >= window_from) announced = 1, puts("{\"event\":\"window\"}"), fflush(stdout);
    if (announced == 1 && now >= window_to) announced = 2, puts("{\"event\":\"end\"}"), fflush(stdout);
    if (mean_gap_ns > 0 && (next = arrivals(next, now)) < window_to) arm(timer, next);
    if (announced == 2 && due_head == due_tail && finished()) return;
    if (now > window_to + 60000000000ull) die("writes were still unanswered a minute after the end");
    if (retry && now - checked > 10000000ull) wake_resting(checked = now);
    int n = epoll_wait(poll_fd, events, 512, 10);
    for (int i = 0; i < n; i++) {
      uint64_t expirations;
      if (events[i].data.ptr) ready(events[i].data.ptr, events[i].events);
      else if (read(timer, &expirations, sizeof expirations) < 0 && errno != EAGAIN) die("timer");
    }
  }
}

static void report(void) {
  size_t inside = 0;
  for (size_t i = 0; i < acked.count; i++) {
    uint64_t at = acked.all[i].stamp + acked.all[i].latency_ns;
    inside += at >= window_from && at < window_to;
  }
  uint64_t others = 0;
  for (int i = 0; i < 600; i++) others += i == 200 ? 0 : status_count[i];
  if (connection_count % port_count) die("connections must be a multiple of the ports");
  double seconds = (double)(window_to - window_from) / 1e9;
  printf("{\"event\":\"result\",\"from\":\"%llu\",\"to\":\"%llu\",\"acked\":%zu,\"inWindow\":%zu,\"perSecond\":%.1f,"
         "\"refused\":%llu,\"failed\":%llu,",
         (unsigned long long)window_from, (unsigned long long)window_to, acked.count, inside, (double)inside / seconds,
         (unsigned long long)others, (unsigned long long)failed_count);
  print_latency(&acked, window_from, window_to);
  puts("}");
}

int main(int argc, char **argv) {
  prctl(PR_SET_TIMERSLACK, 1UL, 0, 0, 0);
  prng_seed();
  read_ports(option(argc, argv, "port", NULL));
  connection_count = (uint32_t)atoi(option(argc, argv, "connections", NULL));
  double seconds = atof(option(argc, argv, "seconds", NULL)), warmup = atof(option(argc, argv, "warmup", "1"));
  double rate = atof(option(argc, argv, "rate", "0"));
  retry = atoi(option(argc, argv, "retry", "0"));
  read_plan(option(argc, argv, "plan", NULL), option(argc, argv, "path", "/api/items"));
  mean_gap_ns = rate > 0 ? 1e9 / rate : 0;
  due = room(NULL, DUE_ROOM * sizeof *due);
  poll_fd = epoll_create1(0);
  connections = calloc(connection_count, sizeof *connections);
  idle = calloc(connection_count, sizeof *idle);
  begin_at = now_ns();
  window_from = begin_at + (uint64_t)(warmup * 1e9);
  window_to = window_from + (uint64_t)(seconds * 1e9);
  for (uint32_t i = 0; i < connection_count; i++) {
    connections[i].credential = i;
    open_connection(&connections[i]);
  }
  run();
  records_write(&acked, option(argc, argv, "out", NULL));
  report();
  return 0;
}
