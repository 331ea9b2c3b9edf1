/* A ring: every rank passes messages of all sizes on to the next, verified.
 *   mpi_ring [ROUNDS] */
#include "mpi_common.h"

int main(int argc, char **argv)
{
    static const int lengths[] = { 0, 1, 7, 64, 1000, 4096, 16384, 65536, 1 << 20, 4 << 20 };
    begin(&argc, &argv);
    int rounds = argc > 1 ? atoi(argv[1]) : 20;
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    unsigned char *out = room(4 << 20), *in = room(4 << 20);

    for (int round = 0; round < rounds; round++) {
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            int length = lengths[i], got = -1;
            MPI_Status status;
            fill(out, (size_t)length, rank, next, round);
            memset(in, 0, (size_t)length);
            MPI_Sendrecv(out, length, MPI_BYTE, next, round, in, 4 << 20, MPI_BYTE, previous, round, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_BYTE, &got);
            REQUIRE(got == length && status.MPI_SOURCE == previous && status.MPI_TAG == round, "got %d bytes of %d from %d", got, length, status.MPI_SOURCE);
            verify(in, (size_t)length, previous, rank, round);
        }
    }
    /* A token goes once around; each rank adds its number. The probe finds it before its receive. */
    long token = 0;
    if (rank == 0) {
        MPI_Send(&token, 1, MPI_LONG, next, 9999, MPI_COMM_WORLD);
    }
    MPI_Status status;
    MPI_Probe(previous, 9999, MPI_COMM_WORLD, &status);
    MPI_Recv(&token, 1, MPI_LONG, previous, 9999, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    token += rank;
    if (rank != 0)
        MPI_Send(&token, 1, MPI_LONG, next, 9999, MPI_COMM_WORLD);
    else
        REQUIRE(token == (long)ranks * (ranks - 1) / 2, "the token is %ld", token);
    if (rank == 0)
        printf("ok ring of %d ranks, %d rounds\n", ranks, rounds);
    free(out);
    free(in);
    MPI_Finalize();
    return 0;
}
