/* Neighbours in a ring send to each other at once: in every turn each rank
 * posts a window of receives from the one before it and a window of sends to
 * the one after it, and waits for its own only. No barrier holds turns or
 * sizes together, so a rank may be a whole turn ahead of its neighbour, with
 * long messages under way in both directions.
 *   mpi_exchange [WINDOW [LONGEST]] */
#include "mpi_common.h"

#define TURNS 4

/* Which of all exchanges it is: part of every byte. */
static int round_of(size_t length, int turn, int message)
{
    return (int)(length % 8191) * 5 + turn * 1031 + message * 3;
}

static void exchange(unsigned char *out, unsigned char *in, MPI_Request *requests, size_t length, int window)
{
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    for (int turn = 0; turn < TURNS; turn++) {
        memset(in, 0, length * (size_t)window);
        for (int i = 0; i < window; i++) {
            fill(out + length * (size_t)i, length, rank, next, round_of(length, turn, i));
            MPI_Irecv(in + length * (size_t)i, (int)length, MPI_BYTE, previous, i, MPI_COMM_WORLD, &requests[i]);
        }
        for (int i = 0; i < window; i++)
            MPI_Isend(out + length * (size_t)i, (int)length, MPI_BYTE, next, i, MPI_COMM_WORLD, &requests[window + i]);
        /* Sends first, and alone: their end must not need calls for the receives. */
        MPI_Waitall(window, requests + window, MPI_STATUSES_IGNORE);
        MPI_Waitall(window, requests, MPI_STATUSES_IGNORE);
        for (int i = 0; i < window; i++)
            verify(in + length * (size_t)i, length, previous, rank, round_of(length, turn, i));
    }
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    int window = argc > 1 ? atoi(argv[1]) : 64;
    size_t longest = argc > 2 ? (size_t)atol(argv[2]) : (size_t)1 << 20;
    REQUIRE(window > 0 && longest > 0, "usage: mpi_exchange [WINDOW [LONGEST]]");
    unsigned char *out = room(longest * (size_t)window), *in = room(longest * (size_t)window);
    MPI_Request *requests = room(sizeof(*requests) * 2 * (size_t)window);

    for (size_t length = 1; length <= longest; length *= 4)
        exchange(out, in, requests, length, window);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("ok exchange of %d ranks, %d messages at a time\n", ranks, window);
    free(requests);
    free(out);
    free(in);
    MPI_Finalize();
    return 0;
}
