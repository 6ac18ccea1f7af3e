/* What `tidegate-bench smockron` measures beside, and what it measures with: libzmq programs of a
 * few lines, so that neither the load nor the peers are made of what is measured.
 *
 *   peer sub COUNT              receives everything and does nothing with it
 *   peer relay                  publishes a DELAY_UNTIL for everything that it receives
 *   peer pub ADDR N IDS SEED    sends N accounting messages about IDS identifiers
 *   peer ping ACC CTL N NAME    sends one at a time and waits for its DELAY_UNTIL, N times
 *
 * COUNT is a file whose first eight bytes tell at any time how many messages have come. Servers
 * tell their addresses as all servers of this project do. Prints what came of it on standard
 * output: pub how many messages it sent, ping the nanoseconds of each answer.
 */

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

/* Messages that may wait in a queue: enough that nobody waits for somebody to be woken. */
#define HWM 10000
/* How often the time is read by somebody who stamps messages. */
#define STAMP_EVERY 64
/* How long an answer may take, in milliseconds. */
#define PATIENCE 10000

static const char DOMAIN[] = "bench"; /* with its NUL: that is part of the frame */

static void check(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s: %s\n", what, zmq_strerror(zmq_errno()));
        exit(1);
    }
}

static uint64_t nanos(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void *open_socket(void *context, int kind)
{
    int hwm = HWM;
    void *socket = zmq_socket(context, kind);
    check(socket != NULL, "cannot make a socket");
    zmq_setsockopt(socket, ZMQ_SNDHWM, &hwm, sizeof hwm);
    zmq_setsockopt(socket, ZMQ_RCVHWM, &hwm, sizeof hwm);
    if (kind == ZMQ_SUB)
        check(zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0) == 0, "cannot subscribe");
    return socket;
}

static void bind_socket(void *socket, const char *name)
{
    char endpoint[256];
    size_t length = sizeof endpoint;
    check(zmq_bind(socket, "tcp://127.0.0.1:*") == 0, "cannot bind");
    check(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, endpoint, &length) == 0, "no endpoint");
    fprintf(stderr, "listening door=%s addr=%s\n", name, endpoint + strlen("tcp://"));
}

static void *connect_socket(void *context, int kind, const char *address)
{
    char endpoint[256];
    void *socket = open_socket(context, kind);
    snprintf(endpoint, sizeof endpoint, "tcp://%s", address);
    check(zmq_connect(socket, endpoint) == 0, "cannot connect");
    return socket;
}

/* A publisher that sees its subscriber come, and waits for it rather than drop. */
static void *publisher(void *context, const char *address)
{
    int nodrop = 1, forever = -1;
    char subscription[64];
    char endpoint[256];
    void *socket = open_socket(context, ZMQ_XPUB);
    zmq_setsockopt(socket, ZMQ_XPUB_NODROP, &nodrop, sizeof nodrop);
    zmq_setsockopt(socket, ZMQ_LINGER, &forever, sizeof forever);
    snprintf(endpoint, sizeof endpoint, "tcp://%s", address);
    check(zmq_connect(socket, endpoint) == 0, "cannot connect");
    check(zmq_recv(socket, subscription, sizeof subscription, 0) > 0, "no subscription");
    return socket;
}

static void send_frame(void *socket, const char *bytes, size_t length, int flags)
{
    check(zmq_send(socket, bytes, length, flags) >= 0, "cannot send");
}

static void account(void *socket, const char *identifier, int length, uint64_t millis)
{
    char stamp[24];
    int digits = snprintf(stamp, sizeof stamp, "%" PRIu64, millis);
    send_frame(socket, DOMAIN, sizeof DOMAIN, ZMQ_SNDMORE);
    send_frame(socket, "ACCEPTED", 8, ZMQ_SNDMORE);
    send_frame(socket, identifier, (size_t)length, ZMQ_SNDMORE);
    send_frame(socket, stamp, (size_t)digits, ZMQ_SNDMORE);
    send_frame(socket, "", 0, ZMQ_SNDMORE);
    send_frame(socket, "GET /", 5, 0);
}

static _Noreturn void sub(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT, 0600);
    check(file >= 0 && ftruncate(file, 8) == 0, "cannot make the file of the count");
    volatile uint64_t *count = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    check(count != MAP_FAILED, "cannot map the file of the count");
    void *socket = open_socket(zmq_ctx_new(), ZMQ_SUB);
    bind_socket(socket, "sub");
    fprintf(stderr, "ready\n");
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    for (;;) {
        do
            check(zmq_msg_recv(&frame, socket, 0) >= 0, "cannot receive");
        while (zmq_msg_more(&frame));
        *count += 1;
    }
}

static _Noreturn void relay(void)
{
    void *context = zmq_ctx_new();
    void *accounting = open_socket(context, ZMQ_SUB), *control = open_socket(context, ZMQ_PUB);
    bind_socket(accounting, "relay");
    bind_socket(control, "relay");
    fprintf(stderr, "ready\n");
    char frames[6][256];
    for (;;) {
        int lengths[6], count = 0, more = 1;
        size_t size = sizeof more;
        while (more) {
            int length = zmq_recv(accounting, frames[count], sizeof frames[count], 0);
            check(length >= 0, "cannot receive");
            lengths[count] = length < 256 ? length : 256;
            count += count < 5;
            zmq_getsockopt(accounting, ZMQ_RCVMORE, &more, &size);
        }
        send_frame(control, frames[0], (size_t)lengths[0], ZMQ_SNDMORE);
        send_frame(control, "DELAY_UNTIL", 11, ZMQ_SNDMORE);
        send_frame(control, frames[2], (size_t)lengths[2], ZMQ_SNDMORE);
        send_frame(control, frames[3], (size_t)lengths[3], 0);
    }
}

static int pub(const char *address, uint64_t count, uint64_t ids, uint64_t seed)
{
    void *context = zmq_ctx_new();
    void *socket = publisher(context, address);
    /* A step without a factor in common visits every identifier, far from the one before. */
    uint64_t step = 618033 | 1, at = seed % ids, millis = 0;
    for (;; step += 2) {
        uint64_t a = step, b = ids;
        while (b) {
            uint64_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1)
            break;
    }
    char identifier[32];
    for (uint64_t sent = 0; sent < count; sent++) {
        if (sent % STAMP_EVERY == 0)
            millis = nanos(CLOCK_REALTIME) / 1000000;
        int length = snprintf(identifier, sizeof identifier, "10.%u.%u.%u",
                              (unsigned)(at >> 16 & 255), (unsigned)(at >> 8 & 255),
                              (unsigned)(at & 255));
        account(socket, identifier, length, millis);
        at = (at + step) % ids;
    }
    zmq_close(socket);
    zmq_ctx_term(context); /* returns when all is on its way */
    printf("%" PRIu64 "\n", count);
    return 0;
}

/* Waits for the answer about this identifier, and passes over what comes before it. */
static int answered(void *answers, const char *identifier, int length, int patience)
{
    char frames[4][256];
    int lengths[4];
    zmq_setsockopt(answers, ZMQ_RCVTIMEO, &patience, sizeof patience);
    for (;;) {
        int more = 1, count = 0;
        size_t size = sizeof more;
        for (; more; count++) {
            int at = count < 4 ? count : 3;
            lengths[at] = zmq_recv(answers, frames[at], sizeof frames[at], 0);
            if (lengths[at] < 0)
                return 0;
            zmq_getsockopt(answers, ZMQ_RCVMORE, &more, &size);
        }
        if (count == 4 && lengths[2] == length
            && memcmp(frames[2], identifier, (size_t)length) == 0)
            return 1;
    }
}

static int ping(const char *accounting, const char *control, uint64_t count, const char *name)
{
    void *context = zmq_ctx_new();
    void *answers = connect_socket(context, ZMQ_SUB, control);
    void *questions = publisher(context, accounting);
    char identifier[64];
    /* Nothing tells when the publisher at the other end knows of a subscription. The first answer
     * does, and until it is there somebody else is asked about. */
    for (uint64_t tries = 0;; tries++) {
        int length = snprintf(identifier, sizeof identifier, "%s-first-%" PRIu64, name, tries);
        account(questions, identifier, length, nanos(CLOCK_REALTIME) / 1000000);
        if (answered(answers, identifier, length, 20))
            break;
        check(tries < 500, "no answer");
    }
    for (uint64_t asked = 0; asked < count; asked++) {
        int length = snprintf(identifier, sizeof identifier, "%s-%" PRIu64, name, asked);
        uint64_t before = nanos(CLOCK_MONOTONIC);
        account(questions, identifier, length, nanos(CLOCK_REALTIME) / 1000000);
        check(answered(answers, identifier, length, PATIENCE), "no answer");
        printf("%" PRIu64 "\n", nanos(CLOCK_MONOTONIC) - before);
    }
    return 0;
}

int main(int count, char **words)
{
    const char *mode = count > 1 ? words[1] : "";
    if (strcmp(mode, "sub") == 0 && count == 3)
        sub(words[2]);
    if (strcmp(mode, "relay") == 0 && count == 2)
        relay();
    if (strcmp(mode, "pub") == 0 && count == 6)
        return pub(words[2], strtoull(words[3], NULL, 10), strtoull(words[4], NULL, 10),
                   strtoull(words[5], NULL, 10));
    if (strcmp(mode, "ping") == 0 && count == 6)
        return ping(words[2], words[3], strtoull(words[4], NULL, 10), words[5]);
    fprintf(stderr, "see the head of peer.c\n");
    return 2;
}
