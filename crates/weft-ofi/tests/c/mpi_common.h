/* What the MPI programs share: a check that ends the job, and bytes to verify. */
#ifndef WEFT_TESTS_MPI_COMMON_H
#define WEFT_TESTS_MPI_COMMON_H
#define _GNU_SOURCE
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

#define REQUIRE(condition, ...)                                        \
    do {                                                               \
        if (!(condition)) {                                            \
            fprintf(stderr, "FAIL rank %d %s:%d ", rank, __FILE__, __LINE__); \
            fprintf(stderr, __VA_ARGS__);                              \
            fprintf(stderr, "\n");                                     \
            MPI_Abort(MPI_COMM_WORLD, 1);                              \
        }                                                              \
    } while (0)

static inline void begin(int *argc, char ***argv)
{
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
}

static inline void *room(size_t bytes)
{
    void *start = malloc(bytes ? bytes : 1);
    REQUIRE(start, "no memory for %zu bytes", bytes);
    return start;
}

/* A byte that depends on who sent it to whom, in which round, and its place. */
static inline unsigned char byte_of(int from, int to, int round, size_t place)
{
    return (unsigned char)(place * 31 + (place >> 8) * 7 + (size_t)from * 101 + (size_t)to * 53 + (size_t)round * 17 + 1);
}

static inline void fill(unsigned char *start, size_t length, int from, int to, int round)
{
    for (size_t i = 0; i < length; i++)
        start[i] = byte_of(from, to, round, i);
}

static inline void verify(const unsigned char *start, size_t length, int from, int to, int round)
{
    for (size_t i = 0; i < length; i++)
        REQUIRE(start[i] == byte_of(from, to, round, i), "round %d: byte %zu of %zu from rank %d is %u, not %u", round, i, length, from, start[i],
                byte_of(from, to, round, i));
}
#endif
