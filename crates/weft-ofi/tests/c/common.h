/* What the C programs share: reports of checks, one side of a conversation
 * (endpoint, queues, address vector, memory), and completions that are read
 * while every open side makes progress. Read this first, then a walk_*.c. */
#ifndef WEFT_TESTS_COMMON_H
#define WEFT_TESTS_COMMON_H

#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/fi_trigger.h>

/* The oldest interface that has everything the programs call. */
#define API_VERSION FI_VERSION(1, 17)

/* A guard against hanging for ever, far above what any step needs: also under
 * valgrind, on a machine where thirty others want the processor. */
#define HANG_GUARD_S 300

/* ---- reports ---- */

extern const char *provider;     /* as given on the command line */
extern const char *current_part; /* printed before each name */
extern unsigned ok_count, fail_count, absent_count;

bool report(bool good, const char *name, const char *file, int line, const char *reason);
bool expect_code(const char *name, long got, const char *file, int line, const long *wanted, size_t wanted_count);

/* The provider does not offer this. Counted; a failure when everything was asked for. */
void absent(const char *name, const char *reason);
extern bool everything_is_asked;
/* Input that brings some providers of the box down is left out. */
extern bool gentle;

#define CHECK(name, condition) report((condition), (name), __FILE__, __LINE__, #condition)

/* The value of the call is one of those named; the first is what the man page
 * says, others are what it leaves open. */
#define EXPECT(name, call, ...)                                                     \
    expect_code((name), (long)(call), __FILE__, __LINE__, (const long[]){__VA_ARGS__}, \
                sizeof((const long[]){__VA_ARGS__}) / sizeof(long))

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* ---- completions ---- */

struct event {
    struct fi_cq_tagged_entry entry;
    fi_addr_t source;
    int error; /* 0, or the err of the error entry: positive */
    int provider_error;
    size_t overflow; /* olen of the error entry */
};

#define INBOX_ENTRIES 1024
struct inbox {
    struct fid_cq *cq;
    unsigned head, tail;
    struct event events[INBOX_ENTRIES];
};

/* Reads every open queue once, and lets other threads have their turn. */
void drive(void);
/* The next completion of this queue; false (and a FAIL) if none comes. */
bool take_at(struct inbox *inbox, struct event *event, const char *name, const char *file, int line);
#define TAKE(inbox, event, name) take_at((inbox), (event), (name), __FILE__, __LINE__)
/* True if nothing is there after many rounds of progress. */
bool nothing_comes(struct inbox *inbox);
/* Takes a success and checks its context. */
bool finish_at(struct inbox *inbox, void *context, const char *name, const char *file, int line);
#define FINISH(inbox, context, name) finish_at((inbox), (context), (name), __FILE__, __LINE__)
/* Takes an error entry with this code (positive). */
bool finish_error_at(struct inbox *inbox, int error, struct event *event, const char *name, const char *file, int line);
#define FINISH_ERROR(inbox, error, event, name) finish_error_at((inbox), (error), (event), (name), __FILE__, __LINE__)

/* Drives until the condition holds. */
#define DRIVE_UNTIL(name, condition)                                       \
    do {                                                                   \
        double end_ = seconds() + HANG_GUARD_S;                            \
        while (!(condition) && seconds() < end_)                           \
            drive();                                                       \
        report((condition), (name), __FILE__, __LINE__, "never: " #condition); \
    } while (0)

double seconds(void);

/* ---- one side of a conversation ---- */

struct region {
    struct fid_mr *mr;
    void *descriptor; /* NULL unless FI_MR_LOCAL */
    uint64_t key;
    uint64_t base; /* what a peer adds to an offset */
};

#define SIDE_MEMORY_BYTES ((size_t)4 << 20)

struct side_options {
    enum fi_ep_type type;
    uint64_t caps;
    uint64_t transmit_flags; /* tx_attr->op_flags */
    uint64_t bind_flags;     /* for the queues: FI_SELECTIVE_COMPLETION */
    enum fi_av_type av_type;
    enum fi_threading threading;
    enum fi_progress progress;
    bool counters; /* bind one for each of the six kinds of event */
    bool no_memory;
    bool not_enabled;
    int only_mr_mode; /* -1: whatever the provider wants */
    uint64_t message_order;
    struct fid_fabric *fabric; /* borrowed; NULL: one of its own */
};
#define SIDE_OPTIONS(endpoint_type, wanted_caps) \
    (struct side_options){ .type = (endpoint_type), .caps = (wanted_caps), .only_mr_mode = -1 }

enum counter_kind { SENT, RECEIVED, READ_DONE, WRITTEN, REMOTE_READ, REMOTE_WRITTEN, COUNTER_KINDS };

struct side {
    struct fi_info *info;
    struct fid_fabric *fabric;
    bool fabric_is_borrowed;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_ep *ep;
    struct fid_eq *eq;
    struct inbox transmit, receive;
    struct fid_cntr *counters[COUNTER_KINDS];
    unsigned char *memory;
    struct region region;
    fi_addr_t peer;
};

struct fi_info *hints_for(const struct side_options *options);
/* 0, or the error of the first call that failed (not reported): -FI_ENODATA
 * where the provider does not offer it. */
int side_open(struct side *side, const struct side_options *options);
/* As above with the info that is to be used (dup'ed). */
int side_open_with(struct side *side, struct fi_info *info, const struct side_options *options);
void side_close(struct side *side);
/* Inserts each one's address into the other's vector. */
int sides_meet(struct side *a, struct side *b);
/* Opens two sides that know each other; reports; false if not offered or failed. */
bool pair_open(struct side *a, struct side *b, const struct side_options *options, const char *name);
void pair_close(struct side *a, struct side *b);

int region_open(struct side *side, void *start, size_t length, uint64_t access, struct region *region);
void region_close(struct region *region);

/* Bytes that depend on the seed and the place. */
void fill(void *start, size_t length, unsigned seed);
bool filled(const void *start, size_t length, unsigned seed);

void inbox_add(struct inbox *inbox, struct fid_cq *cq);
void inbox_remove(struct inbox *inbox);

/* Posts again while the queue is full. */
#define POST(call)                                 \
    __extension__({                                \
        double end_ = seconds() + HANG_GUARD_S;    \
        long code_;                                \
        while ((code_ = (long)(call)) == -FI_EAGAIN && seconds() < end_) \
            drive();                               \
        code_;                                     \
    })

#endif
