/* Everyone to everyone: blocks of all sizes, of differing sizes, and sums, verified.
 *   mpi_alltoall [ROUNDS] */
#include "mpi_common.h"

static void equal_blocks(int rounds, size_t block)
{
    unsigned char *out = room(block * (size_t)ranks), *in = room(block * (size_t)ranks);
    for (int round = 0; round < rounds; round++) {
        for (int to = 0; to < ranks; to++)
            fill(out + block * (size_t)to, block, rank, to, round);
        memset(in, 0, block * (size_t)ranks);
        MPI_Alltoall(out, (int)block, MPI_BYTE, in, (int)block, MPI_BYTE, MPI_COMM_WORLD);
        for (int from = 0; from < ranks; from++)
            verify(in + block * (size_t)from, block, from, rank, round);
    }
    free(out);
    free(in);
}

static int length_of(int from, int to, int round)
{
    return ((from * 7 + to * 13 + round * 29) % 61) * 211;
}

static void differing_blocks(int rounds)
{
    int *counts[2], *places[2];
    for (int side = 0; side < 2; side++) {
        counts[side] = room(sizeof(int) * (size_t)ranks);
        places[side] = room(sizeof(int) * (size_t)ranks);
    }
    unsigned char *out = room((size_t)ranks * 61 * 211), *in = room((size_t)ranks * 61 * 211);
    for (int round = 0; round < rounds; round++) {
        int totals[2] = { 0, 0 };
        for (int other = 0; other < ranks; other++) {
            counts[0][other] = length_of(rank, other, round);
            counts[1][other] = length_of(other, rank, round);
            for (int side = 0; side < 2; side++) {
                places[side][other] = totals[side];
                totals[side] += counts[side][other];
            }
            fill(out + places[0][other], (size_t)counts[0][other], rank, other, round);
        }
        MPI_Alltoallv(out, counts[0], places[0], MPI_BYTE, in, counts[1], places[1], MPI_BYTE, MPI_COMM_WORLD);
        for (int from = 0; from < ranks; from++)
            verify(in + places[1][from], (size_t)counts[1][from], from, rank, round);
    }
    for (int side = 0; side < 2; side++) {
        free(counts[side]);
        free(places[side]);
    }
    free(out);
    free(in);
}

static void sums(int rounds)
{
    enum { VALUES = 10000 };
    int64_t *mine = room(sizeof(int64_t) * VALUES), *all = room(sizeof(int64_t) * VALUES);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < VALUES; i++)
            mine[i] = (int64_t)rank * i + round;
        MPI_Allreduce(mine, all, VALUES, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < VALUES; i++)
            REQUIRE(all[i] == (int64_t)ranks * (ranks - 1) / 2 * i + (int64_t)ranks * round, "sum %d is %ld", i, (long)all[i]);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    free(mine);
    free(all);
}

int main(int argc, char **argv)
{
    static const size_t blocks[] = { 1, 8, 100, 4096, 65536, 300000 };
    begin(&argc, &argv);
    int rounds = argc > 1 ? atoi(argv[1]) : 10;
    for (size_t i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++)
        equal_blocks(rounds, blocks[i]);
    differing_blocks(rounds);
    sums(rounds);
    if (rank == 0)
        printf("ok all-to-all of %d ranks, %d rounds\n", ranks, rounds);
    MPI_Finalize();
    return 0;
}
