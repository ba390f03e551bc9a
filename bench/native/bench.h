/* What both drivers share: time, options (key=value), random base64url text, records, percentiles. */
#ifndef BENCH_H
#define BENCH_H
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* A stamp is 12 bytes at the front of the ciphertext: 8 of CLOCK_MONOTONIC in ns, then these 4. 12 bytes are 16
 * characters of base64, so the rest of the text is not disturbed. */
#define STAMP_CHARS 16
#define STAMP_MAGIC 0x48434e42u

/* One line of a driver's log, written as it lies in memory. The audit reads it: see audit.ts. */
struct record {
  uint64_t stamp;      /* ns */
  uint32_t latency_ns; /* saturates at 4.29 s */
  uint32_t who;        /* writers: line of the plan; receivers: line of the sockets file */
  uint32_t version;
  uint32_t flags; /* receivers: 1 before caught_up, 2 after a reconnect */
  char id[26];
  char pad[6];
};

struct records {
  struct record *all;
  size_t count, room;
};

static inline uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline uint64_t wall_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (uint64_t)t.tv_sec * 1000ull + (uint64_t)t.tv_nsec / 1000000ull;
}

__attribute__((noreturn, format(printf, 1, 2))) static inline void die(const char *format, ...) {
  va_list args;
  va_start(args, format);
  vfprintf(stderr, format, args);
  va_end(args);
  fputc('\n', stderr);
  exit(2);
}

static inline const char *option(int argc, char **argv, const char *name, const char *otherwise) {
  size_t length = strlen(name);
  for (int i = 1; i < argc; i++)
    if (!strncmp(argv[i], name, length) && argv[i][length] == '=') return argv[i] + length + 1;
  if (!otherwise) die("missing %s=", name);
  return otherwise;
}

static inline void *room(void *old, size_t bytes) {
  void *p = realloc(old, bytes);
  if (!p) die("out of memory");
  return p;
}

static inline struct record *record_add(struct records *r) {
  if (r->count == r->room) {
    r->room = r->room ? r->room * 2 : 65536;
    r->all = room(r->all, r->room * sizeof(struct record));
  }
  struct record *one = &r->all[r->count++];
  memset(one, 0, sizeof *one);
  return one;
}

static inline void records_write(const struct records *r, const char *path) {
  FILE *f = fopen(path, "wb");
  if (!f || fwrite(r->all, sizeof(struct record), r->count, f) != r->count || fclose(f)) die("cannot write %s", path);
}

/* xoshiro256+: only opacity to compression matters here, not secrecy. */
static uint64_t prng[4];
static inline void prng_seed(void) {
  if (getrandom(prng, sizeof prng, 0) != sizeof prng) die("getrandom");
}
static inline uint64_t prng_next(void) {
  uint64_t out = prng[0] + prng[3], t = prng[1] << 17;
  prng[2] ^= prng[0];
  prng[3] ^= prng[1];
  prng[1] ^= prng[2];
  prng[0] ^= prng[3];
  prng[2] ^= t;
  prng[3] = (prng[3] << 45) | (prng[3] >> 19);
  return out;
}

static const char BASE64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
static const char CROCKFORD[] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/* Characters that `bytes` bytes take in base64url without padding. */
static inline size_t base64_chars(size_t bytes) { return (bytes * 4 + 2) / 3; }

/* Random base64url text of `bytes` bytes; unused bits of the last character are zero, as an encoder leaves them. */
static inline void random_base64(char *out, size_t bytes) {
  size_t chars = base64_chars(bytes);
  uint64_t bits = 0;
  for (size_t i = 0; i < chars; i++) {
    if (i % 10 == 0) bits = prng_next();
    out[i] = BASE64[bits & 63];
    bits >>= 6;
  }
  if (bytes % 3) out[chars - 1] = BASE64[(prng_next() & 63) & (bytes % 3 == 1 ? 0x30 : 0x3c)];
}

static inline void random_ulid(char *out, uint64_t ms) {
  for (int i = 9; i >= 0; i--, ms >>= 5) out[i] = CROCKFORD[ms & 31];
  uint64_t a = prng_next(), b = prng_next();
  for (int i = 10; i < 18; i++, a >>= 5) out[i] = CROCKFORD[a & 31];
  for (int i = 18; i < 26; i++, b >>= 5) out[i] = CROCKFORD[b & 31];
}

static inline void stamp_write(char *out, uint64_t ns) {
  uint8_t raw[12];
  uint32_t magic = STAMP_MAGIC;
  memcpy(raw, &ns, 8);
  memcpy(raw + 8, &magic, 4);
  for (int i = 0; i < 4; i++) {
    uint32_t n = (uint32_t)raw[i * 3] << 16 | (uint32_t)raw[i * 3 + 1] << 8 | raw[i * 3 + 2];
    for (int j = 0; j < 4; j++) out[i * 4 + j] = BASE64[n >> (18 - 6 * j) & 63];
  }
}

static inline int base64_value(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '-' || c == '+' ? 62 : c == '_' || c == '/' ? 63 : -1;
}

/* The stamp's ns, or 0 where there is none. */
static inline uint64_t stamp_read(const char *in) {
  uint8_t raw[12];
  for (int i = 0; i < 4; i++) {
    uint32_t n = 0;
    for (int j = 0; j < 4; j++) {
      int v = base64_value(in[i * 4 + j]);
      if (v < 0) return 0;
      n = n << 6 | (uint32_t)v;
    }
    raw[i * 3] = (uint8_t)(n >> 16);
    raw[i * 3 + 1] = (uint8_t)(n >> 8);
    raw[i * 3 + 2] = (uint8_t)n;
  }
  uint32_t magic;
  uint64_t ns;
  memcpy(&magic, raw + 8, 4);
  memcpy(&ns, raw, 8);
  return magic == STAMP_MAGIC ? ns : 0;
}

static inline uint32_t clamp_ns(uint64_t ns) { return ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns; }

static int by_value(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}

/* Percentiles (us) of the records stamped in [from, to), as JSON members. `flags` must match 0. */
static inline void print_latency(const struct records *r, uint64_t from, uint64_t to) {
  uint32_t *all = room(NULL, (r->count + 1) * sizeof *all);
  size_t n = 0;
  for (size_t i = 0; i < r->count; i++)
    if (!r->all[i].flags && r->all[i].stamp >= from && r->all[i].stamp < to) all[n++] = r->all[i].latency_ns;
  qsort(all, n, sizeof *all, by_value);
  const double at[] = {0.5, 0.99, 0.999};
  const char *name[] = {"p50", "p99", "p999"};
  for (int i = 0; i < 3; i++) {
    size_t k = n ? (size_t)(at[i] * (double)(n - 1) + 0.5) : 0;
    printf("%s\"%s\":%.1f", i ? "," : "", name[i], n ? all[k] / 1000.0 : 0.0);
  }
  free(all);
}

/* The servers' ports, "8080,8081". Line i of a plan or sockets' file belongs to port i % count: a tenant's lines are as many
 * apart as there are tenants, so that all its devices have one server where the ports divide that number. */
static int ports[64];
static uint32_t port_count;

static inline void read_ports(const char *text) {
  char *left = strdup(text);
  for (char *one = strtok(left, ","); one; one = strtok(NULL, ",")) {
    if (port_count == sizeof ports / sizeof *ports) die("too many ports");
    ports[port_count++] = atoi(one);
  }
  free(left);
  if (!port_count) die("no port");
}

static inline int port_of(uint32_t line) { return ports[line % port_count]; }

/* A non-blocking connection on its way to 127.0.0.1:port, from 127.0.`source`.1 when source > 0. */
static inline int dial(int port, int source) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
  if (fd < 0) die("socket: %s", strerror(errno));
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (source > 0) {
    /* Without this option bind() would take a port for good, and ports per address would run out. */
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    struct sockaddr_in from = {.sin_family = AF_INET};
    from.sin_addr.s_addr = htonl(0x7f000001u | (uint32_t)source << 8);
    if (bind(fd, (struct sockaddr *)&from, sizeof from)) die("bind: %s", strerror(errno));
  }
  if (connect(fd, (struct sockaddr *)&to, sizeof to) && errno != EINPROGRESS && errno != ECONNREFUSED)
    die("connect: %s", strerror(errno));
  return fd;
}
#endif
