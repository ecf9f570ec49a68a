/* Sends single requests over many connections, and takes as little CPU time as possible for that.
 *
 *     request_load SECONDS < connections
 *
 * Each line of the input is one connection. Its fields are the port on 127.0.0.1, the kind of the connection (0: it
 * stays open; 1: it is closed and opened again after each response; 2: it stays open, and its requests do not count),
 * three offsets, and one frame of the Kafka protocol in hexadecimal. Every connection sends its frame, waits for the
 * response, and sends the frame again. Offsets count from the end of the size field. The first offset is the position
 * of an error code in the response, which must be 0; with -1 no error code is checked. If the second offset is not -1,
 * the eight bytes at this position in the response are copied to the third offset in the frame, so that a fetch
 * continues at the high watermark. Requests in the first fifth of the time are the warm-up and do not count.
 *
 * The output is the line `warm` at the end of the warm-up, and one JSON object at the end: requests, their rate,
 * quantiles of the time to the response, responses with an error code, and the client's CPU time for each request.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PLAIN, REOPENED, UNCOUNTED };
enum { CONNECTIONS_MAX = 4096, HEAD_BYTES = 512, BUCKET_NS = 10000, BUCKETS = 1000000 };

struct connection {
    int fd, port, kind, error_at, copied_from, copied_to, error_code;
    unsigned char *frame;
    size_t frame_bytes, sent_bytes, received_bytes, response_bytes;
    unsigned char head[HEAD_BYTES];
    int64_t began_ns;
};

static struct connection connections[CONNECTIONS_MAX];
static uint32_t latencies[BUCKETS];
static unsigned char scratch[1 << 16];
static int poll_fd;

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void open_connection(struct connection *c)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(c->port)};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    int one = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if ((c->fd = socket(AF_INET, SOCK_STREAM, 0)) < 0)
        die("socket");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address) < 0)
        die("connect");
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->fd, &event) < 0)
        die("epoll_ctl");
}

static void send_frame(struct connection *c)
{
    while (c->sent_bytes < c->frame_bytes) {
        ssize_t n = write(c->fd, c->frame + c->sent_bytes, c->frame_bytes - c->sent_bytes);
        if (n < 0 && errno != EAGAIN)
            die("write");
        if (n > 0)
            c->sent_bytes += n;
    }
}

static void begin(struct connection *c)
{
    c->began_ns = now_ns();
    c->sent_bytes = c->received_bytes = c->response_bytes = 0;
    if (c->kind == REOPENED) {
        if (c->fd >= 0)
            close(c->fd);
        open_connection(c);
    }
    send_frame(c);
}

/* Return whether the response is complete. */
static int receive(struct connection *c)
{
    for (;;) {
        ssize_t n = read(c->fd, scratch, sizeof scratch);
        if (n < 0 && errno == EAGAIN)
            return 0;
        if (n <= 0) {
            fprintf(stderr, "a connection to port %d was closed\n", c->port);
            exit(1);
        }
        for (ssize_t i = 0; i < n && c->received_bytes + i < HEAD_BYTES; i++)
            c->head[c->received_bytes + i] = scratch[i];
        c->received_bytes += n;
        if (c->received_bytes >= 4 && !c->response_bytes) {
            uint32_t size;
            memcpy(&size, c->head, 4);
            c->response_bytes = 4 + (size_t)ntohl(size);
        }
        if (c->response_bytes && c->received_bytes >= c->response_bytes) {
            c->error_code = c->error_at < 0 ? 0 : c->head[4 + c->error_at] << 8 | c->head[5 + c->error_at];
            if (c->copied_from >= 0)
                memcpy(c->frame + 4 + c->copied_to, c->head + 4 + c->copied_from, 8);
            return 1;
        }
    }
}

static double quantile_us(uint64_t total, double share)
{
    uint64_t seen = 0, wanted = (uint64_t)(total * share);
    for (int i = 0; i < BUCKETS; i++)
        if ((seen += latencies[i]) > wanted)
            return (i + 0.5) * BUCKET_NS / 1000.0;
    return 0;
}

static double cpu_us(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e6 + usage.ru_utime.tv_usec +
           usage.ru_stime.tv_usec;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    double seconds = atof(argv[1]);
    int count = 0;
    char *line = NULL;
    size_t room = 0;
    poll_fd = epoll_create1(0);
    while (getline(&line, &room, stdin) > 0 && count < CONNECTIONS_MAX) {
        struct connection *c = &connections[count++];
        int hex_at = 0;
        if (sscanf(line, "%d %d %d %d %d %n", &c->port, &c->kind, &c->error_at, &c->copied_from,
                   &c->copied_to, &hex_at) < 5)
            return 2;
        c->frame_bytes = strspn(line + hex_at, "0123456789abcdef") / 2;
        c->frame = malloc(c->frame_bytes);
        for (size_t i = 0; i < c->frame_bytes; i++)
            sscanf(line + hex_at + 2 * i, "%2hhx", &c->frame[i]);
        c->fd = -1;
        if (c->kind != REOPENED)
            open_connection(c);
    }
    int64_t begins = now_ns(), counts_from = begins + (int64_t)(seconds * 2e8);
    int64_t ends = begins + (int64_t)(seconds * 1e9);
    for (int i = 0; i < count; i++)
        begin(&connections[i]);
    uint64_t requests = 0, errors = 0;
    double cpu_before = 0;
    struct epoll_event events[256];
    for (int is_warm = 0;;) {
        int ready = epoll_wait(poll_fd, events, 256, 100);
        int64_t now = now_ns();
        if (!is_warm && now >= counts_from) {
            is_warm = 1;
            cpu_before = cpu_us();
            counts_from = now;
            puts("warm");
            fflush(stdout);
        }
        if (now >= ends)
            break;
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            if (!receive(c))
                continue;
            if (is_warm && c->kind == UNCOUNTED) {
                errors += c->error_code != 0;
            } else if (is_warm) {
                int64_t bucket = (now_ns() - c->began_ns) / BUCKET_NS;
                latencies[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
                requests++;
                errors += c->error_code != 0;
            }
            begin(c);
        }
    }
    double measured = (now_ns() - counts_from) / 1e9;
    printf("{\"requests\": %llu, \"rate\": %.0f, \"p50_us\": %.0f, \"p99_us\": %.0f, \"errors\": %llu, "
           "\"client_cpu_us\": %.2f}\n",
           (unsigned long long)requests, requests / measured, quantile_us(requests, 0.5),
           quantile_us(requests, 0.99), (unsigned long long)errors,
           requests ? (cpu_us() - cpu_before) / requests : 0.0);
    return 0;
}
