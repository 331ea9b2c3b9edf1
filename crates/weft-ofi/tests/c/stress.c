/* Randomised operations between processes, with verified data.
 *
 *   stress PROVIDER SEED COUNT [PROCESSES]
 *
 * Each process starts COUNT operations towards random processes (itself too):
 * messages into multi-receives, tagged messages, injected ones, writes, writes
 * with data, reads, atomics, receives that are cancelled. Every message names
 * its sender, its place in the sender's order and its contents; writes go to
 * cells that only the writer knows and reads find what was written; sums of
 * atomics are known. At the end everything that was sent has arrived once and
 * in order, and descriptors, shared mappings and shared segments are as before. */
#include "common.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define PROCESSES_MOST 16
#define CLASSES 4           /* kinds of tags from each process */
#define SLOTS 64            /* operations under way */
#define MESSAGE_BYTES 40000 /* the longest message */
#define POOL_BYTES ((size_t)1 << 20)
#define POOLS 3 /* multi-receives */
#define CELLS 16
#define CELL_BYTES 20000
#define SEGMENTS_MOST 64

static const uint64_t never_sent = 1ULL << 60;

struct header {
    uint32_t from, class;
    uint64_t sequence;
    uint32_t length, check;
};

/* What all processes see. */
struct board {
    _Atomic unsigned at_barrier[64];
    _Atomic int failed;
    size_t name_length;
    unsigned char names[PROCESSES_MOST][256];
    uint64_t bases[PROCESSES_MOST], keys[PROCESSES_MOST];
    /* Messages from, to, class (the last class: without tag); data writes; additions. */
    _Atomic uint64_t sent[PROCESSES_MOST][PROCESSES_MOST][CLASSES + 1];
    _Atomic uint64_t data_writes[PROCESSES_MOST][PROCESSES_MOST];
    _Atomic uint64_t additions[PROCESSES_MOST];
    char segments[PROCESSES_MOST][SEGMENTS_MOST][96];
};

static struct board *board;
static int self, processes;
static uint64_t random_state;

#define REQUIRE(condition, ...)                                                     \
    do {                                                                            \
        if (!(condition)) {                                                         \
            printf("FAIL process %d stress.c:%d ", self, __LINE__);                 \
            printf(__VA_ARGS__);                                                    \
            printf("\n");                                                           \
            fflush(stdout);                                                         \
            board->failed = 1;                                                      \
            _exit(1);                                                               \
        }                                                                           \
    } while (0)

static uint64_t draw(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static uint64_t below(uint64_t limit)
{
    return draw() % limit;
}

/* ---- what a process has ---- */

enum kind { FREE, SEND, WRITE, READ, FETCH, SWAP, NOTHING };

struct slot {
    struct fi_context2 context; /* first: a completion leads here */
    enum kind kind;
    int to, cell;
    uint64_t expected;
    unsigned char *buffer;
};

struct tagged_receive {
    struct fi_context2 context;
    int from, class;
    uint64_t number; /* which receive of this tag it is: it gets that message */
    unsigned char *buffer;
};

struct cell {
    bool busy;
    uint32_t length, seed;
};

/* The part of the memory that peers reach: cells for each of them, two numbers for each, one sum. */
struct window {
    unsigned char cells[PROCESSES_MOST][CELLS][CELL_BYTES];
    uint64_t swaps[PROCESSES_MOST];
    uint64_t sum;
};

static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *ep;
static struct fid_mr *mr;
static struct fi_info *info;
static void *descriptor;
static unsigned char *memory; /* all buffers */
static struct window *window;
static unsigned char *pools[POOLS];
static struct fi_context2 pool_contexts[POOLS], cancelled_context;
static struct slot slots[SLOTS];
static struct tagged_receive receives[PROCESSES_MOST][CLASSES][2];
static fi_addr_t peers[PROCESSES_MOST];
static struct cell shadow[PROCESSES_MOST][CELLS];
static uint64_t swap_shadow[PROCESSES_MOST];
static uint64_t data_arrived, receives_posted[PROCESSES_MOST][CLASSES];

/* Which messages have arrived: all below `all`, and those whose bit is set from there on.
 * Completions need not come in the order of the messages. */
#define AHEAD_MOST 4096
struct arrivals {
    uint64_t all;
    bool ahead[AHEAD_MOST];
};
static struct arrivals arrivals[PROCESSES_MOST][CLASSES + 1];
static unsigned under_way;
static bool cancel_under_way;
static double idle_since; /* 0: it is not */

static size_t memory_bytes(void)
{
    return sizeof(struct window) + POOLS * POOL_BYTES + (size_t)SLOTS * MESSAGE_BYTES + (size_t)PROCESSES_MOST * CLASSES * 2 * MESSAGE_BYTES;
}

static void try(const char *what, long code)
{
    REQUIRE(code == 0, "%s: %ld (%s)", what, code, fi_strerror((int)-code));
}

static void post_pool(int which)
{
    struct iovec piece = { pools[which], POOL_BYTES };
    struct fi_msg message = { .msg_iov = &piece, .desc = &descriptor, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &pool_contexts[which] };
    try("fi_recvmsg", fi_recvmsg(ep, &message, FI_MULTI_RECV | FI_COMPLETION));
}

static uint64_t tag_of(int from, int class)
{
    return (uint64_t)from << 8 | (uint64_t)class;
}

static void post_tagged(struct tagged_receive *receive)
{
    receive->number = receives_posted[receive->from][receive->class]++;
    try("fi_trecv", fi_trecv(ep, receive->buffer, MESSAGE_BYTES, descriptor, FI_ADDR_UNSPEC, tag_of(receive->from, receive->class), 0, &receive->context));
}

static void open_all(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_MULTI_RECV);
    options.message_order = FI_ORDER_SAS;
    struct fi_info *hints = hints_for(&options);
    struct fi_cq_attr cq_attr = { .size = 8192, .format = FI_CQ_FORMAT_TAGGED };
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE, .count = (size_t)processes };
    size_t least = MESSAGE_BYTES;
    hints->domain_attr->mr_mode &= ~FI_MR_ENDPOINT;
    hints->domain_attr->data_progress = hints->domain_attr->control_progress = FI_PROGRESS_UNSPEC;
    try("fi_getinfo", fi_getinfo(API_VERSION, "127.0.0.1", NULL, FI_SOURCE, hints, &info));
    fi_freeinfo(hints);
    try("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    try("fi_domain", fi_domain(fabric, info, &domain, NULL));
    try("fi_endpoint", fi_endpoint(domain, info, &ep, NULL));
    try("fi_cq_open", fi_cq_open(domain, &cq_attr, &cq, NULL));
    try("fi_av_open", fi_av_open(domain, &av_attr, &av, NULL));
    try("fi_ep_bind", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    try("fi_ep_bind", fi_ep_bind(ep, &av->fid, 0));
    try("fi_setopt", fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof(least)));
    try("fi_enable", fi_enable(ep));
    memory = mmap(NULL, memory_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED, "mmap");
    try("fi_mr_reg", fi_mr_reg(domain, memory, memory_bytes(), FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, (uint64_t)self + 1, 0, &mr, NULL));
    descriptor = info->domain_attr->mr_mode & FI_MR_LOCAL ? fi_mr_desc(mr) : NULL;
    window = (struct window *)(void *)memory;
    unsigned char *next = memory + sizeof(struct window);
    for (int i = 0; i < POOLS; i++, next += POOL_BYTES)
        pools[i] = next;
    for (int i = 0; i < SLOTS; i++, next += MESSAGE_BYTES)
        slots[i].buffer = next;
    for (int from = 0; from < processes; from++)
        for (int class = 0; class < CLASSES; class++)
            for (int i = 0; i < 2; i++, next += MESSAGE_BYTES)
                receives[from][class][i] = (struct tagged_receive){ .from = from, .class = class, .buffer = next };
}

static void close_all(void)
{
    try("fi_close of the region", fi_close(&mr->fid));
    try("fi_close of the endpoint", fi_close(&ep->fid));
    try("fi_close of the queue", fi_close(&cq->fid));
    try("fi_close of the vector", fi_close(&av->fid));
    try("fi_close of the domain", fi_close(&domain->fid));
    try("fi_close of the fabric", fi_close(&fabric->fid));
    fi_freeinfo(info);
    munmap(memory, memory_bytes());
}

/* ---- completions ---- */

static uint32_t check_of(const unsigned char *bytes, size_t length)
{
    uint32_t sum = 2166136261u;
    for (size_t i = 0; i < length; i++)
        sum = (sum ^ bytes[i]) * 16777619u;
    return sum;
}

/* `due`: the only message that may be here, or NULL. */
static void check_message(const unsigned char *bytes, size_t length, int class, int from, const uint64_t *due)
{
    struct header header;
    REQUIRE(length >= sizeof(header), "a message of %zu bytes", length);
    memcpy(&header, bytes, sizeof(header));
    REQUIRE(header.length == length && header.class == (uint32_t)class && header.from < (uint32_t)processes && (from < 0 || header.from == (uint32_t)from),
            "a message of %zu bytes says: %u bytes, class %u, from %u", length, header.length, header.class, header.from);
    struct arrivals *of_sender = &arrivals[header.from][class];
    REQUIRE(!due || header.sequence == *due, "message %lu of class %d from %u where %lu is due", (unsigned long)header.sequence, class, header.from,
            (unsigned long)*due);
    REQUIRE(header.sequence >= of_sender->all && header.sequence - of_sender->all < AHEAD_MOST && !of_sender->ahead[header.sequence % AHEAD_MOST],
            "message %lu of class %d from %u came twice or far too early", (unsigned long)header.sequence, class, header.from);
    REQUIRE(header.check == check_of(bytes + sizeof(header), length - sizeof(header)), "message %lu of class %d from %u is damaged", (unsigned long)header.sequence,
            class, header.from);
    of_sender->ahead[header.sequence % AHEAD_MOST] = true;
    while (of_sender->ahead[of_sender->all % AHEAD_MOST])
        of_sender->ahead[of_sender->all++ % AHEAD_MOST] = false;
}

static void check_slot(struct slot *slot)
{
    switch (slot->kind) {
    case WRITE:
        shadow[slot->to][slot->cell].busy = false;
        break;
    case READ: {
        struct cell *cell = &shadow[slot->to][slot->cell];
        REQUIRE(filled(slot->buffer, cell->length, cell->seed), "cell %d of process %d does not hold what was written", slot->cell, slot->to);
        cell->busy = false;
        break;
    }
    case SWAP: {
        uint64_t before;
        memcpy(&before, slot->buffer + 16, 8);
        REQUIRE(before == slot->expected, "a swap at process %d found %lu, not %lu", slot->to, (unsigned long)before, (unsigned long)slot->expected);
        shadow[slot->to][0].busy = false;
        break;
    }
    case SEND:
    case FETCH:
    case NOTHING:
        break;
    case FREE:
        REQUIRE(false, "a completion for a place that is free");
    }
    slot->kind = FREE;
    under_way--;
}

static void complete(const struct fi_cq_tagged_entry *entry)
{
    void *context = entry->op_context;
    if (entry->flags & FI_REMOTE_CQ_DATA && entry->flags & FI_REMOTE_WRITE) {
        REQUIRE(entry->data == 0xda7a, "data %lx", (unsigned long)entry->data);
        data_arrived++;
        return;
    }
    for (int i = 0; i < POOLS; i++)
        if (context == &pool_contexts[i]) {
            if (entry->flags & FI_RECV && entry->len)
                check_message(entry->buf, entry->len, CLASSES, -1, NULL);
            if (entry->flags & FI_MULTI_RECV)
                post_pool(i);
            return;
        }
    if ((unsigned char *)context >= (unsigned char *)slots && (unsigned char *)context < (unsigned char *)(slots + SLOTS)) {
        check_slot(context);
        return;
    }
    struct tagged_receive *receive = context;
    REQUIRE(receive >= &receives[0][0][0] && receive < &receives[PROCESSES_MOST - 1][CLASSES - 1][1] + 1, "an unknown context");
    REQUIRE(entry->tag == tag_of(receive->from, receive->class), "tag %lx", (unsigned long)entry->tag);
    check_message(receive->buffer, entry->len, receive->class, receive->from, &receive->number);
    post_tagged(receive);
}

static unsigned progress(void)
{
    struct fi_cq_tagged_entry entries[16];
    ssize_t got = fi_cq_read(cq, entries, 16);
    REQUIRE(!board->failed, "another process failed");
    if (got == -FI_EAGAIN)
        return 0;
    idle_since = 0;
    if (got == -FI_EAVAIL) {
        struct fi_cq_err_entry error;
        memset(&error, 0, sizeof(error));
        REQUIRE(fi_cq_readerr(cq, &error, 0) == 1, "no error entry");
        REQUIRE(error.op_context == &cancelled_context && error.err == FI_ECANCELED, "error %d (%s)", error.err, fi_strerror(error.err));
        cancel_under_way = false;
        return 1;
    }
    REQUIRE(got > 0, "fi_cq_read: %zd (%s)", got, fi_strerror((int)-got));
    for (ssize_t i = 0; i < got; i++)
        complete(&entries[i]);
    return (unsigned)got;
}

/* What is still awaited, for whoever looks into a run that stands still. */
static void tell_what_is_awaited(void)
{
    static const char *const names[] = { "free", "send", "write", "read", "atomic", "swap", "nothing" };
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].kind != FREE)
            printf("process %d: a %s to %d is under way\n", self, names[slots[i].kind], slots[i].to);
    for (int from = 0; from < processes; from++)
        for (int class = 0; class <= CLASSES; class++)
            if (arrivals[from][class].all != board->sent[from][self][class])
                printf("process %d: message %lu of class %d from %d is awaited, %lu were begun\n", self, (unsigned long)arrivals[from][class].all, class, from,
                       (unsigned long)board->sent[from][self][class]);
    if (cancel_under_way)
        printf("process %d: a cancelled receive is awaited\n", self);
}

static void pause_while_nothing(void)
{
    static unsigned rounds;
    if (progress())
        return;
    sched_yield();
    if (++rounds % 4096)
        return;
    double now = seconds();
    if (idle_since == 0)
        idle_since = now;
    if (now - idle_since > HANG_GUARD_S) {
        tell_what_is_awaited();
        REQUIRE(false, "nothing comes any more");
    }
}

/* ---- operations ---- */

static size_t random_length(size_t most)
{
    static const size_t limits[] = { 64, 1000, 9000, SIZE_MAX };
    size_t limit = limits[below(COUNT_OF(limits))];
    return below(limit < most ? limit : most);
}

/* Posts until it is taken, with progress in between. */
#define INSIST(what, call)                                                                             \
    do {                                                                                               \
        long code_;                                                                                    \
        while ((code_ = (long)(call)) == -FI_EAGAIN)                                                   \
            pause_while_nothing();                                                                     \
        REQUIRE(code_ == 0, "%s: %ld (%s)", (what), code_, fi_strerror((int)-code_));                  \
    } while (0)

static size_t make_message(unsigned char *buffer, int to, int class, size_t most)
{
    struct header header = { .from = (uint32_t)self, .class = (uint32_t)class };
    size_t length = sizeof(header) + random_length(most - sizeof(header));
    header.sequence = atomic_fetch_add(&board->sent[self][to][class], 1);
    header.length = (uint32_t)length;
    fill(buffer + sizeof(header), length - sizeof(header), (unsigned)draw());
    header.check = check_of(buffer + sizeof(header), length - sizeof(header));
    memcpy(buffer, &header, sizeof(header));
    return length;
}

static struct slot *free_slot(enum kind kind, int to)
{
    for (;;) {
        for (int i = 0; i < SLOTS; i++)
            if (slots[i].kind == FREE) {
                slots[i].kind = kind;
                slots[i].to = to;
                under_way++;
                return &slots[i];
            }
        pause_while_nothing();
    }
}

static uint64_t remote(int to, const void *place)
{
    return board->bases[to] + (uint64_t)((const unsigned char *)place - memory);
}

static void start_send(int to)
{
    int class = (int)below(CLASSES + 1);
    bool tagged = class < CLASSES;
    size_t inject = info->tx_attr->inject_size;
    if (below(4) == 0 && inject >= sizeof(struct header)) {
        unsigned char buffer[1024];
        size_t length = make_message(buffer, to, class, inject < sizeof(buffer) ? inject : sizeof(buffer));
        if (tagged)
            INSIST("fi_tinject", fi_tinject(ep, buffer, length, peers[to], tag_of(self, class)));
        else
            INSIST("fi_inject", fi_inject(ep, buffer, length, peers[to]));
        return;
    }
    struct slot *slot = free_slot(SEND, to);
    size_t length = make_message(slot->buffer, to, class, MESSAGE_BYTES);
    size_t half = below(length);
    struct iovec pieces[2] = { { slot->buffer, half }, { slot->buffer + half, length - half } };
    void *descriptors[2] = { descriptor, descriptor };
    bool vector = below(3) == 0 && info->tx_attr->iov_limit >= 2;
    if (tagged && vector)
        INSIST("fi_tsendv", fi_tsendv(ep, pieces, descriptors, 2, peers[to], tag_of(self, class), slot));
    else if (tagged)
        INSIST("fi_tsend", fi_tsend(ep, slot->buffer, length, descriptor, peers[to], tag_of(self, class), slot));
    else if (vector)
        INSIST("fi_sendv", fi_sendv(ep, pieces, descriptors, 2, peers[to], slot));
    else
        INSIST("fi_send", fi_send(ep, slot->buffer, length, descriptor, peers[to], slot));
}

static void start_write(int to)
{
    int which = 1 + (int)below(CELLS - 1);
    while (shadow[to][which].busy)
        pause_while_nothing();
    struct cell *cell = &shadow[to][which];
    struct slot *slot = free_slot(WRITE, to);
    cell->busy = true;
    cell->length = (uint32_t)random_length(CELL_BYTES);
    cell->seed = (uint32_t)draw();
    slot->cell = which;
    fill(slot->buffer, cell->length, cell->seed);
    struct iovec piece = { slot->buffer, cell->length };
    struct fi_rma_iov range = { remote(to, window->cells[self][which]), cell->length, board->keys[to] };
    struct fi_msg_rma message = { .msg_iov = &piece, .desc = &descriptor, .iov_count = 1, .addr = peers[to], .rma_iov = &range, .rma_iov_count = 1, .context = slot, .data = 0xda7a };
    bool with_data = below(4) == 0;
    if (with_data)
        board->data_writes[self][to]++;
    INSIST("fi_writemsg", fi_writemsg(ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE | (with_data ? FI_REMOTE_CQ_DATA : 0)));
}

/* False: nothing was written there yet. */
static bool start_read(int to)
{
    int which = 1 + (int)below(CELLS - 1);
    while (shadow[to][which].busy)
        pause_while_nothing();
    if (shadow[to][which].length == 0)
        return false;
    struct slot *slot = free_slot(READ, to);
    shadow[to][which].busy = true;
    slot->cell = which;
    memset(slot->buffer, 0xaa, shadow[to][which].length);
    INSIST("fi_read", fi_read(ep, slot->buffer, shadow[to][which].length, descriptor, peers[to], remote(to, window->cells[self][which]), board->keys[to], slot));
    return true;
}

static void start_atomic(int to)
{
    if (below(2)) {
        uint64_t amount = 1 + below(1000);
        board->additions[to] += amount;
        struct slot *slot = free_slot(FETCH, to);
        memcpy(slot->buffer, &amount, 8);
        if (below(2))
            INSIST("fi_fetch_atomic", fi_fetch_atomic(ep, slot->buffer, 1, descriptor, slot->buffer + 8, descriptor, peers[to], remote(to, &window->sum),
                                                      board->keys[to], FI_UINT64, FI_SUM, slot));
        else
            INSIST("fi_atomic", fi_atomic(ep, slot->buffer, 1, descriptor, peers[to], remote(to, &window->sum), board->keys[to], FI_UINT64, FI_SUM, slot));
        return;
    }
    /* A cell of its own: every second swap compares with a wrong value and changes nothing. */
    while (shadow[to][0].busy)
        pause_while_nothing();
    struct slot *slot = free_slot(SWAP, to);
    shadow[to][0].busy = true;
    bool wrong = below(2);
    uint64_t value = draw(), compare = swap_shadow[to] + (wrong ? 1 : 0);
    slot->expected = swap_shadow[to];
    memcpy(slot->buffer, &value, 8);
    memcpy(slot->buffer + 8, &compare, 8);
    INSIST("fi_compare_atomic", fi_compare_atomic(ep, slot->buffer, 1, descriptor, slot->buffer + 8, descriptor, slot->buffer + 16, descriptor, peers[to],
                                                  remote(to, &window->swaps[self]), board->keys[to], FI_UINT64, FI_CSWAP, slot));
    if (!wrong)
        swap_shadow[to] = value;
}

/* False: there is one under way. */
static bool start_cancel(void)
{
    static unsigned char place[64];
    if (cancel_under_way)
        return false;
    cancel_under_way = true;
    INSIST("fi_trecv", fi_trecv(ep, place, sizeof(place), NULL, FI_ADDR_UNSPEC, never_sent | below(16), 0, &cancelled_context));
    try("fi_cancel", fi_cancel(&ep->fid, &cancelled_context));
    return true;
}

/* False: none could be started now. */
static bool start_one(void)
{
    int to = (int)below((uint64_t)processes);
    switch (below(10)) {
    case 0:
    case 1: start_write(to); return true;
    case 2: return start_read(to);
    case 3:
    case 4: start_atomic(to); return true;
    case 5: return descriptor == NULL && start_cancel();
    default: start_send(to); return true;
    }
}

/* ---- the run ---- */

static void barrier(int which)
{
    board->at_barrier[which]++;
    while (board->at_barrier[which] < (unsigned)processes) {
        if (ep)
            pause_while_nothing();
        else
            sched_yield();
        REQUIRE(!board->failed, "another process failed");
    }
}

/* What the process holds: descriptors, and mappings that are shared. */
static void holdings(unsigned *descriptors, unsigned *mappings)
{
    DIR *folder = opendir("/proc/self/fd");
    *descriptors = *mappings = 0;
    while (readdir(folder))
        ++*descriptors;
    closedir(folder);
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    while (fgets(line, sizeof(line), maps)) {
        char permissions[8];
        if (sscanf(line, "%*s %7s", permissions) == 1 && permissions[3] == 's')
            ++*mappings;
    }
    fclose(maps);
}

/* Names of the shared segments that are mapped now; whoever ends last looks for them. */
static void note_segments(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;
    while (fgets(line, sizeof(line), maps) && count < SEGMENTS_MOST) {
        char *path = strstr(line, "/dev/shm/");
        if (path && !strstr(path, "(deleted)")) {
            path[strcspn(path, "\n")] = 0;
            snprintf(board->segments[self][count++], sizeof(board->segments[0][0]), "%s", path);
        }
    }
    fclose(maps);
}

static bool all_arrived(void)
{
    uint64_t data = 0;
    for (int from = 0; from < processes; from++) {
        for (int class = 0; class <= CLASSES; class++)
            if (arrivals[from][class].all < board->sent[from][self][class])
                return false;
        data += board->data_writes[from][self];
    }
    return under_way == 0 && !cancel_under_way && data_arrived >= data;
}

static void run(uint64_t seed, uint64_t count)
{
    unsigned descriptors[2], mappings[2];
    random_state = (seed + 1) * 0x9e3779b97f4a7c15ULL + (uint64_t)self * 0xbf58476d1ce4e5b9ULL;
    /* Once open and closed: what is loaded once and for all is loaded. */
    open_all();
    close_all();
    ep = NULL;
    holdings(&descriptors[0], &mappings[0]);
    open_all();
    size_t length = sizeof(board->names[self]);
    try("fi_getname", fi_getname(&ep->fid, board->names[self], &length));
    board->name_length = length;
    board->bases[self] = info->domain_attr->mr_mode & (FI_MR_VIRT_ADDR | FI_MR_BASIC) ? (uint64_t)(uintptr_t)memory : 0;
    board->keys[self] = fi_mr_key(mr);
    for (int i = 0; i < POOLS; i++)
        post_pool(i);
    for (int from = 0; from < processes; from++)
        for (int class = 0; class < CLASSES; class++)
            for (int i = 0; i < 2; i++)
                post_tagged(&receives[from][class][i]);
    barrier(0);
    for (int i = 0; i < processes; i++)
        REQUIRE(fi_av_insert(av, board->names[i], 1, &peers[i], 0, NULL) == 1, "fi_av_insert");
    barrier(1);
    for (uint64_t i = 0; i < count;) {
        i += start_one();
        if (below(4) == 0)
            progress();
        if (i == count / 2)
            note_segments();
    }
    while (under_way)
        pause_while_nothing();
    barrier(2);
    while (!all_arrived())
        pause_while_nothing();
    barrier(3);
    for (int from = 0; from < processes; from++)
        for (int class = 0; class <= CLASSES; class++)
            REQUIRE(arrivals[from][class].all == board->sent[from][self][class], "from %d class %d: %lu arrived, %lu were sent", from, class,
                    (unsigned long)arrivals[from][class].all, (unsigned long)board->sent[from][self][class]);
    REQUIRE(window->sum == board->additions[self], "the sum is %lu, not %lu", (unsigned long)window->sum, (unsigned long)board->additions[self]);
    barrier(4);
    close_all();
    ep = NULL;
    barrier(5);
    holdings(&descriptors[1], &mappings[1]);
    REQUIRE(descriptors[0] == descriptors[1], "%u descriptors before, %u after", descriptors[0], descriptors[1]);
    REQUIRE(mappings[0] == mappings[1], "%u shared mappings before, %u after", mappings[0], mappings[1]);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: stress PROVIDER SEED COUNT [PROCESSES]\n");
        return 2;
    }
    provider = argv[1];
    uint64_t seed = strtoull(argv[2], NULL, 0), count = strtoull(argv[3], NULL, 0);
    processes = argc > 4 ? atoi(argv[4]) : 4;
    if (processes < 1 || processes > PROCESSES_MOST)
        return 2;
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED)
        return 2;
    double begin = seconds();
    pid_t children[PROCESSES_MOST];
    for (int i = 0; i < processes; i++) {
        self = i;
        children[i] = fork();
        if (children[i] == 0) {
            run(seed, count);
            exit(0);
        }
    }
    int failures = 0;
    for (int i = 0; i < processes; i++) {
        int status = 0;
        pid_t ended = wait(&status);
        if (status) {
            failures++;
            if (!board->failed)
                printf("FAIL process %d ended with status %x\n", (int)ended, status);
            board->failed = 1;
        }
    }
    for (int i = 0; i < processes; i++)
        for (int j = 0; j < SEGMENTS_MOST && board->segments[i][j][0]; j++)
            if (access(board->segments[i][j], F_OK) == 0) {
                printf("FAIL %s is left behind\n", board->segments[i][j]);
                failures++;
            }
    uint64_t messages = 0;
    for (int from = 0; from < processes; from++)
        for (int to = 0; to < processes; to++)
            for (int class = 0; class <= CLASSES; class++)
                messages += board->sent[from][to][class];
    if (!failures)
        printf("ok stress of %s: seed %lu, %d processes, %lu operations (%lu messages) in %.1f s\n", provider, (unsigned long)seed, processes,
               (unsigned long)(count * (uint64_t)processes), (unsigned long)messages, seconds() - begin);
    return failures ? 1 : 0;
}
