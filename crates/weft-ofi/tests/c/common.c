/* See common.h. */
#include "common.h"

#include <sched.h>
#include <time.h>

const char *provider = "weft";
const char *current_part = "";
unsigned ok_count, fail_count, absent_count;
bool everything_is_asked;
bool gentle;

/* ---- reports ---- */

bool report(bool good, const char *name, const char *file, int line, const char *reason)
{
    if (good) {
        ok_count++;
        printf("ok %s: %s\n", current_part, name);
    } else {
        fail_count++;
        printf("FAIL %s: %s %s:%d %s\n", current_part, name, file, line, reason);
    }
    fflush(stdout);
    return good;
}

bool expect_code(const char *name, long got, const char *file, int line, const long *wanted, size_t wanted_count)
{
    char reason[256];
    for (size_t i = 0; i < wanted_count; i++)
        if (got == wanted[i])
            return report(true, name, file, line, "");
    snprintf(reason, sizeof(reason), "got %ld (%s), wanted %ld (%s)%s", got, got < 0 ? fi_strerror((int)-got) : "",
             wanted[0], wanted[0] < 0 ? fi_strerror((int)-wanted[0]) : "", wanted_count > 1 ? " or another" : "");
    return report(false, name, file, line, reason);
}

void absent(const char *name, const char *reason)
{
    if (everything_is_asked) {
        report(false, name, "walk", 0, reason);
        return;
    }
    absent_count++;
    printf("absent %s: %s (%s)\n", current_part, name, reason);
    fflush(stdout);
}

double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* ---- completions ---- */

#define INBOXES 64
static struct inbox *inboxes[INBOXES];
static struct side *sides[INBOXES];

void inbox_add(struct inbox *inbox, struct fid_cq *cq)
{
    inbox->cq = cq;
    inbox->head = inbox->tail = 0;
    for (int i = 0; i < INBOXES; i++)
        if (!inboxes[i]) {
            inboxes[i] = inbox;
            return;
        }
    abort();
}

void inbox_remove(struct inbox *inbox)
{
    for (int i = 0; i < INBOXES; i++)
        if (inboxes[i] == inbox)
            inboxes[i] = NULL;
    inbox->cq = NULL;
}

static void read_once(struct inbox *inbox)
{
    struct event *event = &inbox->events[inbox->tail % INBOX_ENTRIES];
    if (inbox->tail - inbox->head == INBOX_ENTRIES)
        return;
    memset(event, 0, sizeof(*event));
    event->source = FI_ADDR_NOTAVAIL;
    ssize_t got = fi_cq_readfrom(inbox->cq, &event->entry, 1, &event->source);
    if (got == 1) {
        inbox->tail++;
    } else if (got == -FI_EAVAIL) {
        struct fi_cq_err_entry error;
        memset(&error, 0, sizeof(error));
        if (fi_cq_readerr(inbox->cq, &error, 0) != 1)
            return;
        event->entry.op_context = error.op_context;
        event->entry.flags = error.flags;
        event->entry.len = error.len;
        event->entry.buf = error.buf;
        event->entry.data = error.data;
        event->entry.tag = error.tag;
        event->error = error.err;
        event->provider_error = error.prov_errno;
        event->overflow = error.olen;
        inbox->tail++;
    } else if (got != -FI_EAGAIN && got != -FI_EINTR) {
        report(false, "fi_cq_readfrom", __FILE__, __LINE__, fi_strerror((int)-got));
        exit(1);
    }
}

/* Reads every open queue once, without giving the processor away. */
static void look(void)
{
    for (int i = 0; i < INBOXES; i++)
        if (inboxes[i])
            read_once(inboxes[i]);
    for (int i = 0; i < INBOXES; i++)
        if (sides[i] && sides[i]->counters[0])
            for (int kind = 0; kind < COUNTER_KINDS; kind++)
                fi_cntr_read(sides[i]->counters[kind]);
    /* Connections are made while their event queue is looked at. */
    for (int i = 0; i < INBOXES; i++)
        if (sides[i] && sides[i]->eq) {
            uint32_t kind;
            unsigned char event[1024];
            fi_eq_read(sides[i]->eq, &kind, event, sizeof(event), FI_PEEK);
        }
}

void drive(void)
{
    look();
    sched_yield();
}

bool take_at(struct inbox *inbox, struct event *event, const char *name, const char *file, int line)
{
    double end = seconds() + HANG_GUARD_S;
    while (inbox->head == inbox->tail) {
        if (seconds() > end) {
            memset(event, 0, sizeof(*event));
            return report(false, name, file, line, "no completion came");
        }
        drive();
    }
    *event = inbox->events[inbox->head++ % INBOX_ENTRIES];
    return true;
}

bool nothing_comes(struct inbox *inbox)
{
    for (int round = 0; round < 2000 && inbox->head == inbox->tail; round++) {
        look();
        /* Each time, all others who want the processor may have their turn: on a busy machine that adds up. */
        if (round % 16 == 0)
            sched_yield();
    }
    return inbox->head == inbox->tail;
}

bool finish_at(struct inbox *inbox, void *context, const char *name, const char *file, int line)
{
    struct event event;
    if (!take_at(inbox, &event, name, file, line))
        return false;
    if (event.error)
        return report(false, name, file, line, fi_strerror(event.error));
    return report(event.entry.op_context == context, name, file, line, "the context is another's");
}

bool finish_error_at(struct inbox *inbox, int error, struct event *event, const char *name, const char *file, int line)
{
    char reason[128];
    if (!take_at(inbox, event, name, file, line))
        return false;
    snprintf(reason, sizeof(reason), "got error %d (%s), wanted %d (%s)", event->error,
             event->error ? fi_strerror(event->error) : "success", error, fi_strerror(error));
    return report(event->error == error, name, file, line, reason);
}

/* ---- sides ---- */

struct fi_info *hints_for(const struct side_options *options)
{
    struct fi_info *hints = fi_allocinfo();
    if (!hints)
        abort();
    hints->fabric_attr->prov_name = strdup(provider);
    hints->ep_attr->type = options->type;
    hints->caps = options->caps;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->mr_mode =
        options->only_mr_mode >= 0
            ? options->only_mr_mode
            : FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT | FI_MR_RAW;
    hints->domain_attr->threading = options->threading;
    hints->domain_attr->control_progress = options->progress;
    hints->domain_attr->data_progress = options->progress;
    hints->tx_attr->op_flags = options->transmit_flags;
    hints->tx_attr->msg_order = options->message_order;
    hints->rx_attr->msg_order = options->message_order;
    return hints;
}

int side_open(struct side *side, const struct side_options *options)
{
    struct fi_info *hints = hints_for(options), *info = NULL;
    int code = fi_getinfo(API_VERSION, "127.0.0.1", NULL, FI_SOURCE, hints, &info);
    fi_freeinfo(hints);
    if (code)
        return code;
    code = side_open_with(side, info, options);
    fi_freeinfo(info);
    return code;
}

static int open_counters(struct side *side)
{
    static const uint64_t flags[COUNTER_KINDS] = { FI_SEND, FI_RECV, FI_READ, FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE };
    struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC };
    for (int kind = 0; kind < COUNTER_KINDS; kind++) {
        int code = fi_cntr_open(side->domain, &attr, &side->counters[kind], side);
        if (!code)
            code = fi_ep_bind(side->ep, &side->counters[kind]->fid, flags[kind]);
        if (code)
            return code;
    }
    return 0;
}

int side_open_with(struct side *side, struct fi_info *info, const struct side_options *options)
{
    struct fi_cq_attr cq_attr = { .size = 1024, .format = FI_CQ_FORMAT_TAGGED };
    struct fi_av_attr av_attr = { .type = options->av_type, .count = 64 };
    struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_UNSPEC };
    struct fid_cq *cq;
    int code;

    memset(side, 0, sizeof(*side));
    side->peer = FI_ADDR_UNSPEC;
    side->info = fi_dupinfo(info);
    side->fabric = options->fabric;
    side->fabric_is_borrowed = options->fabric != NULL;
    if ((!side->fabric && (code = fi_fabric(side->info->fabric_attr, &side->fabric, side))) ||
        (code = fi_domain(side->fabric, side->info, &side->domain, side)) ||
        (code = fi_endpoint(side->domain, side->info, &side->ep, side)) ||
        (code = fi_cq_open(side->domain, &cq_attr, &cq, side)))
        goto failed;
    inbox_add(&side->transmit, cq);
    if ((code = fi_cq_open(side->domain, &cq_attr, &cq, side)))
        goto failed;
    inbox_add(&side->receive, cq);
    if ((code = fi_ep_bind(side->ep, &side->transmit.cq->fid, FI_TRANSMIT | options->bind_flags)) ||
        (code = fi_ep_bind(side->ep, &side->receive.cq->fid, FI_RECV | options->bind_flags)))
        goto failed;
    if (options->type == FI_EP_MSG) {
        if ((code = fi_eq_open(side->fabric, &eq_attr, &side->eq, side)) ||
            (code = fi_ep_bind(side->ep, &side->eq->fid, 0)))
            goto failed;
    } else if ((code = fi_av_open(side->domain, &av_attr, &side->av, side)) ||
               (code = fi_ep_bind(side->ep, &side->av->fid, 0))) {
        goto failed;
    }
    if (options->counters && (code = open_counters(side)))
        goto failed;
    if (!options->not_enabled && (code = fi_enable(side->ep)))
        goto failed;
    if (!options->no_memory) {
        uint64_t access = FI_SEND | FI_RECV;
        if (side->info->caps & (FI_RMA | FI_ATOMIC))
            access |= FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
        if (posix_memalign((void **)&side->memory, 4096, SIDE_MEMORY_BYTES))
            abort();
        memset(side->memory, 0, SIDE_MEMORY_BYTES);
        if ((code = region_open(side, side->memory, SIDE_MEMORY_BYTES, access, &side->region)))
            goto failed;
    }
    for (int i = 0; i < INBOXES; i++)
        if (!sides[i]) {
            sides[i] = side;
            return 0;
        }
    abort();
failed:
    side_close(side);
    return code;
}

void side_close(struct side *side)
{
    struct fid_cq *transmit = side->transmit.cq, *receive = side->receive.cq;
    for (int i = 0; i < INBOXES; i++)
        if (sides[i] == side)
            sides[i] = NULL;
    inbox_remove(&side->transmit);
    inbox_remove(&side->receive);
    region_close(&side->region);
    if (side->ep && fi_close(&side->ep->fid))
        report(false, "fi_close of an endpoint", __FILE__, __LINE__, "refused");
    for (int kind = 0; kind < COUNTER_KINDS; kind++)
        if (side->counters[kind] && fi_close(&side->counters[kind]->fid))
            report(false, "fi_close of a counter", __FILE__, __LINE__, "refused");
    if (side->av && fi_close(&side->av->fid))
        report(false, "fi_close of an address vector", __FILE__, __LINE__, "refused");
    if (transmit && fi_close(&transmit->fid))
        report(false, "fi_close of a transmit queue", __FILE__, __LINE__, "refused");
    if (receive && fi_close(&receive->fid))
        report(false, "fi_close of a receive queue", __FILE__, __LINE__, "refused");
    if (side->eq && fi_close(&side->eq->fid))
        report(false, "fi_close of an event queue", __FILE__, __LINE__, "refused");
    if (side->domain && fi_close(&side->domain->fid))
        report(false, "fi_close of a domain", __FILE__, __LINE__, "refused");
    if (side->fabric && !side->fabric_is_borrowed && fi_close(&side->fabric->fid))
        report(false, "fi_close of a fabric", __FILE__, __LINE__, "refused");
    fi_freeinfo(side->info);
    free(side->memory);
    memset(side, 0, offsetof(struct side, transmit));
    memset(side->counters, 0, sizeof(side->counters));
    side->memory = NULL;
}

static int insert_name_of(struct side *from, struct side *into)
{
    char name[256];
    size_t length = sizeof(name);
    int code = fi_getname(&from->ep->fid, name, &length);
    if (code)
        return code;
    code = fi_av_insert(into->av, name, 1, &into->peer, 0, NULL);
    return code == 1 ? 0 : code < 0 ? code : -FI_EOTHER;
}

int sides_meet(struct side *a, struct side *b)
{
    int code = insert_name_of(a, b);
    return code ? code : insert_name_of(b, a);
}

bool pair_open(struct side *a, struct side *b, const struct side_options *options, const char *name)
{
    int code = side_open(a, options);
    if (code == -FI_ENODATA) {
        absent(name, "fi_getinfo has nothing like it");
        return false;
    }
    if (!EXPECT(name, code, 0))
        return false;
    code = side_open(b, options);
    if (!EXPECT(name, code, 0)) {
        side_close(a);
        return false;
    }
    if (options->type == FI_EP_MSG || options->not_enabled)
        return true;
    code = sides_meet(a, b);
    if (code) {
        EXPECT(name, code, 0);
        pair_close(a, b);
        return false;
    }
    return true;
}

void pair_close(struct side *a, struct side *b)
{
    side_close(a);
    side_close(b);
}

int region_open(struct side *side, void *start, size_t length, uint64_t access, struct region *region)
{
    static uint64_t next_key = 1;
    int mode = side->info->domain_attr->mr_mode;
    memset(region, 0, sizeof(*region));
    int code = fi_mr_reg(side->domain, start, length, access, 0, next_key++, 0, &region->mr, side);
    if (code)
        return code;
    if (mode & FI_MR_ENDPOINT) {
        if ((code = fi_mr_bind(region->mr, &side->ep->fid, 0)) || (code = fi_mr_enable(region->mr))) {
            fi_close(&region->mr->fid);
            region->mr = NULL;
            return code;
        }
    }
    region->descriptor = mode & FI_MR_LOCAL ? fi_mr_desc(region->mr) : NULL;
    region->key = fi_mr_key(region->mr);
    region->base = mode & (FI_MR_VIRT_ADDR | FI_MR_BASIC) ? (uint64_t)(uintptr_t)start : 0;
    return 0;
}

void region_close(struct region *region)
{
    if (region->mr && fi_close(&region->mr->fid))
        report(false, "fi_close of a region", __FILE__, __LINE__, "refused");
    memset(region, 0, sizeof(*region));
}

static unsigned char byte_at(size_t place, unsigned seed)
{
    return (unsigned char)(place * 31 + (place >> 8) * 7 + seed * 101 + 1);
}

void fill(void *start, size_t length, unsigned seed)
{
    for (size_t i = 0; i < length; i++)
        ((unsigned char *)start)[i] = byte_at(i, seed);
}

bool filled(const void *start, size_t length, unsigned seed)
{
    for (size_t i = 0; i < length; i++)
        if (((const unsigned char *)start)[i] != byte_at(i, seed))
            return false;
    return true;
}
