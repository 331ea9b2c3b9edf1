/* Ping-pong between two processes at a threading level, with verified data.
 *
 *   threads PROVIDER domain|completion|endpoint|fid|safe THREADS ROUNDS manual|auto
 *
 * Each process has one endpoint and one completion queue. Every thread plays
 * with its own partner in the other process, under a tag of its own, with
 * messages of all sizes; all of them post on that endpoint and read that queue,
 * so that each finds completions of the others too. */
#include "common.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define THREADS_MOST 8
#define BYTES_MOST ((size_t)1 << 18)

/* What both processes see. */
static struct board {
    unsigned char names[2][256];
    _Atomic int named, ended, failed;
} *board;

static int end, threads, rounds;
static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fid_mr *mr;
static struct fi_info *info;
static void *descriptor;
static fi_addr_t peer;
static unsigned char *memory;

struct operation {
    struct fi_context2 context; /* first: a completion leads here */
    _Atomic size_t length;
    _Atomic int done;
};

#define REQUIRE(condition, ...)                                   \
    do {                                                          \
        if (!(condition)) {                                       \
            printf("FAIL end %d threads.c:%d ", end, __LINE__);   \
            printf(__VA_ARGS__);                                  \
            printf("\n");                                         \
            fflush(stdout);                                       \
            board->failed = 1;                                    \
            _exit(1);                                             \
        }                                                         \
    } while (0)

static void try(const char *what, long code)
{
    REQUIRE(code == 0, "%s: %ld (%s)", what, code, fi_strerror((int)-code));
}

/* Reads what is there, whosoever it is. */
static void progress(void)
{
    struct fi_cq_tagged_entry entries[4];
    ssize_t got = fi_cq_read(cq, entries, COUNT_OF(entries));
    REQUIRE(!board->failed, "the other end failed");
    if (got == -FI_EAGAIN) {
        sched_yield();
        return;
    }
    REQUIRE(got > 0, "fi_cq_read: %zd (%s)", got, fi_strerror((int)-got));
    for (ssize_t i = 0; i < got; i++) {
        struct operation *operation = entries[i].op_context;
        operation->length = entries[i].len;
        REQUIRE(atomic_exchange(&operation->done, 1) == 0, "an operation ended twice");
    }
}

static void await(struct operation *operation)
{
    double give_up = seconds() + HANG_GUARD_S;
    while (!operation->done) {
        progress();
        REQUIRE(seconds() < give_up, "nothing comes any more");
    }
    operation->done = 0;
}

#define INSIST(what, call)                                                        \
    do {                                                                          \
        long code_;                                                               \
        while ((code_ = (long)(call)) == -FI_EAGAIN)                              \
            progress();                                                           \
        try((what), code_);                                                       \
    } while (0)

static void *play(void *argument)
{
    int self = (int)(intptr_t)argument;
    struct operation sent = { .done = 0 }, received = { .done = 0 };
    unsigned char *out = memory + (size_t)self * 2 * BYTES_MOST, *in = out + BYTES_MOST;
    unsigned number = 0;
    for (size_t length = 1; length <= BYTES_MOST; length = length < 8 ? length + 1 : length * 3 / 2) {
        for (int round = 0; round < rounds; round++, number++) {
            unsigned base = (unsigned)self * 1000003 + number * 2, ours = base + (unsigned)end, theirs = base + (unsigned)!end;
            memset(in, 0, length);
            INSIST("fi_trecv", fi_trecv(ep, in, BYTES_MOST, descriptor, peer, (uint64_t)self, 0, &received));
            fill(out, length, ours);
            if (end == 0)
                INSIST("fi_tsend", fi_tsend(ep, out, length, descriptor, peer, (uint64_t)self, &sent));
            await(&received);
            REQUIRE(received.length == length, "%zu bytes came, not %zu", (size_t)received.length, length);
            REQUIRE(filled(in, length, theirs), "thread %d: round %d of %zu bytes is damaged", self, round, length);
            if (end == 1)
                INSIST("fi_tsend", fi_tsend(ep, out, length, descriptor, peer, (uint64_t)self, &sent));
            await(&sent);
        }
    }
    return NULL;
}

static void run(enum fi_threading level, enum fi_progress progress_mode)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_TAGGED | FI_DIRECTED_RECV);
    options.threading = level;
    options.progress = progress_mode;
    struct fi_info *hints = hints_for(&options);
    struct fi_cq_attr cq_attr = { .size = 1024, .format = FI_CQ_FORMAT_TAGGED };
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE, .count = 2 };
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    size_t length = sizeof(board->names[0]), bytes = (size_t)threads * 2 * BYTES_MOST;
    pthread_t handles[THREADS_MOST];
    hints->domain_attr->mr_mode &= ~FI_MR_ENDPOINT;
    try("fi_getinfo", fi_getinfo(API_VERSION, "127.0.0.1", NULL, FI_SOURCE, hints, &info));
    fi_freeinfo(hints);
    REQUIRE(info->domain_attr->threading == level, "threading level %d, not %d", info->domain_attr->threading, level);
    try("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    try("fi_domain", fi_domain(fabric, info, &domain, NULL));
    try("fi_endpoint", fi_endpoint(domain, info, &ep, NULL));
    try("fi_cq_open", fi_cq_open(domain, &cq_attr, &cq, NULL));
    try("fi_av_open", fi_av_open(domain, &av_attr, &av, NULL));
    try("fi_ep_bind", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    try("fi_ep_bind", fi_ep_bind(ep, &av->fid, 0));
    try("fi_enable", fi_enable(ep));
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED, "mmap");
    try("fi_mr_reg", fi_mr_reg(domain, memory, bytes, FI_SEND | FI_RECV, 0, 1, 0, &mr, NULL));
    descriptor = info->domain_attr->mr_mode & FI_MR_LOCAL ? fi_mr_desc(mr) : NULL;
    try("fi_getname", fi_getname(&ep->fid, board->names[end], &length));
    board->named++;
    while (board->named < 2) {
        REQUIRE(!board->failed, "the other end failed");
        sched_yield();
    }
    REQUIRE(fi_av_insert(av, board->names[!end], 1, &peer, 0, NULL) == 1, "fi_av_insert");
    if (threads == 1) {
        play(NULL);
    } else {
        for (int i = 0; i < threads; i++)
            REQUIRE(pthread_create(&handles[i], NULL, play, (void *)(intptr_t)i) == 0, "pthread_create");
        for (int i = 0; i < threads; i++)
            pthread_join(handles[i], NULL);
    }
    /* The other end may still need an answer. */
    board->ended++;
    while (board->ended < 2)
        progress();
    try("fi_close of the region", fi_close(&mr->fid));
    try("fi_close of the endpoint", fi_close(&ep->fid));
    try("fi_close of the queue", fi_close(&cq->fid));
    try("fi_close of the vector", fi_close(&av->fid));
    try("fi_close of the domain", fi_close(&domain->fid));
    try("fi_close of the fabric", fi_close(&fabric->fid));
    fi_freeinfo(info);
    munmap(memory, bytes);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        enum fi_threading level;
    } levels[] = {
        { "domain", FI_THREAD_DOMAIN },
        { "completion", FI_THREAD_COMPLETION },
        { "endpoint", FI_THREAD_ENDPOINT },
        { "fid", FI_THREAD_FID },
        { "safe", FI_THREAD_SAFE },
    };
    size_t level = 0;
    while (argc == 6 && level < COUNT_OF(levels) && strcmp(argv[2], levels[level].name))
        level++;
    threads = argc == 6 ? atoi(argv[3]) : 0;
    rounds = argc == 6 ? atoi(argv[4]) : 0;
    if (argc != 6 || level == COUNT_OF(levels) || threads < 1 || threads > THREADS_MOST ||
        (threads > 1 && levels[level].level != FI_THREAD_SAFE)) {
        fprintf(stderr, "usage: threads PROVIDER domain|completion|endpoint|fid|safe THREADS ROUNDS manual|auto\n");
        return 2;
    }
    provider = argv[1];
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED)
        return 2;
    double begin = seconds();
    for (end = 0; end < 2; end++)
        if (fork() == 0) {
            run(levels[level].level, strcmp(argv[5], "auto") ? FI_PROGRESS_MANUAL : FI_PROGRESS_AUTO);
            exit(0);
        }
    int failures = 0;
    for (int i = 0; i < 2; i++) {
        int status = 0;
        wait(&status);
        failures += status != 0;
        if (status)
            board->failed = 1;
    }
    if (!failures)
        printf("ok threads of %s: %s, %d threads, %d rounds of each size in %.1f s\n", provider, argv[2], threads, rounds, seconds() - begin);
    return failures ? 1 : 0;
}
