/*
 * Sleeps on everything that can be slept on, in every way: a thread with a domain of its own sends messages, and the
 * main thread must be woken for each of them. A wake-up that is lost is a hang, which an alarm ends.
 *
 * waits PROVIDER SEED manual|auto
 */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

/* Of each wait by itself, far above what it needs on a machine where thirty others want the processor. */
#define HANG_GUARD_S 300
#define LONG_MS (HANG_GUARD_S * 1000)
#define MESSAGES 60

static const char *volatile what;

static void begin(const char *name)
{
    what = name;
    alarm(HANG_GUARD_S);
}

/* Says which wait it was that did not end. */
static void hangs(int signal)
{
    static const char words[] = ": hangs\n";
    (void)signal;
    (void)!write(STDERR_FILENO, what, strlen(what));
    (void)!write(STDERR_FILENO, words, sizeof(words) - 1);
    _exit(1);
}

#define FAIL(...) (fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, what), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))
#define IS(call, wanted)                                                                     \
    do {                                                                                     \
        long got_ = (long)(call);                                                            \
        if (got_ != (long)(wanted))                                                          \
            FAIL("%s gave %ld (%s), not %ld", #call, got_, fi_strerror((int)-got_), (long)(wanted)); \
    } while (0)
#define CHECK(condition)                     \
    do {                                     \
        if (!(condition))                    \
            FAIL("not true: %s", #condition); \
    } while (0)

static struct fi_info *info;
static struct fid_fabric *fabric;

/* One side: a domain with one endpoint. */
struct side {
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_cntr *cntr;
    struct fid_ep *ep;
    fi_addr_t peer;
};

static void side_open(struct side *side, struct fi_cq_attr *cq_attr, struct fi_cntr_attr *cntr_attr)
{
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
    IS(fi_cq_open(side->domain, cq_attr, &side->cq, side), 0);
    IS(fi_av_open(side->domain, &av_attr, &side->av, NULL), 0);
    IS(fi_endpoint(side->domain, info, &side->ep, NULL), 0);
    IS(fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | FI_RECV), 0);
    IS(fi_ep_bind(side->ep, &side->av->fid, 0), 0);
    if (cntr_attr) {
        IS(fi_cntr_open(side->domain, cntr_attr, &side->cntr, &side->cntr), 0);
        IS(fi_ep_bind(side->ep, &side->cntr->fid, FI_RECV), 0);
    }
    IS(fi_enable(side->ep), 0);
}

static void side_close(struct side *side)
{
    IS(fi_close(&side->ep->fid), 0);
    IS(fi_close(&side->cq->fid), 0);
    if (side->cntr)
        IS(fi_close(&side->cntr->fid), 0);
    side->cntr = NULL;
    IS(fi_close(&side->av->fid), 0);
}

static void knows(struct side *side, struct side *other)
{
    char name[64];
    size_t length = sizeof(name);
    IS(fi_getname(&other->ep->fid, name, &length), 0);
    IS(fi_av_insert(side->av, name, 1, &side->peer, 0, NULL), 1);
}

static struct side sender, receiver;
static unsigned pauses;

/* Sends each message when the receiver may be asleep, about to sleep, or awake. */
static void *send_all(void *unused)
{
    static char bytes[8];
    (void)unused;
    for (int i = 0; i < MESSAGES; i++) {
        struct fi_cq_entry entry;
        usleep((useconds_t)(rand_r(&pauses) % 4 ? rand_r(&pauses) % 300 : 0));
        IS(fi_send(sender.ep, bytes, sizeof(bytes), NULL, sender.peer, NULL), 0);
        IS(fi_cq_sread(sender.cq, &entry, 1, NULL, LONG_MS), 1);
    }
    return NULL;
}

static pthread_t start_sender(void)
{
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, send_all, NULL));
    return thread;
}

/* The sender's last operation ends when the receiver has made progress. */
static void join_sender(pthread_t thread)
{
    while (pthread_tryjoin_np(thread, NULL)) {
        fi_cq_read(receiver.cq, NULL, 0);
        usleep(100);
    }
}

static void post_receives(int count)
{
    static char bytes[MESSAGES][8];
    for (int i = 0; i < count; i++)
        IS(fi_recv(receiver.ep, bytes[i], sizeof(bytes[i]), NULL, FI_ADDR_UNSPEC, NULL), 0);
}

/* Sleeps on a native wait object until there may be something, after fi_trywait said that it is safe. */
static void sleep_native(struct fid *fid, enum fi_wait_obj object)
{
    if (object == FI_WAIT_MUTEX_COND) {
        struct fi_mutex_cond pair;
        int code;
        IS(fi_control(fid, FI_GETWAIT, &pair), 0);
        pthread_mutex_lock(pair.mutex);
        code = fi_trywait(fabric, &fid, 1);
        if (!code)
            pthread_cond_wait(pair.cond, pair.mutex);
        else
            IS(code, -FI_EAGAIN);
        pthread_mutex_unlock(pair.mutex);
        return;
    }
    struct pollfd entries[8] = { { .events = POLLIN } };
    nfds_t count = 1;
    if (object == FI_WAIT_POLLFD) {
        struct fi_wait_pollfd pollfd = { .nfds = 0, .fd = entries };
        IS(fi_control(fid, FI_GETWAIT, &pollfd), -FI_ETOOSMALL);
        CHECK(pollfd.nfds >= 1 && pollfd.nfds <= 8);
        uint64_t change = pollfd.change_index;
        IS(fi_control(fid, FI_GETWAIT, &pollfd), 0);
        CHECK(pollfd.change_index == change);
        count = pollfd.nfds;
    } else {
        IS(fi_control(fid, FI_GETWAIT, &entries[0].fd), 0);
    }
    int code = fi_trywait(fabric, &fid, 1);
    if (code) {
        IS(code, -FI_EAGAIN);
        return;
    }
    CHECK(poll(entries, count, LONG_MS) > 0);
}

enum way { SREAD, NATIVE, SET_WAIT, SET_NATIVE };

/* Every message wakes who sleeps for completions, and for a counter if that is given. */
static void messages(const char *name, enum fi_wait_obj object, enum way way, int counts)
{
    begin(name);
    struct fid_wait *set = NULL;
    struct fi_wait_attr set_attr = { .wait_obj = object };
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = object };
    struct fi_cntr_attr cntr_attr = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = object };
    struct fi_cq_attr sender_attr = { .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_UNSPEC };
    if (way == SET_WAIT || way == SET_NATIVE) {
        IS(fi_wait_open(fabric, &set_attr, &set), 0);
        cq_attr.wait_obj = cntr_attr.wait_obj = FI_WAIT_SET;
        cq_attr.wait_set = cntr_attr.wait_set = set;
    }
    side_open(&receiver, &cq_attr, counts ? &cntr_attr : NULL);
    side_open(&sender, &sender_attr, NULL);
    knows(&sender, &receiver);
    post_receives(MESSAGES);
    if (set) {
        struct fi_cq_entry entry;
        IS(fi_close(&set->fid), -FI_EBUSY);
        IS(fi_cq_sread(receiver.cq, &entry, 1, NULL, 0), -FI_EINVAL);
    }
    pthread_t thread = start_sender();
    int got = 0;
    uint64_t value = 0;
    while (got < MESSAGES || (counts && value < MESSAGES)) {
        struct fi_cq_entry entries[4];
        if (way == SREAD && !counts) {
            IS(fi_cq_sread(receiver.cq, entries, 1, NULL, LONG_MS), 1);
            got++;
            continue;
        }
        if (way == SREAD) {
            IS(fi_cntr_wait(receiver.cntr, value + 1, LONG_MS), 0);
        } else if (way == NATIVE) {
            /* The counter if there is one, and then it must wake alone. */
            sleep_native(counts ? &receiver.cntr->fid : &receiver.cq->fid, object);
        } else if (way == SET_NATIVE) {
            sleep_native(&set->fid, object);
        } else {
            IS(fi_wait(set, LONG_MS), 0);
        }
        if (counts)
            value = fi_cntr_read(receiver.cntr);
        for (;;) {
            ssize_t read = fi_cq_read(receiver.cq, entries, 4);
            if (read == -FI_EAGAIN)
                break;
            CHECK(read > 0);
            got += (int)read;
        }
    }
    CHECK(got == MESSAGES);
    join_sender(thread);
    if (set)
        IS(fi_wait(set, 5), -FI_ETIMEDOUT);
    side_close(&sender);
    side_close(&receiver);
    if (set)
        IS(fi_close(&set->fid), 0);
}

static void *write_events(void *eq)
{
    for (int i = 0; i < MESSAGES; i++) {
        struct fi_eq_entry entry = { .data = (uint64_t)i };
        usleep((useconds_t)(rand_r(&pauses) % 4 ? rand_r(&pauses) % 300 : 0));
        IS(fi_eq_write(eq, FI_NOTIFY, &entry, sizeof(entry), 0), (ssize_t)sizeof(entry));
    }
    return NULL;
}

static void events(const char *name, enum fi_wait_obj object, enum way way)
{
    begin(name);
    struct fid_wait *set = NULL;
    struct fid_eq *eq;
    struct fi_wait_attr set_attr = { .wait_obj = object };
    struct fi_eq_attr attr = { .flags = FI_WRITE, .wait_obj = object };
    pthread_t thread;
    if (way == SET_WAIT || way == SET_NATIVE) {
        IS(fi_wait_open(fabric, &set_attr, &set), 0);
        attr.wait_obj = FI_WAIT_SET;
        attr.wait_set = set;
    }
    IS(fi_eq_open(fabric, &attr, &eq, NULL), 0);
    CHECK(!pthread_create(&thread, NULL, write_events, eq));
    for (uint64_t got = 0; got < MESSAGES;) {
        struct fi_eq_entry entry;
        uint32_t event;
        if (way == NATIVE)
            sleep_native(&eq->fid, object);
        else if (way == SET_NATIVE)
            sleep_native(&set->fid, object);
        else if (way == SET_WAIT)
            IS(fi_wait(set, LONG_MS), 0);
        for (;;) {
            ssize_t read = way == SREAD ? fi_eq_sread(eq, &event, &entry, sizeof(entry), LONG_MS, 0)
                                        : fi_eq_read(eq, &event, &entry, sizeof(entry), 0);
            if (read == -FI_EAGAIN && way != SREAD)
                break;
            IS(read, (ssize_t)sizeof(entry));
            CHECK(event == FI_NOTIFY && entry.data == got);
            got++;
            if (way == SREAD)
                break;
        }
    }
    pthread_join(thread, NULL);
    IS(fi_close(&eq->fid), 0);
    if (set)
        IS(fi_close(&set->fid), 0);
}

static atomic_int begun, ended;

static void *sleep_for_nothing(void *cq)
{
    struct fi_cq_entry entry;
    atomic_fetch_add(&begun, 1);
    IS(fi_cq_sread(cq, &entry, 1, NULL, -1), -FI_EAGAIN);
    atomic_fetch_add(&ended, 1);
    return NULL;
}

static void signals(const char *name, enum fi_wait_obj object)
{
    begin(name);
    struct fid_cq *cq;
    struct fi_cq_attr attr = { .wait_obj = object };
    struct fi_cq_entry entry;
    IS(fi_cq_open(receiver.domain, &attr, &cq, NULL), 0);
    IS(fi_cq_sread(cq, &entry, 1, NULL, 0), -FI_EAGAIN);
    IS(fi_cq_sread(cq, &entry, 1, NULL, 3), -FI_EAGAIN);
    for (int round = 0; round < 20; round++) {
        pthread_t threads[2];
        atomic_store(&begun, 0);
        atomic_store(&ended, 0);
        for (int i = 0; i < 2; i++)
            CHECK(!pthread_create(&threads[i], NULL, sleep_for_nothing, cq));
        /* The first may have ended already, by a signal of the round before that nobody was left to hear. */
        while (atomic_load(&begun) < 2)
            usleep(100);
        /* One may begin to wait a little later, so it may take two. */
        while (atomic_load(&ended) < 2) {
            IS(fi_cq_signal(cq), 0);
            usleep(1000);
        }
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
    }
    /* Before the wait; what is left of the others ends at most one more. */
    IS(fi_cq_signal(cq), 0);
    IS(fi_cq_sread(cq, &entry, 1, NULL, -1), -FI_EAGAIN);
    IS(fi_close(&cq->fid), 0);
}

static void thresholds(void)
{
    begin("thresholds");
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_UNSPEC, .wait_cond = FI_CQ_COND_THRESHOLD };
    struct fi_cq_attr sender_attr = { .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_UNSPEC };
    struct fi_cq_entry entries[MESSAGES];
    side_open(&receiver, &cq_attr, NULL);
    side_open(&sender, &sender_attr, NULL);
    knows(&sender, &receiver);
    post_receives(MESSAGES);
    pthread_t thread = start_sender();
    for (int got = 0; got < MESSAGES; got += 10)
        IS(fi_cq_sread(receiver.cq, entries, 10, (void *)(uintptr_t)10, LONG_MS), 10);
    IS(fi_cq_sread(receiver.cq, entries, 10, (void *)(uintptr_t)10, 3), -FI_EAGAIN);
    join_sender(thread);
    side_close(&sender);
    side_close(&receiver);
}

static void poll_sets(void)
{
    begin("poll sets");
    struct fi_poll_attr attr = { 0 };
    struct fi_eq_attr eq_attr = { .flags = FI_WRITE };
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_CONTEXT };
    struct fi_cntr_attr cntr_attr = { .events = FI_CNTR_EVENTS_COMP };
    struct fi_cq_attr sender_attr = { .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_UNSPEC };
    struct fi_cq_entry entries[MESSAGES];
    struct fi_eq_entry event = { 0 };
    struct fid_poll *set;
    struct fid_eq *eq;
    void *contexts[4];
    side_open(&receiver, &cq_attr, &cntr_attr);
    side_open(&sender, &sender_attr, NULL);
    knows(&sender, &receiver);
    post_receives(MESSAGES);
    IS(fi_eq_open(fabric, &eq_attr, &eq, &eq), 0);
    IS(fi_poll_open(receiver.domain, &attr, &set), 0);
    IS(fi_poll(set, contexts, 4), 0);
    IS(fi_poll_add(set, &receiver.cq->fid, 0), 0);
    IS(fi_poll_add(set, &receiver.cq->fid, 0), -FI_EINVAL);
    IS(fi_poll_add(set, &receiver.cntr->fid, 0), 0);
    IS(fi_poll_add(set, &eq->fid, 0), 0);
    IS(fi_poll_add(set, &receiver.domain->fid, 0), -FI_EINVAL);
    IS(fi_poll(set, contexts, 4), 0);
    IS(fi_poll(set, NULL, 4), -FI_EINVAL);
    IS(fi_poll(set, contexts, -1), -FI_EINVAL);
    IS(fi_poll(set, contexts, 0), 0);
    IS(fi_close(&set->fid), -FI_EBUSY);
    IS(fi_close(&eq->fid), -FI_EBUSY);
    IS(fi_eq_write(eq, FI_NOTIFY, &event, sizeof(event), 0), (ssize_t)sizeof(event));
    IS(fi_poll(set, contexts, 4), 1);
    CHECK(contexts[0] == &eq);
    IS(fi_poll_del(set, &eq->fid, 0), 0);
    IS(fi_poll_del(set, &eq->fid, 0), -FI_EINVAL);
    pthread_t thread = start_sender();
    uint64_t value = 0;
    int got = 0;
    while (got < MESSAGES || value < MESSAGES) {
        int count = fi_poll(set, contexts, 4);
        CHECK(count >= 0 && count <= 2);
        for (int i = 0; i < count; i++) {
            if (contexts[i] == &receiver.cntr) {
                uint64_t now = fi_cntr_read(receiver.cntr);
                CHECK(now >= value);
                value = now;
                continue;
            }
            CHECK(contexts[i] == &receiver);
            ssize_t read = fi_cq_read(receiver.cq, entries, MESSAGES);
            CHECK(read > 0);
            got += (int)read;
        }
    }
    join_sender(thread);
    IS(fi_poll_del(set, &receiver.cq->fid, 0), 0);
    IS(fi_poll_del(set, &receiver.cntr->fid, 0), 0);
    IS(fi_close(&set->fid), 0);
    IS(fi_close(&eq->fid), 0);
    side_close(&sender);
    side_close(&receiver);
}

static void *add_later(void *counter)
{
    usleep(2000);
    IS(fi_cntr_add(counter, 1), 0);
    return NULL;
}

static void *fail_later(void *counter)
{
    usleep(2000);
    IS(fi_cntr_adderr(counter, 1), 0);
    return NULL;
}

static atomic_int failure_is_heard;

/* Only an error that comes after a wait began ends it, and when that is, only the waiter knows. Gives their count. */
static void *fail_until_heard(void *counter)
{
    uintptr_t count = 0;
    for (; !atomic_load(&failure_is_heard); count++)
        fail_later(counter);
    return (void *)count;
}

static void *lower_later(void *counter)
{
    usleep(2000);
    IS(fi_cntr_set(counter, 0), 0);
    return NULL;
}

static void counters(const char *name, enum fi_wait_obj object)
{
    begin(name);
    struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = object };
    struct fid_cntr *cntr;
    pthread_t thread;
    IS(fi_cntr_open(receiver.domain, &attr, &cntr, NULL), 0);
    IS(fi_cntr_add(cntr, 5), 0);
    IS(fi_cntr_wait(cntr, 5, -1), 0);
    IS(fi_cntr_wait(cntr, 6, 0), -FI_ETIMEDOUT);
    IS(fi_cntr_wait(cntr, 6, 3), -FI_ETIMEDOUT);
    CHECK(!pthread_create(&thread, NULL, add_later, cntr));
    IS(fi_cntr_wait(cntr, 6, -1), 0);
    pthread_join(thread, NULL);
    void *failures;
    atomic_store(&failure_is_heard, 0);
    CHECK(!pthread_create(&thread, NULL, fail_until_heard, cntr));
    IS(fi_cntr_wait(cntr, 7, -1), -FI_EAVAIL);
    atomic_store(&failure_is_heard, 1);
    pthread_join(thread, &failures);
    IS(fi_cntr_readerr(cntr), (uintptr_t)failures);
    IS(fi_cntr_read(cntr), 6);
    IS(fi_cntr_seterr(cntr, 1), 0);
    if (object != FI_WAIT_YIELD && object != FI_WAIT_UNSPEC) {
        struct fid *fid = &cntr->fid;
        int code;
        /* What it was changed by above may still be news. */
        while ((code = fi_trywait(fabric, &fid, 1)) == -FI_EAGAIN)
            IS(fi_cntr_read(cntr), 6);
        IS(code, 0);
        void *(*const changes[])(void *) = { add_later, fail_later, lower_later };
        const uint64_t values[] = { 7, 7, 0 }, errors[] = { 1, 2, 2 };
        for (int i = 0; i < 3; i++) {
            CHECK(!pthread_create(&thread, NULL, changes[i], cntr));
            while (fi_cntr_read(cntr) != values[i] || fi_cntr_readerr(cntr) != errors[i])
                sleep_native(fid, object);
            pthread_join(thread, NULL);
        }
    }
    IS(fi_close(&cntr->fid), 0);
}

static void refusals(void)
{
    begin("refusals");
    struct fi_cq_attr cq_attr = { .wait_obj = FI_WAIT_NONE };
    struct fi_cntr_attr cntr_attr = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_NONE };
    struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_NONE };
    struct fi_wait_attr wait_attr = { .wait_obj = FI_WAIT_NONE };
    struct fi_cq_entry entry;
    struct fi_eq_entry event;
    enum fi_wait_obj object;
    struct fid_cq *cq;
    struct fid_cntr *cntr;
    struct fid_eq *eq;
    struct fid_wait *set;
    uint32_t kind;
    int descriptor;
    IS(fi_cq_open(receiver.domain, &cq_attr, &cq, NULL), 0);
    IS(fi_cntr_open(receiver.domain, &cntr_attr, &cntr, NULL), 0);
    IS(fi_eq_open(fabric, &eq_attr, &eq, NULL), 0);
    IS(fi_cq_sread(cq, &entry, 1, NULL, 0), -FI_ENOSYS);
    IS(fi_cq_signal(cq), -FI_ENOSYS);
    /* Others allow it, and programs rely on that. */
    IS(fi_cntr_wait(cntr, 0, 0), 0);
    IS(fi_eq_sread(eq, &kind, &event, sizeof(event), 0, 0), -FI_ENOSYS);
    struct fid *fids[] = { &cq->fid, &cntr->fid, &eq->fid, &receiver.domain->fid };
    for (int i = 0; i < 4; i++)
        IS(fi_trywait(fabric, &fids[i], 1), -FI_EINVAL);
    IS(fi_trywait(fabric, NULL, 1), -FI_EINVAL);
    IS(fi_trywait(fabric, fids, 0), 0);
    for (int i = 0; i < 3; i++) {
        IS(fi_control(fids[i], FI_GETWAIT, &descriptor), -FI_ENODATA);
        IS(fi_control(fids[i], FI_GETWAITOBJ, &object), 0);
        CHECK(object == FI_WAIT_NONE);
        IS(fi_control(fids[i], FI_GETWAIT, NULL), -FI_EINVAL);
        IS(fi_close(fids[i]), 0);
    }
    IS(fi_wait_open(fabric, &wait_attr, &set), -FI_EINVAL);
    wait_attr.wait_obj = FI_WAIT_FD;
    wait_attr.flags = 1;
    IS(fi_wait_open(fabric, &wait_attr, &set), -FI_EINVAL);
    cq_attr.wait_obj = FI_WAIT_SET;
    IS(fi_cq_open(receiver.domain, &cq_attr, &cq, NULL), -FI_EINVAL);
    cq_attr.wait_obj = 99;
    IS(fi_cq_open(receiver.domain, &cq_attr, &cq, NULL), -FI_ENOSYS);
    cntr_attr.events = 7;
    IS(fi_cntr_open(receiver.domain, &cntr_attr, &cntr, NULL), -FI_ENOSYS);
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: waits PROVIDER SEED manual|auto\n");
        return 2;
    }
    pauses = (unsigned)atoi(argv[2]);
    signal(SIGALRM, hangs);
    begin("start");
    struct fi_info *hints = fi_allocinfo();
    CHECK(hints);
    hints->fabric_attr->prov_name = strdup(argv[1]);
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG;
    hints->mode = ~0ULL;
    hints->domain_attr->mr_mode = ~FI_MR_BASIC & ~FI_MR_SCALABLE;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->domain_attr->data_progress = strcmp(argv[3], "auto") ? FI_PROGRESS_MANUAL : FI_PROGRESS_AUTO;
    IS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), 0);
    IS(fi_fabric(info->fabric_attr, &fabric, NULL), 0);
    IS(fi_domain(fabric, info, &receiver.domain, NULL), 0);
    IS(fi_domain(fabric, info, &sender.domain, NULL), 0);

    messages("a queue", FI_WAIT_UNSPEC, SREAD, 0);
    messages("a queue that yields", FI_WAIT_YIELD, SREAD, 0);
    messages("a queue with a descriptor", FI_WAIT_FD, SREAD, 0);
    messages("the descriptor of a queue", FI_WAIT_FD, NATIVE, 0);
    messages("a queue with a condition", FI_WAIT_MUTEX_COND, SREAD, 0);
    messages("the condition of a queue", FI_WAIT_MUTEX_COND, NATIVE, 0);
    messages("the descriptors of a queue", FI_WAIT_POLLFD, NATIVE, 0);
    messages("a counter", FI_WAIT_UNSPEC, SREAD, 1);
    messages("a counter that yields", FI_WAIT_YIELD, SREAD, 1);
    messages("the descriptor of a counter", FI_WAIT_FD, NATIVE, 1);
    messages("the condition of a counter", FI_WAIT_MUTEX_COND, NATIVE, 1);
    messages("the descriptors of a counter", FI_WAIT_POLLFD, NATIVE, 1);
    messages("a set", FI_WAIT_UNSPEC, SET_WAIT, 1);
    messages("a set that yields", FI_WAIT_YIELD, SET_WAIT, 1);
    messages("a set with a descriptor", FI_WAIT_FD, SET_WAIT, 0);
    messages("the descriptor of a set", FI_WAIT_FD, SET_NATIVE, 1);
    messages("the condition of a set", FI_WAIT_MUTEX_COND, SET_NATIVE, 1);
    messages("the descriptors of a set", FI_WAIT_POLLFD, SET_NATIVE, 1);
    events("events", FI_WAIT_UNSPEC, SREAD);
    events("events that yield", FI_WAIT_YIELD, SREAD);
    events("the descriptor of events", FI_WAIT_FD, NATIVE);
    events("the condition of events", FI_WAIT_MUTEX_COND, NATIVE);
    events("the descriptors of events", FI_WAIT_POLLFD, NATIVE);
    events("a set with events", FI_WAIT_UNSPEC, SET_WAIT);
    events("the descriptor of a set with events", FI_WAIT_FD, SET_NATIVE);
    events("the condition of a set with events", FI_WAIT_MUTEX_COND, SET_NATIVE);
    signals("signals", FI_WAIT_UNSPEC);
    signals("signals to who yields", FI_WAIT_YIELD);
    signals("signals with a condition", FI_WAIT_MUTEX_COND);
    thresholds();
    poll_sets();
    counters("counters", FI_WAIT_UNSPEC);
    counters("counters that yield", FI_WAIT_YIELD);
    counters("counters with a descriptor", FI_WAIT_FD);
    counters("counters with a condition", FI_WAIT_MUTEX_COND);
    refusals();

    begin("the end");
    IS(fi_close(&sender.domain->fid), 0);
    IS(fi_close(&receiver.domain->fid), 0);
    IS(fi_close(&fabric->fid), 0);
    fi_freeinfo(info);
    fi_freeinfo(hints);
    printf("all waits ended\n");
    return 0;
}
