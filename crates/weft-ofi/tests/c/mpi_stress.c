/* Messages and one-sided operations of every kind between all ranks, drawn by
 * chance, with verified data: messages received by name, by wildcards, by
 * probes and persistently, sent in every mode, some of them cancelled; windows
 * of every make in every kind of epoch.
 *   mpi_stress [SEED] [ROUNDS] [LONGEST] */
#include "mpi_common.h"
#include <sched.h>
#include <stddef.h>

#define SLOT 50000  /* bytes of a window for each rank's puts: longer than one packet */
#define WORDS 12    /* words of each kind for sums */
#define MESSAGES 3  /* the most messages of one rank to another by one channel */
#define PENDING 500 /* the most requests and buffers in use at a time */

/* Through libfabric, with any provider, Open MPI 4.1 crashes in swaps, and does
 * not tell the sender of a synchronous message that MPI_Mrecv took it. */
#if defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION < 5
static const int swaps = 0, matched_synchronous = 0;
#else
static const int swaps = 1, matched_synchronous = 1;
#endif

static uint64_t chance; /* each rank's own; what all must agree on is hashed */
static uint32_t longest;

static uint64_t hash(uint64_t value)
{
    value += 0x9e3779b97f4a7c15;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
}

static uint32_t draw(uint32_t below)
{
    chance = hash(chance);
    return (uint32_t)((chance >> 32) % below);
}

static unsigned char letter(uint64_t key, size_t place)
{
    return (unsigned char)((key + place * 0x9e3779b97f4a7c15) >> 56);
}

static void write_letters(unsigned char *start, size_t length, uint64_t key, size_t place)
{
    for (size_t i = 0; i < length; i++)
        start[i] = letter(key, place + i);
}

/* Buffers of operations under way. */
static void *kept[PENDING];
static int kept_count;

static void *keep(size_t bytes)
{
    REQUIRE(kept_count < PENDING, "more than %d buffers", PENDING);
    return kept[kept_count++] = room(bytes);
}

static void let_go(void)
{
    while (kept_count > 0)
        free(kept[--kept_count]);
}

/* ---- messages ---- */

enum channel { NAMED, FROM_ANYONE, ANY_TAG, PERSISTENT, PROBED, MATCHED, CHANNELS };
static MPI_Comm channels[CHANNELS];

struct message {
    int round, channel, from, to, number;
};

static uint64_t key_of(struct message m)
{
    return hash(hash(hash(hash(hash((uint64_t)m.round) + (uint64_t)m.channel) + (uint64_t)m.from) + (uint64_t)m.to) + (uint64_t)m.number);
}

static int count_of(struct message m)
{
    m.number = -1;
    return (int)(key_of(m) % (MESSAGES + 1));
}

/* Mostly short ones, some of many packets, few that are long. */
static size_t length_of(struct message m)
{
    static const size_t limits[] = { 9, 65, 300, 5000, 20000, 70000, 300000, 0 };
    uint64_t key = hash(key_of(m));
    size_t limit = limits[key % 8];
    if (limit == 0)
        limit = m.channel == FROM_ANYONE || key % 64 > 24 ? 300000 : longest;
    return (size_t)((key >> 8) % limit);
}

static int tag_of(struct message m)
{
    return m.channel == NAMED ? m.number % 2 : m.channel == ANY_TAG ? m.number : 7;
}

static void check_letters(const unsigned char *start, struct message m, const MPI_Status *status)
{
    int count;
    MPI_Get_count(status, MPI_BYTE, &count);
    size_t length = length_of(m);
    uint64_t key = key_of(m);
    REQUIRE((size_t)count == length, "channel %d message %d of rank %d has %d bytes, not %zu", m.channel, m.number, m.from, count, length);
    REQUIRE(status->MPI_TAG == tag_of(m), "channel %d message %d of rank %d has tag %d", m.channel, m.number, m.from, status->MPI_TAG);
    for (size_t i = 0; i < length; i++)
        REQUIRE(start[i] == letter(key, i), "channel %d message %d of rank %d: byte %zu of %zu differs", m.channel, m.number, m.from, i, length);
}

/* Requests in the order in which they were posted. `from` is unknown for FROM_ANYONE until its end. */
static struct {
    MPI_Request requests[PENDING];
    MPI_Status statuses[PENDING];
    struct message messages[PENDING];
    unsigned char *buffers[PENDING];
    int count;
} receives, sends;

static void post_receive(struct message m)
{
    int i = receives.count++;
    REQUIRE(i < PENDING, "more than %d receives", PENDING);
    size_t length = m.channel == FROM_ANYONE ? 300000 : length_of(m);
    int from = m.channel == FROM_ANYONE ? MPI_ANY_SOURCE : m.from, tag = m.channel == ANY_TAG ? MPI_ANY_TAG : tag_of(m);
    receives.messages[i] = m;
    receives.buffers[i] = keep(length);
    if (m.channel == PERSISTENT) {
        MPI_Recv_init(receives.buffers[i], (int)length, MPI_BYTE, from, tag, channels[m.channel], &receives.requests[i]);
        MPI_Start(&receives.requests[i]);
    } else {
        MPI_Irecv(receives.buffers[i], (int)length, MPI_BYTE, from, tag, channels[m.channel], &receives.requests[i]);
    }
}

static void post_receives(int round)
{
    for (int channel = 0; channel <= PERSISTENT; channel++)
        for (int from = 0; from < ranks; from++) {
            struct message m = { round, channel, from, rank, 0 };
            for (int count = count_of(m); m.number < count; m.number++)
                post_receive(m);
        }
}

static void post_send(struct message m)
{
    int i = sends.count++;
    REQUIRE(i < PENDING, "more than %d sends", PENDING);
    size_t length = length_of(m);
    unsigned char *start = keep(length);
    MPI_Comm comm = channels[m.channel];
    MPI_Request *request = &sends.requests[i];
    write_letters(start, length, key_of(m), 0);
    switch (draw(m.channel == MATCHED && !matched_synchronous ? 2 : 4)) {
    case 0:
        MPI_Isend(start, (int)length, MPI_BYTE, m.to, tag_of(m), comm, request);
        break;
    case 1:
        MPI_Send_init(start, (int)length, MPI_BYTE, m.to, tag_of(m), comm, request);
        MPI_Start(request);
        break;
    case 2:
        MPI_Issend(start, (int)length, MPI_BYTE, m.to, tag_of(m), comm, request);
        break;
    default:
        MPI_Ssend_init(start, (int)length, MPI_BYTE, m.to, tag_of(m), comm, request);
        MPI_Start(request);
    }
}

/* MPICH confuses a probe of any source when the rank itself is among them. */
static int is_sent(struct message m)
{
    return m.channel < PROBED || m.from != m.to;
}

static void post_sends(int round)
{
    int first = (int)draw(CHANNELS), next = (int)draw((uint32_t)ranks);
    for (int i = 0; i < CHANNELS * ranks; i++) {
        struct message m = { round, (first + i) % CHANNELS, rank, (next + i / CHANNELS) % ranks, 0 };
        for (int count = is_sent(m) ? count_of(m) : 0; m.number < count; m.number++)
            post_send(m);
    }
}

static void take_probed(int round, int channel)
{
    int awaited = 0, *numbers = keep(sizeof(int) * (size_t)ranks);
    for (int from = 0; from < ranks; from++) {
        struct message m = { round, channel, from, rank, 0 };
        numbers[from] = 0;
        awaited += is_sent(m) ? count_of(m) : 0;
    }
    for (; awaited > 0; awaited--) {
        MPI_Status status;
        MPI_Message handle = MPI_MESSAGE_NULL;
        int found = 1, count;
        if (channel == MATCHED && draw(2))
            MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, channels[channel], &handle, &status);
        else if (channel == PROBED && draw(2))
            MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, channels[channel], &status);
        else
            do {
                if (channel == MATCHED)
                    MPI_Improbe(MPI_ANY_SOURCE, 7, channels[channel], &found, &handle, &status);
                else
                    MPI_Iprobe(MPI_ANY_SOURCE, 7, channels[channel], &found, &status);
            } while (!found);
        MPI_Get_count(&status, MPI_BYTE, &count);
        unsigned char *start = room((size_t)count);
        struct message m = { round, channel, status.MPI_SOURCE, rank, numbers[status.MPI_SOURCE]++ };
        if (channel == MATCHED)
            MPI_Mrecv(start, count, MPI_BYTE, &handle, &status);
        else
            MPI_Recv(start, count, MPI_BYTE, m.from, 7, channels[channel], &status);
        check_letters(start, m, &status);
        free(start);
    }
}

/* A receive that nothing is sent for, and one that its message races with. */
static void cancel(int round)
{
    struct message m = { round, PERSISTENT, (rank + 1) % ranks, rank, 100 };
    size_t length = length_of(m);
    unsigned char *start = keep(length);
    MPI_Request request;
    MPI_Status status;
    int cancelled;
    MPI_Irecv(start, 1, MPI_BYTE, m.from, 98, channels[NAMED], &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &cancelled);
    REQUIRE(cancelled, "a receive that nothing was sent for was not cancelled");

    struct message out = { round, PERSISTENT, rank, (rank + ranks - 1) % ranks, 100 };
    post_send(out);
    MPI_Irecv(start, (int)length, MPI_BYTE, m.from, 7, channels[PERSISTENT], &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &cancelled);
    if (cancelled)
        MPI_Recv(start, (int)length, MPI_BYTE, m.from, 7, channels[PERSISTENT], &status);
    check_letters(start, m, &status);
}

static void finish(int count, MPI_Request *requests, MPI_Status *statuses)
{
    if (draw(2)) {
        MPI_Waitall(count, requests, statuses);
        return;
    }
    for (int left = count; left > 0;) {
        int i, done;
        MPI_Status status;
        MPI_Testany(count, requests, &i, &done, &status);
        if (!done)
            continue;
        REQUIRE(i != MPI_UNDEFINED, "%d requests have gone", left);
        statuses[i] = status;
        left--;
    }
}

static void exchange(int round)
{
    receives.count = sends.count = 0;
    int early = (int)draw(2);
    if (early)
        post_receives(round);
    post_sends(round);
    if (!early)
        post_receives(round);
    take_probed(round, PROBED);
    take_probed(round, MATCHED);
    finish(receives.count, receives.requests, receives.statuses);
    int *numbers = keep(sizeof(int) * (size_t)ranks);
    memset(numbers, 0, sizeof(int) * (size_t)ranks);
    for (int i = 0; i < receives.count; i++) {
        struct message m = receives.messages[i];
        const MPI_Status *status = &receives.statuses[i];
        if (m.channel == FROM_ANYONE) {
            m.from = status->MPI_SOURCE;
            m.number = numbers[m.from]++;
        }
        check_letters(receives.buffers[i], m, status);
        if (m.channel == PERSISTENT)
            MPI_Request_free(&receives.requests[i]);
    }
    cancel(round);
    finish(sends.count, sends.requests, sends.statuses);
    for (int i = 0; i < sends.count; i++)
        if (sends.requests[i] != MPI_REQUEST_NULL)
            MPI_Request_free(&sends.requests[i]);
    let_go();
}

/* ---- windows ---- */

/* What a window holds at each rank. */
struct shared {
    int64_t longs[WORDS];
    double doubles[WORDS];
    int32_t ints[WORDS];
    uint64_t tickets, swapped[2];
};

static MPI_Win window;
static struct shared *memory;  /* mine; the slots follow */
static MPI_Aint *bases;        /* of everybody */
static struct shared *tallies; /* what I have added to everybody's */
static unsigned char *mirrors; /* what my slot at everybody holds */
static uint64_t tickets_sum;
static int all_locked;

static size_t whole(void)
{
    return sizeof(struct shared) + SLOT * (size_t)ranks;
}

static MPI_Aint at(int target, size_t offset)
{
    return bases[target] + (MPI_Aint)offset;
}

/* Of a single lock Open MPI knows nothing when all are flushed. */
static void complete(int target)
{
    if (all_locked && draw(3) == 0)
        MPI_Win_flush_all(window);
    else
        MPI_Win_flush(target, window);
}

static unsigned char *mirror(int target)
{
    return mirrors + SLOT * (size_t)target;
}

static void put(int target, int passive)
{
    size_t begin = draw(SLOT), length = draw(draw(2) ? 64 : (uint32_t)(SLOT - begin) + 1);
    if (begin + length > SLOT)
        length = SLOT - begin;
    unsigned char *start = keep(length);
    write_letters(start, length, hash(chance), begin);
    memcpy(mirror(target) + begin, start, length);
    MPI_Aint place = at(target, sizeof(struct shared) + SLOT * (size_t)rank + begin);
    if (passive && draw(2)) {
        MPI_Request request;
        MPI_Rput(start, (int)length, MPI_BYTE, target, place, (int)length, MPI_BYTE, window, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else {
        MPI_Put(start, (int)length, MPI_BYTE, target, place, (int)length, MPI_BYTE, window);
    }
    if (passive)
        complete(target);
}

static void get(int target)
{
    size_t begin = draw(SLOT), length = 1 + draw((uint32_t)(SLOT - begin));
    unsigned char *start = keep(length);
    MPI_Aint place = at(target, sizeof(struct shared) + SLOT * (size_t)rank + begin);
    if (draw(2)) {
        MPI_Request request;
        MPI_Rget(start, (int)length, MPI_BYTE, target, place, (int)length, MPI_BYTE, window, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else {
        MPI_Get(start, (int)length, MPI_BYTE, target, place, (int)length, MPI_BYTE, window);
        complete(target);
    }
    for (size_t i = 0; i < length; i++)
        REQUIRE(start[i] == mirror(target)[begin + i], "byte %zu of my slot at rank %d is %u, not %u", begin + i, target, start[i], mirror(target)[begin + i]);
}

/* Adds to words of one kind, perhaps fetching what they held: at least what I
 * have added myself. */
#define ADD(kind, type, words)                                                                                       \
    do {                                                                                                             \
        kind *mine = keep(sizeof(kind) * WORDS), *held = keep(sizeof(kind) * WORDS);                                 \
        for (int i = 0; i < count; i++)                                                                              \
            mine[i] = (kind)draw(100);                                                                               \
        MPI_Aint place = at(target, offsetof(struct shared, words) + sizeof(kind) * (size_t)first);                  \
        if (passive && draw(2)) {                                                                                    \
            MPI_Op op = draw(3) ? MPI_SUM : MPI_NO_OP;                                                               \
            MPI_Get_accumulate(mine, count, type, held, count, type, target, place, count, type, op, window);        \
            complete(target);                                                                                        \
            for (int i = 0; i < count; i++)                                                                          \
                REQUIRE(held[i] >= tallies[target].words[first + i], "word %d of rank %d is too low", first + i, target); \
            if (op == MPI_NO_OP)                                                                                     \
                memset(mine, 0, sizeof(kind) * WORDS);                                                               \
        } else {                                                                                                     \
            MPI_Accumulate(mine, count, type, target, place, count, type, MPI_SUM, window);                          \
        }                                                                                                            \
        for (int i = 0; i < count; i++)                                                                              \
            tallies[target].words[first + i] += mine[i];                                                             \
        if (passive)                                                                                                 \
            complete(target);                                                                                        \
    } while (0)

static void add(int target, int passive)
{
    int first = (int)draw(WORDS), count = draw(2) ? 1 : 1 + (int)draw((uint32_t)(WORDS - first));
    switch (draw(3)) {
    case 0:
        ADD(int64_t, MPI_INT64_T, longs);
        break;
    case 1:
        ADD(double, MPI_DOUBLE, doubles);
        break;
    default:
        ADD(int32_t, MPI_INT32_T, ints);
    }
}

static void draw_ticket(int target)
{
    uint64_t one = 1, ticket;
    MPI_Fetch_and_op(&one, &ticket, MPI_UINT64_T, target, at(target, offsetof(struct shared, tickets)), MPI_SUM, window);
    complete(target);
    tallies[target].tickets++;
    tickets_sum += ticket;
}

/* Counts upwards by swaps, in a loop that gives way when another was faster. */
static void swap(int target)
{
    uint64_t seen = 0, expected, wanted;
    size_t word = draw(2);
    do {
        expected = seen;
        wanted = expected + 1;
        MPI_Compare_and_swap(&wanted, &expected, &seen, MPI_UINT64_T, target, at(target, offsetof(struct shared, swapped) + 8 * word), window);
        complete(target);
        sched_yield();
    } while (seen != expected);
    tallies[target].swapped[word]++;
}

static void passive_operations(int target)
{
    for (int i = (int)draw(4); i >= 0; i--) {
        int peer = target < 0 ? (int)draw((uint32_t)ranks) : target;
        switch (draw(swaps ? 5 : 4)) {
        case 0:
            put(peer, 1);
            break;
        case 1:
            get(peer);
            break;
        case 2:
            add(peer, 1);
            break;
        case 3:
            draw_ticket(peer);
            break;
        default:
            swap(peer);
        }
    }
}

/* At most one put to each rank: two might overlap. */
static void active_operations(void)
{
    for (int target = 0; target < ranks; target++) {
        if (draw(2))
            put(target, 0);
        for (int i = (int)draw(3); i > 0; i--)
            add(target, 0);
    }
}

/* All ranks take part in the same epochs of the active kind. */
static void epoch(int round, int number, MPI_Group all)
{
    int target = (int)draw((uint32_t)ranks);
    switch (hash((uint64_t)(round * 100 + number)) % 5) {
    case 0:
        MPI_Win_fence(0, window);
        active_operations();
        MPI_Win_fence(MPI_MODE_NOSUCCEED, window);
        break;
    case 1:
        MPI_Win_post(all, 0, window);
        MPI_Win_start(all, 0, window);
        active_operations();
        MPI_Win_complete(window);
        MPI_Win_wait(window);
        break;
    case 2:
        MPI_Win_lock(draw(2) ? MPI_LOCK_EXCLUSIVE : MPI_LOCK_SHARED, target, 0, window);
        passive_operations(target);
        MPI_Win_unlock(target, window);
        break;
    default:
        MPI_Win_lock_all(0, window);
        all_locked = 1;
        passive_operations(-1);
        passive_operations(-1);
        all_locked = 0;
        MPI_Win_unlock_all(window);
    }
    /* Epochs of locks may not overlap those of fences. */
    MPI_Barrier(MPI_COMM_WORLD);
    let_go();
}

static void check_window(void)
{
    struct shared *sums = room(sizeof(struct shared) * (size_t)ranks);
    uint64_t drawn = 0, expected = 0;
    for (int of = 0; of < ranks; of++) {
        struct shared *to = &sums[of], *from = &tallies[of];
        MPI_Allreduce(from->longs, to->longs, WORDS, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
        MPI_Allreduce(from->doubles, to->doubles, WORDS, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        MPI_Allreduce(from->ints, to->ints, WORDS, MPI_INT32_T, MPI_SUM, MPI_COMM_WORLD);
        MPI_Allreduce(&from->tickets, &to->tickets, 3, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
        expected += to->tickets * (to->tickets - 1) / 2;
    }
    MPI_Allreduce(&tickets_sum, &drawn, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    REQUIRE(drawn == expected, "the tickets add up to %llu, not %llu", (unsigned long long)drawn, (unsigned long long)expected);
    MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window);
    for (int i = 0; i < WORDS; i++) {
        REQUIRE(memory->longs[i] == sums[rank].longs[i], "long %d is %lld, not %lld", i, (long long)memory->longs[i], (long long)sums[rank].longs[i]);
        REQUIRE(memory->doubles[i] == sums[rank].doubles[i], "double %d is %f, not %f", i, memory->doubles[i], sums[rank].doubles[i]);
        REQUIRE(memory->ints[i] == sums[rank].ints[i], "int %d is %d, not %d", i, memory->ints[i], sums[rank].ints[i]);
    }
    for (int i = 0; i < 2; i++)
        REQUIRE(memory->swapped[i] == sums[rank].swapped[i], "swapped %d is %llu, not %llu", i, (unsigned long long)memory->swapped[i],
                (unsigned long long)sums[rank].swapped[i]);
    REQUIRE(memory->tickets == sums[rank].tickets, "%llu tickets", (unsigned long long)memory->tickets);
    MPI_Win_unlock(rank, window);
    free(sums);

    unsigned char *slot = room(SLOT);
    MPI_Win_lock_all(0, window);
    for (int target = 0; target < ranks; target++) {
        MPI_Get(slot, SLOT, MPI_BYTE, target, at(target, sizeof(struct shared) + SLOT * (size_t)rank), SLOT, MPI_BYTE, window);
        MPI_Win_flush(target, window);
        REQUIRE(memcmp(slot, mirror(target), SLOT) == 0, "my slot at rank %d differs", target);
    }
    MPI_Win_unlock_all(window);
    free(slot);
}

static void one_sided(int round)
{
    MPI_Group all;
    MPI_Aint base = 0;
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    bases = room(sizeof(MPI_Aint) * (size_t)ranks);
    tallies = room(sizeof(struct shared) * (size_t)ranks);
    mirrors = room(SLOT * (size_t)ranks);
    memset(tallies, 0, sizeof(struct shared) * (size_t)ranks);
    memset(mirrors, 0, SLOT * (size_t)ranks);
    tickets_sum = 0;
    int make = round % 3;
    if (make == 0) {
        memory = room(whole());
        MPI_Win_create(memory, (MPI_Aint)whole(), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    } else if (make == 1) {
        MPI_Win_allocate((MPI_Aint)whole(), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    } else {
        memory = room(whole());
        MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window);
        MPI_Win_attach(window, memory, (MPI_Aint)whole());
        MPI_Get_address(memory, &base);
    }
    MPI_Allgather(&base, 1, MPI_AINT, bases, 1, MPI_AINT, MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, window);
    memset(memory, 0, whole());
    MPI_Win_unlock(rank, window);
    MPI_Barrier(MPI_COMM_WORLD);

    for (int i = 0; i < 8; i++)
        epoch(round, i, all);
    check_window();

    MPI_Barrier(MPI_COMM_WORLD);
    if (make == 2)
        MPI_Win_detach(window, memory);
    MPI_Win_free(&window);
    if (make != 1)
        free(memory);
    free(bases);
    free(tallies);
    free(mirrors);
    MPI_Group_free(&all);
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    uint64_t seed = argc > 1 ? (uint64_t)atoll(argv[1]) : 1;
    int rounds = argc > 2 ? atoi(argv[2]) : 3;
    longest = argc > 3 ? (uint32_t)atol(argv[3]) : 4 << 20;
    chance = hash(seed * 1000 + (uint64_t)rank);
    for (int i = 0; i < CHANNELS; i++)
        MPI_Comm_dup(MPI_COMM_WORLD, &channels[i]);
    for (int round = 0; round < rounds; round++) {
        exchange((int)seed * 1000 + round);
        one_sided((int)seed * 1000 + round);
    }
    for (int i = 0; i < CHANNELS; i++)
        MPI_Comm_free(&channels[i]);
    if (rank == 0)
        printf("ok stress of %d ranks, %d rounds\n", ranks, rounds);
    MPI_Finalize();
    return 0;
}
