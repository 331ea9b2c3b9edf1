/* Many synchronous sends at once: each ends when its receive has been found,
 * which the receiver must tell, one short answer for each. Both ranks have all
 * of them under way, then wait for all.
 *   mpi_synchronous [MESSAGES [ROUNDS]] */
#include "mpi_common.h"

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    int messages = argc > 1 ? atoi(argv[1]) : 2000, rounds = argc > 2 ? atoi(argv[2]) : 5;
    REQUIRE(ranks == 2 && messages > 0, "two ranks, and one message at least");
    MPI_Request *requests = room(sizeof(*requests) * (size_t)messages);
    int32_t *values = room(sizeof(*values) * (size_t)messages);

    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < messages; i++) {
            values[i] = rank == 0 ? round * messages + i : -1;
            if (rank == 0)
                MPI_Issend(&values[i], 1, MPI_INT32_T, 1, round, MPI_COMM_WORLD, &requests[i]);
            else
                MPI_Irecv(&values[i], 1, MPI_INT32_T, 0, round, MPI_COMM_WORLD, &requests[i]);
        }
        MPI_Waitall(messages, requests, MPI_STATUSES_IGNORE);
        /* All have one tag: they are received in the order in which they were sent. */
        for (int i = 0; i < messages; i++)
            REQUIRE(values[i] == round * messages + i, "round %d: value %d is %d", round, i, values[i]);
    }
    if (rank == 0)
        printf("ok synchronous, %d rounds of %d\n", rounds, messages);
    free(requests);
    free(values);
    MPI_Finalize();
    return 0;
}
