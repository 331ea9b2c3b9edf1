/* Patterns of traffic drawn from a seed: none of them may hang, starve
 * somebody or damage a byte.
 *
 *   patterns PROVIDER SEED COUNT
 *
 * Runs COUNT draws with the seeds SEED, SEED + 1, ...; a draw that fails tells
 * its seed, and `patterns PROVIDER THAT_SEED 1` shows it again, with its plan.
 *
 * A draw is a number of processes, who sends to whom (flows), and for each flow
 * a list of operations, of which at most a window is under way. Everything is a
 * function of the seed, so both ends of a flow know each operation, its length
 * and its bytes without telling each other. A receiver may post its receives
 * early, late (when the sender can go no further) or one by one; a process may
 * stop altogether, or stay away from libfabric, until others have made a number
 * of steps.
 *
 * No clock judges: a draw is stuck when no process completed or started
 * anything while every one of them looked EMPTY_POLLS_MOST times in vain, and
 * gave its processor away each time. All of them then tell what they wait for.
 * With PATTERNS_HOLD in the environment they stay there, for a debugger. */
#include "common.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define PROCESSES_MOST 8
#define WINDOW_MOST 1024
#define LENGTH_MOST ((size_t)4 << 20)
#define SUMS_MOST 64 /* numbers that one atomic operation changes */
#define SLOT_BYTES_LEAST (2 * SUMS_MOST * sizeof(uint64_t))
#define BUFFER_BYTES ((size_t)96 << 20) /* of one process, all windows together */
#define OPERATIONS_MOST 4096            /* of a draw */
#define AT_ONCE_MOST 64                 /* completions of one call */
#define PAUSES_MOST 3
#define EMPTY_POLLS_MOST 20000000ULL
#define LOOK_AROUND 4096 /* empty polls between looks at the others */
#define SLEEP_MS 10
#define SLEEP_IN_POLLS 2048 /* an empty sleep counts as so many polls */
#define BLOCKED_POLLS 2000  /* a sender that polled so often in vain can go no further */

enum kind { SEND, TAGGED, SEND_DELIVERED, TAGGED_DELIVERED, INJECT, TAGGED_INJECT, WRITE, WRITE_DATA, READ, ADD, FETCH_ADD, KINDS };
static const char *const kind_names[KINDS] = { "send", "tagged send", "send with delivery complete", "tagged send with delivery complete", "inject",
                                               "tagged inject", "write", "write with data", "read", "atomic add", "atomic fetch and add" };
#define BIT(kind) (1u << (kind))
#define MESSAGES (BIT(SEND) | BIT(TAGGED) | BIT(SEND_DELIVERED) | BIT(TAGGED_DELIVERED) | BIT(INJECT) | BIT(TAGGED_INJECT))
#define WITH_TAG (BIT(TAGGED) | BIT(TAGGED_DELIVERED) | BIT(TAGGED_INJECT))

enum topology { PAIRS, RING, ALL_TO_ALL, ALL_TO_ALL_AND_SELF, MANY_TO_ONE, ONE_TO_MANY, TOPOLOGIES };
static const char *const topology_names[TOPOLOGIES] = { "pairs", "ring", "all to all", "all to all and self", "many to one", "one to many" };

enum posting { EARLY, LATE, ONE_BY_ONE, POSTINGS };
static const char *const posting_names[POSTINGS] = { "early", "late", "one by one" };

struct pause {
    uint64_t after; /* own completions */
    uint64_t steps; /* of others */
    bool stop;      /* the whole process by SIGSTOP; else a thread just stays away */
};

/* What a draw is; the same in all processes. */
struct plan {
    uint64_t seed;
    int processes;
    enum topology topology;
    unsigned kinds;
    size_t longest;
    uint64_t operations; /* of each flow */
    unsigned window;
    size_t slot_bytes;
    size_t queue_size, transmit_size, receive_size;
    unsigned at_once[PROCESSES_MOST];
    enum posting posting[PROCESSES_MOST];
    bool two_threads[PROCESSES_MOST], two_queues[PROCESSES_MOST], sleeps[PROCESSES_MOST];
    enum fi_progress progress[PROCESSES_MOST];
    bool any_source, ignore_class;
    unsigned pauses[PROCESSES_MOST];
    struct pause pause[PROCESSES_MOST][PAUSES_MOST];
};

struct operation {
    enum kind kind;
    size_t length;
    unsigned sums;  /* numbers, of an atomic */
    unsigned bytes; /* seed of the contents */
};

/* What one process shows the others. A cache line of its own. */
struct face {
    _Alignas(128) _Atomic uint64_t progress; /* operations started and completed */
    _Atomic uint64_t steps;                  /* looks at its queues */
    _Atomic uint64_t empty;                  /* of these, the last ones in a row that found nothing, by the sender */
    _Atomic uint64_t quiet;                  /* own empty polls since the progress of all was quiet_at */
    _Atomic uint64_t quiet_at;
    _Atomic uint64_t steps_wanted, steps_then; /* for a process that is stopped */
    _Atomic bool paused;
};

struct board {
    struct face faces[PROCESSES_MOST];
    _Atomic unsigned at_barrier[4];
    _Atomic int failed;
    size_t name_length;
    unsigned char names[PROCESSES_MOST][256];
    uint64_t bases[PROCESSES_MOST], keys[PROCESSES_MOST];
    _Atomic uint64_t started[PROCESSES_MOST][PROCESSES_MOST]; /* operations from, to */
};

static struct board *board;
static struct plan plan;
static int self;
static bool verbose;
static size_t inject_most;

static void describe(void);

static _Noreturn void end_badly(void)
{
    fflush(stdout);
    while (getenv("PATTERNS_HOLD"))
        pause();
    _exit(1);
}

#define REQUIRE(condition, ...)                                                                      \
    do {                                                                                             \
        if (!(condition)) {                                                                          \
            char text_[512];                                                                         \
            snprintf(text_, sizeof(text_), __VA_ARGS__);                                             \
            printf("FAIL seed %lu process %d patterns.c:%d %s\n", (unsigned long)plan.seed, self, __LINE__, text_); \
            board->failed = 1;                                                                       \
            describe();                                                                              \
            end_badly();                                                                             \
        }                                                                                            \
    } while (0)

static void try(const char *what, long code)
{
    REQUIRE(code == 0, "%s: %ld (%s)", what, code, fi_strerror((int)-code));
}

/* ---- drawing ---- */

static uint64_t mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15ULL;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ULL;
    value = (value ^ value >> 27) * 0x94d049bb133111ebULL;
    return value ^ value >> 31;
}

static uint64_t draw(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15ULL;
    return mix(*state);
}

static uint64_t below(uint64_t *state, uint64_t limit)
{
    return draw(state) % limit;
}

/* From 1 to `most`, each order of magnitude alike. */
static uint64_t logarithmic(uint64_t *state, uint64_t most)
{
    unsigned bits = 0;
    while (most >> bits)
        bits++;
    uint64_t top = 1ULL << below(state, bits);
    uint64_t value = top + below(state, top);
    return value < most ? value : most;
}

static size_t round_up(size_t value, size_t step)
{
    return (value + step - 1) / step * step;
}

static size_t draw_length(uint64_t *state, size_t most)
{
    static const size_t edges[] = { 0, 1, 64, 80, 81, 4096, 32768, 32769, 65536, 65537, 262144, 262145, 1 << 20, 4 << 20 };
    size_t within = 0;
    while (within < COUNT_OF(edges) && edges[within] <= most)
        within++;
    return below(state, 3) == 0 ? edges[below(state, within)] : logarithmic(state, most);
}

static bool is_flow(int from, int to)
{
    int last = plan.processes - 1;
    switch (plan.topology) {
    case PAIRS: return to == (from ^ 1);
    case RING: return to == (from == last ? 0 : from + 1);
    case ALL_TO_ALL: return from != to;
    case ALL_TO_ALL_AND_SELF: return true;
    case MANY_TO_ONE: return to == 0 && from != 0;
    default: return from == 0 && to != 0;
    }
}

static unsigned count_flows(unsigned *most_of_one)
{
    unsigned all = 0;
    *most_of_one = 1;
    for (int i = 0; i < plan.processes; i++) {
        unsigned of_one = 0;
        for (int j = 0; j < plan.processes; j++) {
            all += is_flow(i, j);
            of_one += (unsigned)is_flow(i, j) + (unsigned)is_flow(j, i);
        }
        if (of_one > *most_of_one)
            *most_of_one = of_one;
    }
    return all;
}

static void make_plan(uint64_t seed)
{
    static const int processes[] = { 2, 2, 2, 2, 3, 3, 3, 8 };
    static const size_t longest[] = { 1, 80, 4096, 32769, 65537, 70000, 262145, 1 << 20, LENGTH_MOST };
    static const size_t sizes[] = { 0, 1, 4, 16, 64, 256, 1024, 4096 };
    uint64_t state = mix(seed);
    memset(&plan, 0, sizeof(plan));
    plan.seed = seed;
    plan.processes = processes[below(&state, COUNT_OF(processes))];
    plan.topology = (enum topology)below(&state, TOPOLOGIES);
    /* A third of all draws has one kind only, a third anything, a third messages only. */
    switch (below(&state, 3)) {
    case 0: plan.kinds = BIT(below(&state, KINDS)); break;
    case 1: plan.kinds = (unsigned)draw(&state) & (BIT(KINDS) - 1); break;
    default: plan.kinds = (unsigned)draw(&state) & MESSAGES; break;
    }
    if (!plan.kinds)
        plan.kinds = BIT(SEND);
    plan.longest = longest[below(&state, COUNT_OF(longest))];
    plan.slot_bytes = round_up(plan.longest > SLOT_BYTES_LEAST ? plan.longest : SLOT_BYTES_LEAST, 64);
    unsigned of_one, flows = count_flows(&of_one);
    /* Buffers of senders and receivers, and places to write to. */
    size_t room = BUFFER_BYTES / (plan.slot_bytes * 2 * of_one);
    plan.window = (unsigned)logarithmic(&state, WINDOW_MOST);
    if (plan.window > room)
        plan.window = room ? (unsigned)room : 1;
    /* Most draws are short. The bytes of all operations are some tenth of the longest for each, on average. */
    uint64_t bytes = logarithmic(&state, 64 << 20), at_most = bytes / (plan.longest / 8 + 64) + 1;
    plan.operations = plan.window * (1 + below(&state, 4)) + below(&state, 8);
    if (plan.operations * flows > OPERATIONS_MOST)
        plan.operations = OPERATIONS_MOST / flows;
    if (plan.operations * flows > at_most)
        plan.operations = at_most / flows + 1;
    plan.queue_size = sizes[below(&state, COUNT_OF(sizes))];
    plan.transmit_size = sizes[below(&state, COUNT_OF(sizes))];
    plan.receive_size = sizes[below(&state, COUNT_OF(sizes))];
    plan.any_source = below(&state, 2);
    plan.ignore_class = below(&state, 2);
    static const enum fi_progress ways[] = { FI_PROGRESS_UNSPEC, FI_PROGRESS_MANUAL, FI_PROGRESS_AUTO };
    enum fi_progress progress = ways[below(&state, COUNT_OF(ways))];
    bool all_alike = below(&state, 2), sleeps = below(&state, 4) == 0, two_threads = below(&state, 4) == 0;
    enum posting posting = (enum posting)below(&state, POSTINGS);
    for (int i = 0; i < plan.processes; i++) {
        plan.at_once[i] = (unsigned)logarithmic(&state, AT_ONCE_MOST);
        plan.posting[i] = all_alike ? posting : (enum posting)below(&state, POSTINGS);
        plan.progress[i] = all_alike ? progress : ways[below(&state, COUNT_OF(ways))];
        plan.sleeps[i] = all_alike ? sleeps : below(&state, 4) == 0;
        plan.two_threads[i] = all_alike ? two_threads : below(&state, 4) == 0;
        plan.two_queues[i] = plan.two_threads[i] || below(&state, 2);
        /* One thread can sleep for one queue only. */
        plan.sleeps[i] &= plan.two_threads[i] || !plan.two_queues[i];
    }
    if (below(&state, 2))
        for (int i = 0; i < plan.processes; i++) {
            plan.pauses[i] = (unsigned)below(&state, PAUSES_MOST + 1);
            for (unsigned j = 0; j < plan.pauses[i]; j++) {
                plan.pause[i][j].after = (j ? plan.pause[i][j - 1].after : 0) + below(&state, plan.operations + 1);
                plan.pause[i][j].stop = below(&state, 2);
                /* Nobody answers for a process that is stopped: on a busy machine its peers must not give it up. */
                plan.pause[i][j].steps = logarithmic(&state, plan.pause[i][j].stop ? 200 : 2000);
            }
        }
}

static void tell_plan(void)
{
    printf("seed %lu: %d processes, %s, %lu operations of each flow, window %u, up to %zu bytes, queue %zu, transmit %zu, receive %zu%s%s; kinds:",
           (unsigned long)plan.seed, plan.processes, topology_names[plan.topology], (unsigned long)plan.operations, plan.window, plan.longest,
           plan.queue_size, plan.transmit_size, plan.receive_size, plan.any_source ? ", any source" : "", plan.ignore_class ? ", ignored bits" : "");
    for (int kind = 0; kind < KINDS; kind++)
        if (plan.kinds & BIT(kind))
            printf(" %s;", kind_names[kind]);
    printf("\n");
    for (int i = 0; i < plan.processes; i++) {
        printf("  process %d: receives %s, reads %u at once, %s%s%s, %s progress", i, posting_names[plan.posting[i]], plan.at_once[i],
               plan.sleeps[i] ? "sleeps" : "polls", plan.two_threads[i] ? ", two threads" : "", plan.two_queues[i] ? ", two queues" : "",
               plan.progress[i] == FI_PROGRESS_AUTO ? "automatic" : plan.progress[i] == FI_PROGRESS_MANUAL ? "manual" : "any");
        for (unsigned j = 0; j < plan.pauses[i]; j++)
            printf(", after %lu %s for %lu steps", (unsigned long)plan.pause[i][j].after, plan.pause[i][j].stop ? "stopped" : "away",
                   (unsigned long)plan.pause[i][j].steps);
        printf("\n");
    }
    fflush(stdout);
}

/* Everything about one operation, at both its ends. */
static struct operation operation_of(int from, int to, uint64_t index)
{
    uint64_t state = mix(plan.seed ^ mix((uint64_t)(from * PROCESSES_MOST + to) << 32 | index));
    struct operation operation;
    do
        operation.kind = (enum kind)below(&state, KINDS);
    while (!(plan.kinds & BIT(operation.kind)));
    operation.length = draw_length(&state, plan.longest);
    if (operation.kind == INJECT || operation.kind == TAGGED_INJECT)
        operation.length = draw_length(&state, plan.longest < inject_most ? plan.longest : inject_most);
    operation.sums = 1 + (unsigned)below(&state, SUMS_MOST);
    operation.bytes = (unsigned)draw(&state);
    return operation;
}

static uint64_t tag_of(int from, uint64_t index)
{
    return (uint64_t)(from + 1) << 8 | index % 4;
}

/* ---- what a process has ---- */

struct slot {
    struct fi_context2 context; /* first: a completion leads here */
    bool is_receive, busy;
    int peer;
    uint64_t index;
    uint64_t prepared; /* the buffer holds what operation prepared - 1 needs */
    unsigned char *buffer;
};

/* Operations to, or messages from, one process. */
struct flow {
    bool exists;
    struct slot *slots; /* a window of them */
    unsigned char *places; /* that a peer writes to */
    uint64_t next;      /* operation to be started, or received */
    uint64_t under_way, completed, expected;
    uint64_t data_arrived, data_expected;
    bool *data_seen;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *transmit_queue, *receive_queue;
static struct fid_ep *ep;
static struct fid_mr *mr;
static void *descriptor;
static unsigned char *memory;
static size_t memory_bytes;
static uint64_t *sums;         /* that peers add to */
static unsigned char *source;  /* that peers read from */
static fi_addr_t peers[PROCESSES_MOST];
static struct flow out[PROCESSES_MOST], in[PROCESSES_MOST];
static _Atomic uint64_t completions;
static _Atomic bool over;

#define SOURCE_SEED(process) ((unsigned)mix(plan.seed ^ (uint64_t)(process) << 7))

static size_t places_at(int from)
{
    /* The layout is the same everywhere, so that it need not be told. */
    return round_up(SUMS_MOST * sizeof(uint64_t) + plan.longest, 4096) + (size_t)from * plan.window * plan.slot_bytes;
}

static void lay_out(void)
{
    size_t slots_bytes = plan.window * plan.slot_bytes;
    memory_bytes = places_at(plan.processes) + 2 * (size_t)plan.processes * slots_bytes;
    /* What no flow uses is never touched, and costs nothing. */
    memory = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(memory != MAP_FAILED, "mmap of %zu bytes", memory_bytes);
    sums = (uint64_t *)(void *)memory;
    source = memory + SUMS_MOST * sizeof(uint64_t);
    fill(source, plan.longest, SOURCE_SEED(self));
    unsigned char *next = memory + places_at(plan.processes);
    for (int peer = 0; peer < plan.processes; peer++)
        for (int way = 0; way < 2; way++, next += slots_bytes) {
            struct flow *flow = way ? &in[peer] : &out[peer];
            flow->exists = way ? is_flow(peer, self) : is_flow(self, peer);
            if (!flow->exists)
                continue;
            flow->slots = calloc(plan.window, sizeof(*flow->slots));
            flow->data_seen = calloc(plan.operations, sizeof(*flow->data_seen));
            REQUIRE(flow->slots && flow->data_seen, "calloc");
            flow->places = memory + places_at(peer);
            for (unsigned i = 0; i < plan.window; i++)
                flow->slots[i] = (struct slot){ .is_receive = way, .peer = peer, .buffer = next + i * plan.slot_bytes };
            for (uint64_t index = 0; index < plan.operations; index++) {
                enum kind kind = way ? operation_of(peer, self, index).kind : KINDS;
                flow->expected += way == 0 || MESSAGES & BIT(kind);
                flow->data_expected += kind == WRITE_DATA;
            }
        }
}

static void open_all(void)
{
    struct side_options options = SIDE_OPTIONS(FI_EP_RDM, FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV);
    options.message_order = FI_ORDER_SAS;
    options.progress = plan.progress[self];
    struct fi_info *hints = hints_for(&options);
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->domain_attr->mr_mode &= ~FI_MR_ENDPOINT;
    hints->tx_attr->size = plan.transmit_size;
    hints->rx_attr->size = plan.receive_size;
    try("fi_getinfo", fi_getinfo(API_VERSION, "127.0.0.1", NULL, FI_SOURCE, hints, &info));
    fi_freeinfo(hints);
    struct fi_cq_attr cq_attr = { .size = plan.queue_size, .format = FI_CQ_FORMAT_TAGGED, .wait_obj = plan.sleeps[self] ? FI_WAIT_UNSPEC : FI_WAIT_NONE };
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE, .count = (size_t)plan.processes };
    try("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    try("fi_domain", fi_domain(fabric, info, &domain, NULL));
    try("fi_endpoint", fi_endpoint(domain, info, &ep, NULL));
    try("fi_cq_open", fi_cq_open(domain, &cq_attr, &transmit_queue, NULL));
    receive_queue = transmit_queue;
    if (plan.two_queues[self])
        try("fi_cq_open", fi_cq_open(domain, &cq_attr, &receive_queue, NULL));
    try("fi_av_open", fi_av_open(domain, &av_attr, &av, NULL));
    try("fi_ep_bind", fi_ep_bind(ep, &transmit_queue->fid, FI_TRANSMIT | (plan.two_queues[self] ? 0 : FI_RECV)));
    if (plan.two_queues[self])
        try("fi_ep_bind", fi_ep_bind(ep, &receive_queue->fid, FI_RECV));
    try("fi_ep_bind", fi_ep_bind(ep, &av->fid, 0));
    try("fi_enable", fi_enable(ep));
    inject_most = info->tx_attr->inject_size;
    lay_out();
    try("fi_mr_reg", fi_mr_reg(domain, memory, memory_bytes, FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, (uint64_t)self + 1,
                               0, &mr, NULL));
    descriptor = info->domain_attr->mr_mode & FI_MR_LOCAL ? fi_mr_desc(mr) : NULL;
    size_t length = sizeof(board->names[self]);
    try("fi_getname", fi_getname(&ep->fid, board->names[self], &length));
    board->name_length = length;
    board->bases[self] = info->domain_attr->mr_mode & (FI_MR_VIRT_ADDR | FI_MR_BASIC) ? (uint64_t)(uintptr_t)memory : 0;
    board->keys[self] = fi_mr_key(mr);
}

static void close_all(void)
{
    try("fi_close of the region", fi_close(&mr->fid));
    try("fi_close of the endpoint", fi_close(&ep->fid));
    if (receive_queue != transmit_queue)
        try("fi_close of the queue of receives", fi_close(&receive_queue->fid));
    try("fi_close of the queue", fi_close(&transmit_queue->fid));
    try("fi_close of the vector", fi_close(&av->fid));
    try("fi_close of the domain", fi_close(&domain->fid));
    try("fi_close of the fabric", fi_close(&fabric->fid));
    fi_freeinfo(info);
}

/* ---- reports ---- */

static void describe(void)
{
    if (!ep)
        return;
    printf("process %d: %lu steps, %lu empty in a row%s\n", self, (unsigned long)board->faces[self].steps, (unsigned long)board->faces[self].quiet,
           board->faces[self].paused ? ", in a pause" : "");
    for (int peer = 0; peer < plan.processes; peer++) {
        struct flow *to = &out[peer], *from = &in[peer];
        if (to->exists && to->completed < plan.operations) {
            printf("process %d waits for %d: %lu of %lu operations started, %lu completed", self, peer, (unsigned long)to->next, (unsigned long)plan.operations,
                   (unsigned long)to->completed);
            for (unsigned i = 0, told = 0; i < plan.window && told < 4; i++)
                if (to->slots[i].busy) {
                    struct operation operation = operation_of(self, peer, to->slots[i].index);
                    printf("%s number %lu, a %s of %zu bytes", told++ ? "," : "; under way:", (unsigned long)to->slots[i].index, kind_names[operation.kind],
                           operation.length);
                }
            if (to->next < plan.operations) {
                struct operation operation = operation_of(self, peer, to->next);
                printf("; next a %s of %zu bytes", kind_names[operation.kind], operation.length);
            }
            printf("\n");
        }
        if (from->exists && (from->completed < from->expected || from->data_arrived < from->data_expected)) {
            printf("process %d waits for messages of %d: %lu receives posted, %lu completed, %lu expected; %lu of %lu writes with data", self, peer,
                   (unsigned long)(from->completed + from->under_way), (unsigned long)from->completed, (unsigned long)from->expected,
                   (unsigned long)from->data_arrived, (unsigned long)from->data_expected);
            for (unsigned i = 0, told = 0; i < plan.window && told < 4; i++)
                if (from->slots[i].busy) {
                    struct operation operation = operation_of(peer, self, from->slots[i].index);
                    printf("%s number %lu, a %s of %zu bytes", told++ ? "," : "; posted for:", (unsigned long)from->slots[i].index, kind_names[operation.kind],
                           operation.length);
                }
            printf("\n");
        }
    }
    fflush(stdout);
}

static uint64_t progress_of_all(void)
{
    uint64_t all = 0;
    for (int i = 0; i < plan.processes; i++)
        all += board->faces[i].progress;
    return all;
}

static bool all_are_stuck(uint64_t progress)
{
    for (int i = 0; i < plan.processes; i++)
        if (board->faces[i].quiet < EMPTY_POLLS_MOST || board->faces[i].quiet_at != progress)
            return false;
    return true;
}

/* After a step that found nothing: `polls` of them in one. */
static void found_nothing(uint64_t polls)
{
    static _Thread_local uint64_t unlooked;
    struct face *face = &board->faces[self];
    sched_yield();
    unlooked += polls;
    if (unlooked < LOOK_AROUND)
        return;
    uint64_t progress = progress_of_all();
    if (face->quiet_at != progress) {
        face->quiet_at = progress;
        face->quiet = 0;
    }
    face->quiet += unlooked;
    unlooked = 0;
    if (board->failed) {
        describe();
        end_badly();
    }
    REQUIRE(!all_are_stuck(progress), "nobody gets on any more");
}

static void got_on(void)
{
    board->faces[self].progress++;
}

/* ---- operations ---- */

static uint64_t remote(int to, size_t place)
{
    return board->bases[to] + place;
}

/* Tells whether it could be started. */
static bool start_one(int to)
{
    struct flow *flow = &out[to];
    uint64_t index = flow->next;
    struct slot *slot = &flow->slots[index % plan.window];
    if (index == plan.operations || slot->busy)
        return false;
    struct operation operation = operation_of(self, to, index);
    struct fi_context2 *context = &slot->context;
    unsigned char *buffer = slot->buffer;
    size_t length = operation.length;
    fi_addr_t peer = peers[to];
    uint64_t key = board->keys[to], tag = tag_of(self, index);
    uint64_t place = remote(to, places_at(self) + index % plan.window * plan.slot_bytes);
    bool injected = operation.kind == INJECT || operation.kind == TAGGED_INJECT;
    long code = 0;
    uint64_t *values = (uint64_t *)(void *)buffer;
    if (slot->prepared != index + 1) {
        slot->prepared = index + 1;
        if (operation.kind <= WRITE_DATA)
            fill(buffer, length, operation.bytes);
        else if (operation.kind == READ)
            memset(buffer, 0, length);
        else
            for (unsigned i = 0; i < operation.sums; i++)
                values[i] = operation.bytes % 1000 + i;
    }
    struct iovec piece = { buffer, length };
    slot->index = index;
    slot->busy = !injected; /* before the call: another thread may read its completion */
    switch (operation.kind) {
    case SEND: code = fi_send(ep, buffer, length, descriptor, peer, context); break;
    case TAGGED: code = fi_tsend(ep, buffer, length, descriptor, peer, tag, context); break;
    case SEND_DELIVERED: {
        struct fi_msg message = { .msg_iov = &piece, .desc = &descriptor, .iov_count = 1, .addr = peer, .context = context };
        code = fi_sendmsg(ep, &message, FI_DELIVERY_COMPLETE | FI_COMPLETION);
        break;
    }
    case TAGGED_DELIVERED: {
        struct fi_msg_tagged message = { .msg_iov = &piece, .desc = &descriptor, .iov_count = 1, .addr = peer, .tag = tag, .context = context };
        code = fi_tsendmsg(ep, &message, FI_DELIVERY_COMPLETE | FI_COMPLETION);
        break;
    }
    case INJECT: code = fi_inject(ep, buffer, length, peer); break;
    case TAGGED_INJECT: code = fi_tinject(ep, buffer, length, peer, tag); break;
    case WRITE: code = fi_write(ep, buffer, length, descriptor, peer, place, key, context); break;
    case WRITE_DATA: code = fi_writedata(ep, buffer, length, descriptor, (uint64_t)self << 24 | index, peer, place, key, context); break;
    case READ: code = fi_read(ep, buffer, length, descriptor, peer, remote(to, SUMS_MOST * sizeof(uint64_t)), key, context); break;
    case ADD: code = fi_atomic(ep, values, operation.sums, descriptor, peer, remote(to, 0), key, FI_UINT64, FI_SUM, context); break;
    case FETCH_ADD:
        code = fi_fetch_atomic(ep, values, operation.sums, descriptor, values + SUMS_MOST, descriptor, peer, remote(to, 0), key, FI_UINT64, FI_SUM, context);
        break;
    case KINDS: break;
    }
    if (code == -FI_EAGAIN) {
        slot->busy = false;
        return false;
    }
    REQUIRE(code == 0, "%s of %zu bytes: %ld (%s)", kind_names[operation.kind], length, code, fi_strerror((int)-code));
    flow->next++;
    if (injected)
        flow->completed++;
    board->started[self][to] = flow->next;
    got_on();
    return true;
}

static bool may_receive(int from)
{
    struct flow *flow = &in[from];
    switch (plan.posting[self]) {
    case EARLY: return true;
    case ONE_BY_ONE: return flow->under_way == 0;
    default:
        /* The sender has started everything, or all that it can; and a whole window then. It may be this process. */
        return board->started[from][self] == plan.operations || board->faces[from].empty > BLOCKED_POLLS;
    }
}

/* Posts receives as far as they are due. */
static bool post_receives(int from)
{
    struct flow *flow = &in[from];
    bool posted = false;
    /* Which is asked once: a whole window follows. */
    if (!flow->exists || (plan.posting[self] == LATE && flow->under_way) || !may_receive(from))
        return false;
    for (;;) {
        while (flow->next < plan.operations && !(MESSAGES & BIT(operation_of(from, self, flow->next).kind)))
            flow->next++;
        if (flow->next == plan.operations || (plan.posting[self] == ONE_BY_ONE && flow->under_way))
            return posted;
        struct slot *slot = &flow->slots[(flow->completed + flow->under_way) % plan.window];
        /* Used in a circle: the oldest receive may be the last that completes. */
        if (slot->busy)
            return posted;
        struct operation operation = operation_of(from, self, flow->next);
        fi_addr_t directed = peers[from];
        long code;
        memset(slot->buffer, 0, operation.length);
        slot->index = flow->next;
        if (WITH_TAG & BIT(operation.kind))
            code = fi_trecv(ep, slot->buffer, plan.slot_bytes, descriptor, plan.any_source ? FI_ADDR_UNSPEC : directed, tag_of(from, flow->next),
                            plan.ignore_class ? 0xff : 0, &slot->context);
        else
            code = fi_recv(ep, slot->buffer, plan.slot_bytes, descriptor, directed, &slot->context);
        if (code == -FI_EAGAIN)
            return posted;
        REQUIRE(code == 0, "a receive: %ld (%s)", code, fi_strerror((int)-code));
        slot->busy = posted = true;
        flow->under_way++;
        flow->next++;
        got_on();
    }
}

/* ---- completions ---- */

static void check_receive(struct slot *slot, const struct fi_cq_tagged_entry *entry)
{
    struct flow *flow = &in[slot->peer];
    struct operation operation = operation_of(slot->peer, self, slot->index);
    REQUIRE(entry->len == operation.length, "message %lu of %d, a %s: %zu bytes, not %zu", (unsigned long)slot->index, slot->peer, kind_names[operation.kind],
            entry->len, operation.length);
    REQUIRE(!(WITH_TAG & BIT(operation.kind)) || entry->tag == tag_of(slot->peer, slot->index), "message %lu of %d has tag %lx", (unsigned long)slot->index,
            slot->peer, (unsigned long)entry->tag);
    REQUIRE(filled(slot->buffer, operation.length, operation.bytes), "message %lu of %d, a %s of %zu bytes, is damaged", (unsigned long)slot->index, slot->peer,
            kind_names[operation.kind], operation.length);
    flow->under_way--;
    flow->completed++;
}

static void check_own(struct slot *slot)
{
    struct flow *flow = &out[slot->peer];
    struct operation operation = operation_of(self, slot->peer, slot->index);
    REQUIRE(operation.kind != READ || filled(slot->buffer, operation.length, SOURCE_SEED(slot->peer)), "read %lu of %zu bytes from %d is damaged",
            (unsigned long)slot->index, operation.length, slot->peer);
    flow->completed++;
}

static void complete(const struct fi_cq_tagged_entry *entry)
{
    got_on();
    completions++;
    if (entry->flags & FI_REMOTE_CQ_DATA && entry->flags & FI_REMOTE_WRITE) {
        uint64_t from = entry->data >> 24, index = entry->data & 0xffffff;
        REQUIRE(from < (uint64_t)plan.processes && in[from].exists && index < plan.operations && !in[from].data_seen[index] &&
                    operation_of((int)from, self, index).kind == WRITE_DATA,
                "data %lx of nobody, or twice", (unsigned long)entry->data);
        in[from].data_seen[index] = true;
        in[from].data_arrived++;
        return;
    }
    struct slot *slot = entry->op_context;
    REQUIRE(slot && slot->busy, "a completion for nothing, with flags %lx", (unsigned long)entry->flags);
    if (slot->is_receive)
        check_receive(slot, entry);
    else
        check_own(slot);
    slot->busy = false;
}

static bool look(struct fid_cq *queue, bool may_sleep)
{
    struct fi_cq_tagged_entry entries[AT_ONCE_MOST];
    ssize_t got = may_sleep && plan.sleeps[self] ? fi_cq_sread(queue, entries, plan.at_once[self], NULL, SLEEP_MS) : fi_cq_read(queue, entries, plan.at_once[self]);
    board->faces[self].steps++;
    if (got == -FI_EAGAIN || got == -FI_EINTR)
        return false;
    if (got == -FI_EAVAIL) {
        struct fi_cq_err_entry error;
        memset(&error, 0, sizeof(error));
        REQUIRE(fi_cq_readerr(queue, &error, 0) == 1, "no error entry");
        struct slot *slot = error.op_context;
        REQUIRE(false, "error %d (%s), flags %lx, of %s number %ld with %d", error.err, fi_strerror(error.err), (unsigned long)error.flags,
                !slot ? "nothing" : slot->is_receive ? "receive" : "operation", slot ? (long)slot->index : -1, slot ? slot->peer : -1);
    }
    REQUIRE(got > 0, "fi_cq_read: %zd (%s)", got, fi_strerror((int)-got));
    for (ssize_t i = 0; i < got; i++)
        complete(&entries[i]);
    return true;
}

/* ---- the run ---- */

static bool others_made(uint64_t steps, const uint64_t *then)
{
    bool all_paused = true;
    for (int i = 0; i < plan.processes; i++) {
        if (i == self)
            continue;
        if (board->faces[i].steps - then[i] >= steps)
            return true;
        all_paused &= board->faces[i].paused;
    }
    return all_paused;
}

static void pause_if_due(void)
{
    static unsigned next;
    struct face *face = &board->faces[self];
    if (next == plan.pauses[self] || completions < plan.pause[self][next].after)
        return;
    struct pause *due = &plan.pause[self][next++];
    uint64_t then[PROCESSES_MOST];
    uint64_t steps = due->steps;
    /* Steps of those that sleep are long. */
    for (int i = 0; i < plan.processes; i++)
        if (plan.sleeps[i])
            steps = due->steps / 64 + 1;
    for (int i = 0; i < plan.processes; i++)
        then[i] = board->faces[i].steps;
    face->paused = true;
    if (due->stop) {
        /* The parent lets it go on. */
        face->steps_wanted = steps;
        uint64_t all = 0;
        for (int i = 0; i < plan.processes; i++)
            all += then[i];
        face->steps_then = all;
        raise(SIGSTOP);
    } else {
        while (!others_made(steps, then) && !board->failed)
            sched_yield();
    }
    face->paused = false;
}

static bool send_step(void)
{
    bool any = false;
    for (int to = 0; to < plan.processes; to++)
        if (out[to].exists)
            for (unsigned burst = 0; burst < 64 && start_one(to); burst++)
                any = true;
    return any;
}

static bool receive_step(void)
{
    bool any = false;
    for (int from = 0; from < plan.processes; from++)
        any |= post_receives(from);
    return any;
}

static bool all_is_sent(void)
{
    for (int to = 0; to < plan.processes; to++)
        if (out[to].exists && out[to].completed < plan.operations)
            return false;
    return true;
}

static bool all_is_received(void)
{
    for (int from = 0; from < plan.processes; from++)
        if (in[from].exists && (in[from].completed < in[from].expected || in[from].data_arrived < in[from].data_expected))
            return false;
    return true;
}

static void after_step(bool any)
{
    struct face *face = &board->faces[self];
    uint64_t polls = plan.sleeps[self] ? SLEEP_IN_POLLS : 1;
    face->empty = any ? 0 : face->empty + polls;
    if (!any)
        found_nothing(polls);
}

static void *receive_alone(void *unused)
{
    (void)unused;
    while (!over) {
        bool any = receive_step();
        any |= look(receive_queue, !any);
        if (!any)
            found_nothing(plan.sleeps[self] ? SLEEP_IN_POLLS : 1);
    }
    return NULL;
}

/* Sends and, unless another thread does it, receives. */
static void step(void)
{
    bool any = send_step();
    if (!plan.two_threads[self])
        any |= receive_step();
    if (receive_queue != transmit_queue && !plan.two_threads[self])
        any |= look(receive_queue, false);
    any |= look(transmit_queue, !any && (receive_queue == transmit_queue || plan.two_threads[self]));
    after_step(any);
    pause_if_due();
}

static void barrier(int which)
{
    board->at_barrier[which]++;
    got_on();
    while (board->at_barrier[which] < (unsigned)plan.processes) {
        if (which > 0)
            step();
        else
            sched_yield();
        if (board->failed)
            end_badly();
    }
}

static void check_memory(void)
{
    uint64_t wanted[SUMS_MOST] = { 0 };
    for (int from = 0; from < plan.processes; from++) {
        if (!in[from].exists)
            continue;
        for (uint64_t index = 0; index < plan.operations; index++) {
            struct operation operation = operation_of(from, self, index);
            if (operation.kind == ADD || operation.kind == FETCH_ADD)
                for (unsigned i = 0; i < operation.sums; i++)
                    wanted[i] += operation.bytes % 1000 + i;
            if (operation.kind != WRITE && operation.kind != WRITE_DATA)
                continue;
            /* The last write of each place is there. */
            bool last = true;
            for (uint64_t later = index + plan.window; later < plan.operations && last; later += plan.window) {
                enum kind kind = operation_of(from, self, later).kind;
                last = kind != WRITE && kind != WRITE_DATA;
            }
            REQUIRE(!last || filled(in[from].places + index % plan.window * plan.slot_bytes, operation.length, operation.bytes),
                    "%s %lu of %zu bytes from %d is damaged", kind_names[operation.kind], (unsigned long)index, operation.length, from);
        }
    }
    for (unsigned i = 0; i < SUMS_MOST; i++)
        REQUIRE(sums[i] == wanted[i], "sum %u is %lu, not %lu", i, (unsigned long)sums[i], (unsigned long)wanted[i]);
}

static void run(void)
{
    pthread_t receiver;
    open_all();
    barrier(0);
    for (int i = 0; i < plan.processes; i++)
        REQUIRE(fi_av_insert(av, board->names[i], 1, &peers[i], 0, NULL) == 1, "fi_av_insert");
    if (plan.two_threads[self])
        REQUIRE(pthread_create(&receiver, NULL, receive_alone, NULL) == 0, "pthread_create");
    while (!all_is_sent() || !all_is_received())
        step();
    /* The others may need this one still. */
    barrier(1);
    over = true;
    if (plan.two_threads[self])
        pthread_join(receiver, NULL);
    check_memory();
    barrier(2);
    close_all();
}

/* ---- the parent ---- */

static bool may_go_on(int which)
{
    uint64_t steps = 0;
    bool all_paused = true;
    for (int i = 0; i < plan.processes; i++) {
        steps += board->faces[i].steps;
        all_paused &= board->faces[i].paused;
    }
    return all_paused || board->failed || steps - board->faces[which].steps_then >= board->faces[which].steps_wanted;
}

/* Waits for all; those that stopped themselves go on when it is time. */
static bool see_it_through(pid_t *children)
{
    bool good = true, stopped[PROCESSES_MOST] = { false };
    int left = plan.processes, stopped_count = 0;
    while (left) {
        int status = 0;
        pid_t child = waitpid(-1, &status, WUNTRACED | (stopped_count ? WNOHANG : 0));
        for (int i = 0; i < plan.processes; i++) {
            if (child > 0 && children[i] == child && WIFSTOPPED(status)) {
                stopped[i] = true;
                stopped_count++;
            } else if (child > 0 && children[i] == child) {
                left--;
                board->faces[i].paused = true; /* nobody waits for its steps */
                if (status) {
                    good = false;
                    if (!WIFEXITED(status))
                        printf("FAIL seed %lu process %d ended with status %x\n", (unsigned long)plan.seed, i, status);
                    board->failed = 1;
                }
            }
            if (stopped[i] && may_go_on(i)) {
                stopped[i] = false;
                stopped_count--;
                kill(children[i], SIGCONT);
            }
        }
        if (stopped_count && child <= 0)
            sched_yield();
    }
    return good;
}

static bool run_draw(uint64_t seed)
{
    pid_t children[PROCESSES_MOST];
    make_plan(seed);
    if (verbose)
        tell_plan();
    memset(board, 0, sizeof(*board));
    fflush(stdout);
    for (int i = 0; i < plan.processes; i++) {
        self = i;
        children[i] = fork();
        if (children[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            run();
            exit(0);
        }
    }
    bool good = see_it_through(children);
    if (!good) {
        if (!verbose)
            tell_plan();
        printf("FAIL seed %lu; again with: patterns %s %lu 1\n", (unsigned long)seed, provider, (unsigned long)seed);
    }
    return good;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: patterns PROVIDER SEED COUNT\n");
        return 2;
    }
    provider = argv[1];
    uint64_t seed = strtoull(argv[2], NULL, 0), count = strtoull(argv[3], NULL, 0), failures = 0;
    verbose = count == 1;
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED)
        return 2;
    for (uint64_t i = 0; i < count; i++) {
        failures += !run_draw(seed + i);
        if ((i + 1) % 1000 == 0)
            printf("%lu draws, %lu failed\n", (unsigned long)(i + 1), (unsigned long)failures);
    }
    if (failures)
        printf("FAIL %lu of %lu draws\n", (unsigned long)failures, (unsigned long)count);
    else
        printf("ok patterns of %s: %lu draws from seed %lu\n", provider, (unsigned long)count, (unsigned long)seed);
    return failures ? 1 : 0;
}
