/* One-sided operations on windows of every make (memory of the program,
 * memory of the library, memory that is attached later), with verified data:
 * puts and gets between fences and under locks, sums, swaps and a counter that
 * everybody draws numbers from.
 *   mpi_window [ROUNDS] */
#include "mpi_common.h"
#include <sched.h>

#define BLOCK 70000 /* longer than what goes with one packet */
#define WORDS 64

#if defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION < 5
static const int swaps = 0;
#else
static const int swaps = 1;
#endif

/* What a window consists of: a block for each rank's puts, then words. */
struct layout {
    MPI_Win window;
    unsigned char *start;
    MPI_Aint base; /* displacement of `start` at every rank */
    MPI_Aint *bases;
};

static size_t whole(void)
{
    return BLOCK * (size_t)ranks + WORDS * sizeof(uint64_t);
}

static MPI_Aint block_at(const struct layout *layout, int target, int of)
{
    return layout->bases[target] + (MPI_Aint)BLOCK * of;
}

static MPI_Aint word_at(const struct layout *layout, int target, int word)
{
    return layout->bases[target] + (MPI_Aint)BLOCK * ranks + (MPI_Aint)sizeof(uint64_t) * word;
}

static uint64_t *words(const struct layout *layout)
{
    return (uint64_t *)(layout->start + BLOCK * (size_t)ranks);
}

static void between_fences(const struct layout *layout, int round)
{
    unsigned char *out = room(BLOCK * (size_t)ranks), *in = room(BLOCK * (size_t)ranks);
    MPI_Win_fence(0, layout->window);
    for (int to = 0; to < ranks; to++) {
        fill(out + BLOCK * (size_t)to, BLOCK, rank, to, round);
        MPI_Put(out + BLOCK * (size_t)to, BLOCK, MPI_BYTE, to, block_at(layout, to, rank), BLOCK, MPI_BYTE, layout->window);
    }
    MPI_Win_fence(0, layout->window);
    for (int from = 0; from < ranks; from++)
        verify(layout->start + BLOCK * (size_t)from, BLOCK, from, rank, round);
    MPI_Win_fence(0, layout->window);
    for (int to = 0; to < ranks; to++)
        MPI_Get(in + BLOCK * (size_t)to, BLOCK, MPI_BYTE, to, block_at(layout, to, rank), BLOCK, MPI_BYTE, layout->window);
    MPI_Win_fence(0, layout->window);
    for (int to = 0; to < ranks; to++)
        verify(in + BLOCK * (size_t)to, BLOCK, rank, to, round);
    free(out);
    free(in);
}

/* Every rank adds to every word of everybody, and draws numbers from a counter
 * of rank 0; nobody may draw one twice. */
static void under_locks(const struct layout *layout)
{
    const int draws = 20;
    uint64_t numbers[20], ones[WORDS], one = 1;
    memset(words(layout), 0, WORDS * sizeof(uint64_t));
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, layout->window);
    for (int i = 0; i < WORDS; i++)
        ones[i] = (uint64_t)i + 1;
    for (int to = 0; to < ranks; to++)
        MPI_Accumulate(ones + 2, WORDS - 2, MPI_UINT64_T, to, word_at(layout, to, 2), WORDS - 2, MPI_UINT64_T, MPI_SUM, layout->window);
    for (int i = 0; i < draws; i++) {
        MPI_Fetch_and_op(&one, &numbers[i], MPI_UINT64_T, 0, word_at(layout, 0, 0), MPI_SUM, layout->window);
        MPI_Win_flush(0, layout->window);
    }
    MPI_Win_unlock_all(layout->window);
    uint64_t drawn = 0, all = 0;
    for (int i = 0; i < draws; i++) {
        REQUIRE(numbers[i] < (uint64_t)(draws * ranks), "number %llu was drawn of %d", (unsigned long long)numbers[i], draws * ranks);
        drawn += numbers[i];
    }
    MPI_Allreduce(&drawn, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    uint64_t last = (uint64_t)draws * (uint64_t)ranks;
    REQUIRE(all == last * (last - 1) / 2, "the numbers drawn add up to %llu", (unsigned long long)all);
    MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, layout->window);
    for (int i = 2; i < WORDS; i++)
        REQUIRE(words(layout)[i] == (uint64_t)ranks * (uint64_t)(i + 1), "word %d is %llu", i, (unsigned long long)words(layout)[i]);
    MPI_Win_unlock(rank, layout->window);
}

/* A lock made of one word: whoever swaps it from 0 may change the word beside.
 * Open MPI 4.1 crashes in such swaps through libfabric, with any provider.
 * Open MPI 5 takes a lock of its own for each swap and gives no processor away
 * between two of them: without a pause, those who wait keep the holder from
 * letting go for many seconds, with any provider. */
static void by_swaps(const struct layout *layout)
{
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, layout->window);
    words(layout)[0] = words(layout)[1] = 0;
    MPI_Win_unlock(rank, layout->window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, layout->window);
    for (int i = 0; i < 5; i++) {
        uint64_t mine = (uint64_t)rank + 1, free_word = 0, seen, value, none = 0;
        for (;;) {
            MPI_Compare_and_swap(&mine, &free_word, &seen, MPI_UINT64_T, 0, word_at(layout, 0, 0), layout->window);
            MPI_Win_flush(0, layout->window);
            if (seen == 0)
                break;
            sched_yield();
        }
        MPI_Get(&value, 1, MPI_UINT64_T, 0, word_at(layout, 0, 1), 1, MPI_UINT64_T, layout->window);
        MPI_Win_flush(0, layout->window);
        value++;
        MPI_Put(&value, 1, MPI_UINT64_T, 0, word_at(layout, 0, 1), 1, MPI_UINT64_T, layout->window);
        MPI_Win_flush(0, layout->window);
        MPI_Fetch_and_op(&none, &seen, MPI_UINT64_T, 0, word_at(layout, 0, 0), MPI_REPLACE, layout->window);
        MPI_Win_flush(0, layout->window);
        REQUIRE(seen == mine, "the lock was held by %llu", (unsigned long long)seen);
    }
    MPI_Win_unlock_all(layout->window);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, layout->window);
        REQUIRE(words(layout)[1] == (uint64_t)(5 * ranks), "the word behind the lock is %llu", (unsigned long long)words(layout)[1]);
        MPI_Win_unlock(0, layout->window);
    }
}

static void use(struct layout *layout, int rounds)
{
    layout->bases = room(sizeof(MPI_Aint) * (size_t)ranks);
    MPI_Allgather(&layout->base, 1, MPI_AINT, layout->bases, 1, MPI_AINT, MPI_COMM_WORLD);
    for (int round = 0; round < rounds; round++) {
        between_fences(layout, round);
        under_locks(layout);
        if (swaps)
            by_swaps(layout);
    }
    free(layout->bases);
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    int rounds = argc > 1 ? atoi(argv[1]) : 5;

    struct layout layout = { .start = room(whole()) };
    MPI_Win_create(layout.start, (MPI_Aint)whole(), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &layout.window);
    use(&layout, rounds);
    MPI_Win_free(&layout.window);

    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &layout.window);
    MPI_Win_attach(layout.window, layout.start, (MPI_Aint)whole());
    MPI_Get_address(layout.start, &layout.base);
    use(&layout, rounds);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_detach(layout.window, layout.start);
    MPI_Win_free(&layout.window);
    free(layout.start);

    layout.base = 0;
    MPI_Win_allocate((MPI_Aint)whole(), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &layout.start, &layout.window);
    use(&layout, rounds);
    MPI_Win_free(&layout.window);

    if (rank == 0)
        printf("ok windows of %d ranks, %d rounds\n", ranks, rounds);
    MPI_Finalize();
    return 0;
}
