/* Processes that are started by others: the first ranks spawn as many again, every one of which talks to every one of its
 * parents through the intercommunicator, and then all of them as one communicator. Addresses of peers come late here, and
 * messages may come from a process before its address has been inserted.
 *   mpi_spawn [ROUNDS] */
#include "mpi_common.h"

#define LENGTH 100000

/* Every rank of this side exchanges messages with every rank of the other. */
static void talk(MPI_Comm other, int round)
{
    static const int lengths[] = { 0, 8, 5000, LENGTH };
    int others;
    MPI_Comm_remote_size(other, &others);
    unsigned char *out = room(LENGTH), *in = room(LENGTH);
    for (int step = 0; step < others; step++) {
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            int length = lengths[i], got = -1;
            int to = (rank + step) % others, from = (rank - step % others + others) % others;
            MPI_Request request;
            MPI_Status status;
            fill(out, (size_t)length, rank, to, round);
            memset(in, 0, LENGTH);
            MPI_Irecv(in, LENGTH, MPI_BYTE, MPI_ANY_SOURCE, step * 10 + (int)i, other, &request);
            MPI_Send(out, length, MPI_BYTE, to, step * 10 + (int)i, other);
            MPI_Wait(&request, &status);
            MPI_Get_count(&status, MPI_BYTE, &got);
            REQUIRE(got == length && status.MPI_SOURCE == from, "got %d bytes of %d from %d, not %d", got, length, status.MPI_SOURCE, from);
            verify(in, (size_t)length, from, rank, round);
        }
    }
    free(out);
    free(in);
}

/* Both sides as one communicator. */
static void merge(MPI_Comm other, int high)
{
    MPI_Comm all;
    int place, size;
    long sum = 0;
    MPI_Intercomm_merge(other, high, &all);
    MPI_Comm_rank(all, &place);
    MPI_Comm_size(all, &size);
    REQUIRE(size == 2 * ranks, "%d in all", size);
    long mine = place;
    MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, all);
    REQUIRE(sum == (long)size * (size - 1) / 2, "the sum is %ld", sum);
    MPI_Comm_free(&all);
}

int main(int argc, char **argv)
{
    MPI_Comm other;
    begin(&argc, &argv);
    MPI_Comm_get_parent(&other);
    if (other != MPI_COMM_NULL) {
        talk(other, 0);
        merge(other, 1);
        MPI_Comm_disconnect(&other);
        MPI_Finalize();
        return 0;
    }
    int rounds = argc > 1 ? atoi(argv[1]) : 1;
    for (int round = 0; round < rounds; round++) {
        int *errors = room((size_t)ranks * sizeof(int));
        MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, ranks, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &other, errors);
        for (int i = 0; rank == 0 && i < ranks; i++)
            REQUIRE(errors[i] == MPI_SUCCESS, "process %d was not started: %d", i, errors[i]);
        free(errors);
        talk(other, 0);
        merge(other, 0);
        MPI_Comm_disconnect(&other);
    }
    if (rank == 0)
        printf("ok spawn of %d by %d ranks\n", ranks, ranks);
    MPI_Finalize();
    return 0;
}
