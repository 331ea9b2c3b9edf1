/* Completion queues, counters, event queues; poll and wait sets. */
#include "walk.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

static bool open_one(struct side *side)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_UNSPEC, 0);
    options.no_memory = options.not_enabled = true;
    struct fi_info *hints = hints_for(&options), *info = NULL;
    int code = fi_getinfo(API_VERSION, NULL, NULL, 0, hints, &info);
    fi_freeinfo(hints);
    memset(side, 0, sizeof(*side));
    if (!EXPECT("fi_getinfo", code, 0))
        return false;
    side->info = info;
    return EXPECT("fi_fabric", fi_fabric(info->fabric_attr, &side->fabric, NULL), 0) &&
           EXPECT("fi_domain", fi_domain(side->fabric, info, &side->domain, NULL), 0);
}

static const enum fi_wait_obj wait_objects[] = { FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_MUTEX_COND, FI_WAIT_YIELD };
static const char *const wait_names[] = { "no wait object", "any wait object", "a descriptor", "a mutex and condition", "yielding" };

static void *signal_later(void *queue)
{
    usleep(20000);
    fi_cq_signal(queue);
    return NULL;
}

static void walk_cq_wait(struct side *side, enum fi_wait_obj object, const char *name)
{
    struct fi_cq_attr attr = { .size = 16, .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = object };
    struct fid_cq *cq = NULL;
    struct fi_cq_entry entry;
    int code = fi_cq_open(side->domain, &attr, &cq, NULL);
    if (code == -FI_ENOSYS || code == -FI_EOPNOTSUPP) {
        absent(name, "not offered for completion queues");
        return;
    }
    if (!EXPECT(name, code, 0))
        return;
    EXPECT("fi_cq_read when there is nothing", fi_cq_read(cq, &entry, 1), -FI_EAGAIN);
    EXPECT("fi_cq_read of none when there is nothing", fi_cq_read(cq, NULL, 0), -FI_EAGAIN, 0);
    if (object == FI_WAIT_NONE) {
        EXPECT("fi_cq_sread without a wait object", fi_cq_sread(cq, &entry, 1, NULL, 0), -FI_EINVAL, -FI_ENOSYS, -FI_EOPNOTSUPP, -FI_EAGAIN);
    } else {
        EXPECT("fi_cq_sread that need not wait", fi_cq_sread(cq, &entry, 1, NULL, 0), -FI_EAGAIN);
        EXPECT("fi_cq_sread for 10 ms", fi_cq_sread(cq, &entry, 1, NULL, 10), -FI_EAGAIN);
        pthread_t thread;
        code = fi_cq_signal(cq);
        if (code == -FI_ENOSYS) {
            absent("fi_cq_signal", "not offered");
        } else if (EXPECT("fi_cq_signal", code, 0)) {
            /* Without a timeout, as its end would look the same. */
            EXPECT("fi_cq_sread that was signalled before", fi_cq_sread(cq, &entry, 1, NULL, -1), -FI_EAGAIN, -FI_ECANCELED);
            if (!pthread_create(&thread, NULL, signal_later, cq)) {
                EXPECT("fi_cq_sread that is signalled", fi_cq_sread(cq, &entry, 1, NULL, -1), -FI_EAGAIN, -FI_ECANCELED);
                pthread_join(thread, NULL);
            }
        }
    }
    if (object == FI_WAIT_FD) {
        int descriptor = -1;
        if (EXPECT("FI_GETWAIT", fi_control(&cq->fid, FI_GETWAIT, &descriptor), 0)) {
            struct fid *fids[] = { &cq->fid };
            struct pollfd poll_descriptor = { .fd = descriptor, .events = POLLIN };
            code = fi_trywait(side->fabric, fids, 1);
            /* A signal that nobody took may still be there. */
            for (int tries = 0; code == -FI_EAGAIN && tries < 100; tries++) {
                fi_cq_read(cq, &entry, 1);
                code = fi_trywait(side->fabric, fids, 1);
            }
            EXPECT("fi_trywait when there is nothing", code, 0);
            EXPECT("poll of its descriptor when there is nothing", poll(&poll_descriptor, 1, 0), 0);
        }
    } else if (object == FI_WAIT_MUTEX_COND) {
        struct fi_mutex_cond pair = { NULL, NULL };
        if (EXPECT("FI_GETWAIT", fi_control(&cq->fid, FI_GETWAIT, &pair), 0))
            CHECK("mutex and condition are there", pair.mutex && pair.cond);
    } else if (object == FI_WAIT_NONE) {
        int descriptor = -1;
        code = fi_control(&cq->fid, FI_GETWAIT, &descriptor);
        EXPECT("FI_GETWAIT without a wait object", code, -FI_ENODATA, -FI_EINVAL, -FI_ENOSYS, -FI_EOPNOTSUPP);
    }
    EXPECT("fi_close", fi_close(&cq->fid), 0);
}

/* Each format: a message to itself is reported with the fields of the format. */
static void walk_cq_format(enum fi_cq_format format, const char *name)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG);
    options.not_enabled = true;
    static struct side side;
    int code = side_open(&side, &options);
    if (code == -FI_ENODATA) {
        absent(name, "no rdm endpoint");
        return;
    }
    if (!EXPECT("an endpoint that is not enabled", code, 0))
        return;
    /* A second endpoint on the same domain with a queue of the format. */
    struct fi_cq_attr attr = { .size = 16, .format = format };
    struct fid_cq *cq = NULL;
    struct fid_ep *ep = NULL;
    struct fid_av *av = NULL;
    struct fi_av_attr av_attr = { 0 };
    char address[256], context_of_send, context_of_receive;
    size_t length = sizeof(address);
    fi_addr_t self = 0;
    union {
        struct fi_cq_entry context;
        struct fi_cq_msg_entry message;
        struct fi_cq_data_entry data;
        struct fi_cq_tagged_entry tagged;
    } entry;
    if (!EXPECT(name, fi_cq_open(side.domain, &attr, &cq, NULL), 0) ||
        !EXPECT("fi_av_open", fi_av_open(side.domain, &av_attr, &av, NULL), 0) ||
        !EXPECT("fi_endpoint", fi_endpoint(side.domain, side.info, &ep, NULL), 0) ||
        !EXPECT("fi_ep_bind to the queue", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), 0) ||
        !EXPECT("fi_ep_bind to the vector", fi_ep_bind(ep, &av->fid, 0), 0) || !EXPECT("fi_enable", fi_enable(ep), 0) ||
        !EXPECT("fi_getname", fi_getname(&ep->fid, address, &length), 0) ||
        !EXPECT("fi_av_insert", fi_av_insert(av, address, 1, &self, 0, NULL), 1))
        goto out;
    EXPECT("fi_close of a queue in use", fi_close(&cq->fid), -FI_EBUSY);
    EXPECT("fi_close of a vector in use", fi_close(&av->fid), -FI_EBUSY);
    fill(side.memory, 64, 3);
    EXPECT("fi_recv", fi_recv(ep, side.memory + 4096, 128, side.region.descriptor, FI_ADDR_UNSPEC, &context_of_receive), 0);
    EXPECT("fi_send to itself", POST(fi_send(ep, side.memory, 64, side.region.descriptor, self, &context_of_send)), 0);
    for (int seen = 0; seen < 2;) {
        double end = seconds() + HANG_GUARD_S;
        ssize_t got;
        memset(&entry, 0, sizeof(entry));
        while ((got = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN && seconds() < end)
            ;
        if (!EXPECT("fi_cq_read", got, 1))
            break;
        seen++;
        if (entry.context.op_context == &context_of_receive) {
            if (format >= FI_CQ_FORMAT_MSG) {
                CHECK("flags of a receive", (entry.message.flags & (FI_MSG | FI_RECV)) == (FI_MSG | FI_RECV));
                CHECK("length of a receive", entry.message.len == 64);
            }
        } else {
            CHECK("context of a send", entry.context.op_context == &context_of_send);
            if (format >= FI_CQ_FORMAT_MSG)
                CHECK("flags of a send", (entry.message.flags & (FI_MSG | FI_SEND)) == (FI_MSG | FI_SEND));
        }
    }
    CHECK("the message arrived", filled(side.memory + 4096, 64, 3));
    EXPECT("fi_cq_read when all is read", fi_cq_read(cq, &entry, 1), -FI_EAGAIN);
out:
    if (ep)
        EXPECT("fi_close of the endpoint", fi_close(&ep->fid), 0);
    if (cq)
        EXPECT("fi_close of the queue", fi_close(&cq->fid), 0);
    if (av)
        EXPECT("fi_close of the vector", fi_close(&av->fid), 0);
    side_close(&side);
}

void walk_cq(void)
{
    static struct side side;
    struct fid_cq *cq = NULL;
    struct fi_cq_err_entry error;
    char text[128];

    if (!open_one(&side))
        goto out;
    memset(&error, 0, sizeof(error));
    struct fi_cq_attr attr = { .size = 0, .format = FI_CQ_FORMAT_UNSPEC };
    if (EXPECT("all by default", fi_cq_open(side.domain, &attr, &cq, &side), 0)) {
        CHECK("its class", cq->fid.fclass == FI_CLASS_CQ);
        CHECK("its context", cq->fid.context == &side);
        EXPECT("fi_cq_readerr when there is nothing", fi_cq_readerr(cq, &error, 0), -FI_EAGAIN);
        if (!gentle)
            CHECK("fi_cq_strerror says something", fi_cq_strerror(cq, FI_ETRUNC, NULL, text, sizeof(text)) != NULL);
        if (!gentle)
            EXPECT("a domain with a queue open", fi_close(&side.domain->fid), -FI_EBUSY);
        EXPECT("fi_control with an unknown command", fi_control(&cq->fid, 9999, NULL), -FI_ENOSYS, -FI_EINVAL, -FI_EOPNOTSUPP);
        EXPECT("fi_close", fi_close(&cq->fid), 0);
    }
    attr = (struct fi_cq_attr){ .size = 16, .format = 99 };
    EXPECT("an unknown format", fi_cq_open(side.domain, &attr, &cq, NULL), -FI_ENOSYS, -FI_EINVAL);
    attr = (struct fi_cq_attr){ .size = 16, .format = FI_CQ_FORMAT_MSG, .wait_obj = 99 };
    EXPECT("an unknown wait object", fi_cq_open(side.domain, &attr, &cq, NULL), -FI_ENOSYS, -FI_EINVAL);
    attr = (struct fi_cq_attr){ .size = 16, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_SET };
    if (!gentle)
        EXPECT("a wait set that is not there", fi_cq_open(side.domain, &attr, &cq, NULL), -FI_EINVAL, -FI_ENOSYS);
    for (size_t i = 0; i < COUNT_OF(wait_objects); i++)
        walk_cq_wait(&side, wait_objects[i], wait_names[i]);
out:
    side_close(&side);
    walk_cq_format(FI_CQ_FORMAT_CONTEXT, "the context format");
    walk_cq_format(FI_CQ_FORMAT_MSG, "the message format");
    walk_cq_format(FI_CQ_FORMAT_DATA, "the data format");
    walk_cq_format(FI_CQ_FORMAT_TAGGED, "the tagged format");
}

static void *add_later(void *counter)
{
    usleep(20000);
    fi_cntr_add(counter, 1);
    return NULL;
}

static atomic_bool error_is_heard;

/* Only an error that comes after a wait began ends it, and when that is, only the waiter knows. */
static void *add_errors_until_heard(void *counter)
{
    while (!error_is_heard) {
        usleep(20000);
        fi_cntr_adderr(counter, 1);
    }
    return NULL;
}

static void walk_cntr_wait(struct side *side, enum fi_wait_obj object, const char *name)
{
    struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = object };
    struct fid_cntr *cntr = NULL;
    int code = fi_cntr_open(side->domain, &attr, &cntr, NULL);
    if (code == -FI_ENOSYS || code == -FI_EOPNOTSUPP || code == -FI_EINVAL) {
        absent(name, "not offered for counters");
        return;
    }
    if (!EXPECT(name, code, 0))
        return;
    EXPECT("fi_cntr_add", fi_cntr_add(cntr, 5), 0);
    if (object == FI_WAIT_NONE) {
        EXPECT("fi_cntr_wait without a wait object", fi_cntr_wait(cntr, 6, 0), -FI_EINVAL, -FI_ENOSYS, -FI_ETIMEDOUT, -FI_EOPNOTSUPP);
    } else {
        EXPECT("fi_cntr_wait for what is reached", fi_cntr_wait(cntr, 5, -1), 0);
        EXPECT("fi_cntr_wait for what is not", fi_cntr_wait(cntr, 6, 10), -FI_ETIMEDOUT);
        EXPECT("fi_cntr_wait that need not wait", fi_cntr_wait(cntr, 6, 0), -FI_ETIMEDOUT);
        pthread_t thread;
        if (!pthread_create(&thread, NULL, add_later, cntr)) {
            EXPECT("fi_cntr_wait for another thread", fi_cntr_wait(cntr, 6, HANG_GUARD_S * 1000), 0);
            pthread_join(thread, NULL);
        }
        /* Any change of the error value ends a wait. */
        error_is_heard = false;
        if (!pthread_create(&thread, NULL, add_errors_until_heard, cntr)) {
            EXPECT("fi_cntr_wait when another thread adds an error", fi_cntr_wait(cntr, 1000, HANG_GUARD_S * 1000), -FI_EAVAIL);
            error_is_heard = true;
            pthread_join(thread, NULL);
        }
    }
    if (object == FI_WAIT_FD) {
        int descriptor = -1;
        EXPECT("FI_GETWAIT", fi_control(&cntr->fid, FI_GETWAIT, &descriptor), 0);
        CHECK("the descriptor is one", descriptor >= 0);
    }
    EXPECT("fi_close", fi_close(&cntr->fid), 0);
}

void walk_cntr(void)
{
    static struct side side;
    struct fid_cntr *cntr = NULL;
    if (!open_one(&side))
        goto out;
    struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_NONE };
    int code = fi_cntr_open(side.domain, &attr, &cntr, &side);
    if (code == -FI_ENOSYS || code == -FI_EOPNOTSUPP) {
        absent("fi_cntr_open", "no counters");
        goto out;
    }
    if (EXPECT("fi_cntr_open", code, 0)) {
        CHECK("its class", cntr->fid.fclass == FI_CLASS_CNTR);
        CHECK("its context", cntr->fid.context == &side);
        CHECK("it begins at 0", fi_cntr_read(cntr) == 0 && fi_cntr_readerr(cntr) == 0);
        EXPECT("fi_cntr_add", fi_cntr_add(cntr, 7), 0);
        EXPECT("fi_cntr_read after an add", fi_cntr_read(cntr), 7);
        EXPECT("fi_cntr_set", fi_cntr_set(cntr, 3), 0);
        EXPECT("fi_cntr_read after a set", fi_cntr_read(cntr), 3);
        EXPECT("fi_cntr_adderr", fi_cntr_adderr(cntr, 2), 0);
        EXPECT("fi_cntr_readerr after an add", fi_cntr_readerr(cntr), 2);
        EXPECT("fi_cntr_seterr", fi_cntr_seterr(cntr, 9), 0);
        EXPECT("fi_cntr_readerr after a set", fi_cntr_readerr(cntr), 9);
        CHECK("values and errors are two numbers", fi_cntr_read(cntr) == 3);
        if (!gentle)
            EXPECT("a domain with a counter open", fi_close(&side.domain->fid), -FI_EBUSY);
        EXPECT("fi_close", fi_close(&cntr->fid), 0);
    }
    attr = (struct fi_cntr_attr){ .events = 99 };
    EXPECT("unknown events", fi_cntr_open(side.domain, &attr, &cntr, NULL), -FI_ENOSYS, -FI_EINVAL);
    attr = (struct fi_cntr_attr){ .events = FI_CNTR_EVENTS_COMP, .wait_obj = 99 };
    EXPECT("an unknown wait object", fi_cntr_open(side.domain, &attr, &cntr, NULL), -FI_ENOSYS, -FI_EINVAL);
    attr = (struct fi_cntr_attr){ .events = FI_CNTR_EVENTS_COMP, .flags = 1ULL << 60 };
    EXPECT("unknown flags", fi_cntr_open(side.domain, &attr, &cntr, NULL), -FI_EINVAL, -FI_EBADFLAGS);
    for (size_t i = 0; i < COUNT_OF(wait_objects); i++)
        walk_cntr_wait(&side, wait_objects[i], wait_names[i]);
out:
    side_close(&side);
}

static void *write_later(void *queue)
{
    struct fi_eq_entry entry = { .context = queue };
    usleep(20000);
    fi_eq_write(queue, FI_NOTIFY, &entry, sizeof(entry), 0);
    return NULL;
}

static void walk_eq_events(struct fid_eq *eq, bool waits)
{
    struct fi_eq_entry entry = { .fid = &eq->fid, .context = &entry, .data = 42 }, got;
    uint32_t event = 0;
    char little[4];

    EXPECT("fi_eq_read when there is nothing", fi_eq_read(eq, &event, &got, sizeof(got), 0), -FI_EAGAIN);
    struct fi_eq_err_entry error;
    memset(&error, 0, sizeof(error));
    EXPECT("fi_eq_readerr when there is nothing", fi_eq_readerr(eq, &error, 0), -FI_EAGAIN);
    EXPECT("fi_eq_write", fi_eq_write(eq, FI_NOTIFY, &entry, sizeof(entry), 0), sizeof(entry));
    EXPECT("fi_eq_read into too little", fi_eq_read(eq, &event, little, sizeof(little), 0), -FI_ETOOSMALL);
    memset(&got, 0, sizeof(got));
    EXPECT("fi_eq_read that only looks", fi_eq_read(eq, &event, &got, sizeof(got), FI_PEEK), sizeof(got));
    CHECK("what it saw", event == FI_NOTIFY && got.context == &entry && got.data == 42);
    memset(&got, 0, sizeof(got));
    EXPECT("fi_eq_read", fi_eq_read(eq, &event, &got, sizeof(got), 0), sizeof(got));
    CHECK("what it read", event == FI_NOTIFY && got.context == &entry && got.data == 42 && got.fid == &eq->fid);
    EXPECT("fi_eq_read when all is read", fi_eq_read(eq, &event, &got, sizeof(got), 0), -FI_EAGAIN);
    if (waits) {
        pthread_t thread;
        EXPECT("fi_eq_sread for 10 ms", fi_eq_sread(eq, &event, &got, sizeof(got), 10, 0), -FI_EAGAIN);
        if (!pthread_create(&thread, NULL, write_later, eq)) {
            EXPECT("fi_eq_sread for another thread", fi_eq_sread(eq, &event, &got, sizeof(got), HANG_GUARD_S * 1000, 0), sizeof(got));
            pthread_join(thread, NULL);
            CHECK("what it read", got.context == eq);
        }
    }
    CHECK("fi_eq_strerror says something", fi_eq_strerror(eq, FI_ECONNREFUSED, NULL, little, sizeof(little)) != NULL);
}

void walk_eq(void)
{
    static struct side side;
    struct fid_eq *eq = NULL;
    if (!open_one(&side))
        goto out;
    for (size_t i = 0; i < COUNT_OF(wait_objects); i++) {
        struct fi_eq_attr attr = { .size = 16, .flags = FI_WRITE, .wait_obj = wait_objects[i] };
        int code = fi_eq_open(side.fabric, &attr, &eq, &side);
        if (code == -FI_ENOSYS || code == -FI_EOPNOTSUPP || code == -FI_EINVAL) {
            absent(wait_names[i], "not offered for event queues");
            continue;
        }
        if (!EXPECT(wait_names[i], code, 0))
            continue;
        CHECK("its class", eq->fid.fclass == FI_CLASS_EQ);
        CHECK("its context", eq->fid.context == &side);
        walk_eq_events(eq, wait_objects[i] != FI_WAIT_NONE);
        if (wait_objects[i] == FI_WAIT_FD) {
            int descriptor = -1;
            struct fi_eq_entry entry = { 0 };
            uint32_t event;
            struct pollfd poll_descriptor;
            struct fid *fids[] = { &eq->fid };
            EXPECT("FI_GETWAIT", fi_control(&eq->fid, FI_GETWAIT, &descriptor), 0);
            poll_descriptor = (struct pollfd){ .fd = descriptor, .events = POLLIN };
            EXPECT("fi_trywait when there is nothing", fi_trywait(side.fabric, fids, 1), 0);
            EXPECT("poll when there is nothing", poll(&poll_descriptor, 1, 0), 0);
            EXPECT("fi_eq_write", fi_eq_write(eq, FI_NOTIFY, &entry, sizeof(entry), 0), sizeof(entry));
            EXPECT("poll when there is something", poll(&poll_descriptor, 1, HANG_GUARD_S * 1000), 1);
            EXPECT("fi_trywait when there is something", fi_trywait(side.fabric, fids, 1), -FI_EAGAIN);
            EXPECT("fi_eq_read", fi_eq_read(eq, &event, &entry, sizeof(entry), 0), sizeof(entry));
        }
        EXPECT("fi_close", fi_close(&eq->fid), 0);
    }
    struct fi_eq_attr attr = { .size = 16, .wait_obj = FI_WAIT_NONE };
    if (EXPECT("a queue that is not for writing", fi_eq_open(side.fabric, &attr, &eq, NULL), 0)) {
        struct fi_eq_entry entry = { 0 };
        EXPECT("fi_eq_write to it", fi_eq_write(eq, FI_NOTIFY, &entry, sizeof(entry), 0), -FI_EINVAL, -FI_EACCES, -FI_EPERM, -FI_ENOSYS);
        EXPECT("fi_close", fi_close(&eq->fid), 0);
    }
    attr.wait_obj = 99;
    EXPECT("an unknown wait object", fi_eq_open(side.fabric, &attr, &eq, NULL), -FI_ENOSYS, -FI_EINVAL);
out:
    side_close(&side);
}

static void walk_poll_set(struct side *side)
{
    struct fi_poll_attr attr = { 0 };
    struct fi_cntr_attr cntr_attr = { .events = FI_CNTR_EVENTS_COMP };
    struct fi_cq_attr cq_attr = { .size = 16, .format = FI_CQ_FORMAT_CONTEXT };
    struct fid_poll *set = NULL;
    struct fid_cntr *cntr = NULL;
    struct fid_cq *cq = NULL;
    void *contexts[4] = { NULL };
    int code = fi_poll_open(side->domain, &attr, &set);
    if (code == -FI_ENOSYS || code == -FI_EOPNOTSUPP) {
        absent("fi_poll_open", "no poll sets");
        return;
    }
    if (!EXPECT("fi_poll_open", code, 0))
        return;
    EXPECT("fi_poll of nothing", fi_poll(set, contexts, 4), 0);
    if (EXPECT("fi_cq_open", fi_cq_open(side->domain, &cq_attr, &cq, &cq), 0)) {
        EXPECT("fi_poll_add of a queue", fi_poll_add(set, &cq->fid, 0), 0);
        EXPECT("fi_poll_add of no queue or counter", fi_poll_add(set, &side->domain->fid, 0), -FI_EINVAL, -FI_ENOSYS, 0);
        EXPECT("fi_poll of an empty queue", fi_poll(set, contexts, 4), 0);
        EXPECT("fi_poll_del of a queue", fi_poll_del(set, &cq->fid, 0), 0);
        EXPECT("fi_poll_del again", fi_poll_del(set, &cq->fid, 0), -FI_EINVAL, -FI_ENOENT, -FI_ENODATA, 0);
    }
    if (!fi_cntr_open(side->domain, &cntr_attr, &cntr, &cntr)) {
        EXPECT("fi_poll_add of a counter", fi_poll_add(set, &cntr->fid, 0), 0);
        EXPECT("fi_cntr_add", fi_cntr_add(cntr, 1), 0);
        EXPECT("fi_poll of a counter that moved", fi_poll(set, contexts, 4), 1);
        CHECK("its context", contexts[0] == &cntr);
        EXPECT("fi_poll_del of a counter", fi_poll_del(set, &cntr->fid, 0), 0);
        EXPECT("fi_close of the counter", fi_close(&cntr->fid), 0);
    }
    if (cq)
        EXPECT("fi_close of the queue", fi_close(&cq->fid), 0);
    EXPECT("fi_close", fi_close(&set->fid), 0);
    attr.flags = 1ULL << 60;
    EXPECT("unknown flags", fi_poll_open(side->domain, &attr, &set), -FI_EINVAL, -FI_EBADFLAGS);
}

static void walk_wait_set(struct side *side, enum fi_wait_obj object, const char *name)
{
    struct fi_wait_attr attr = { .wait_obj = object };
    struct fid_wait *set = NULL;
    struct fid_cq *cq = NULL;
    struct fid_cntr *cntr = NULL;
    int code = fi_wait_open(side->fabric, &attr, &set);
    if (code == -FI_ENOSYS || code == -FI_EOPNOTSUPP || code == -FI_EINVAL) {
        absent(name, "not offered for wait sets");
        return;
    }
    if (!EXPECT(name, code, 0))
        return;
    struct fi_cq_attr cq_attr = { .size = 16, .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_SET, .wait_set = set };
    struct fi_cntr_attr cntr_attr = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_SET, .wait_set = set };
    if (EXPECT("a queue of a wait set", fi_cq_open(side->domain, &cq_attr, &cq, NULL), 0)) {
        if (!gentle)
            EXPECT("fi_close of a set in use", fi_close(&set->fid), -FI_EBUSY);
        EXPECT("fi_wait when there is nothing", fi_wait(set, 10), -FI_ETIMEDOUT, -FI_EAGAIN);
    }
    if (!fi_cntr_open(side->domain, &cntr_attr, &cntr, NULL)) {
        EXPECT("fi_cntr_add", fi_cntr_add(cntr, 1), 0);
        EXPECT("fi_wait for a counter that moved", fi_wait(set, HANG_GUARD_S * 1000), 0);
        EXPECT("fi_close of the counter", fi_close(&cntr->fid), 0);
    }
    if (cq)
        EXPECT("fi_close of the queue", fi_close(&cq->fid), 0);
    EXPECT("fi_close", fi_close(&set->fid), 0);
}

void walk_sets(void)
{
    static struct side side;
    if (open_one(&side)) {
        walk_poll_set(&side);
        walk_wait_set(&side, FI_WAIT_UNSPEC, "a wait set of any kind");
        walk_wait_set(&side, FI_WAIT_FD, "a wait set with a descriptor");
        walk_wait_set(&side, FI_WAIT_MUTEX_COND, "a wait set with mutex and condition");
        struct fi_wait_attr attr = { .wait_obj = 99 };
        struct fid_wait *set = NULL;
        EXPECT("a wait set of an unknown kind", fi_wait_open(side.fabric, &attr, &set), -FI_EINVAL, -FI_ENOSYS);
    }
    side_close(&side);
}
