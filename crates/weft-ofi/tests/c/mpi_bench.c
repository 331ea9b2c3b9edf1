/* Latency and bandwidth between ranks 0 and 1, as medians of several runs.
 *   mpi_bench [RUNS]        prints lines: what bytes value unit */
#include "mpi_common.h"

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double latency_us(unsigned char *buffer, int bytes, int count)
{
    double from = 0;
    for (int i = -count / 10; i < count; i++) {
        if (i == 0)
            from = MPI_Wtime();
        if (rank == 0) {
            MPI_Send(buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        }
    }
    return (MPI_Wtime() - from) * 1e6 / count / 2;
}

enum { WINDOW = 64 };

/* Messages a second, in windows that are answered. */
static double rate(unsigned char *buffer, int bytes, int count)
{
    MPI_Request requests[WINDOW];
    double from = 0;
    char answer = 0;
    for (int i = -2; i < count; i++) {
        if (i == 0)
            from = MPI_Wtime();
        for (int j = 0; j < WINDOW; j++) {
            if (rank == 0)
                MPI_Isend(buffer, bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &requests[j]);
            else
                MPI_Irecv(buffer, bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[j]);
        }
        MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
        if (rank == 0)
            MPI_Recv(&answer, 1, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            MPI_Send(&answer, 1, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
    }
    return (double)count * WINDOW / (MPI_Wtime() - from);
}

int main(int argc, char **argv)
{
    static const int latency_bytes[] = { 1, 8, 64, 4096 }, bandwidth_bytes[] = { 4096, 65536, 1 << 20, 4 << 20 };
    begin(&argc, &argv);
    REQUIRE(ranks == 2, "two ranks are needed");
    int runs = argc > 1 ? atoi(argv[1]) : 5;
    unsigned char *buffer = room(4 << 20);
    double *values = room(sizeof(double) * (size_t)runs);
    memset(buffer, 1, 4 << 20);
    for (size_t i = 0; i < 4; i++) {
        for (int run = 0; run < runs; run++)
            values[run] = latency_us(buffer, latency_bytes[i], 5000);
        qsort(values, (size_t)runs, sizeof(double), compare);
        if (rank == 0)
            printf("latency %d %.2f us\n", latency_bytes[i], values[runs / 2]);
    }
    for (int run = 0; run < runs; run++)
        values[run] = rate(buffer, 8, 1000);
    qsort(values, (size_t)runs, sizeof(double), compare);
    if (rank == 0)
        printf("rate 8 %.3f million/s\n", values[runs / 2] * 1e-6);
    for (size_t i = 0; i < 4; i++) {
        int count = bandwidth_bytes[i] >= 1 << 20 ? 5 : 100;
        for (int run = 0; run < runs; run++)
            values[run] = rate(buffer, bandwidth_bytes[i], count) * bandwidth_bytes[i] * 1e-9;
        qsort(values, (size_t)runs, sizeof(double), compare);
        if (rank == 0)
            printf("bandwidth %d %.2f GB/s\n", bandwidth_bytes[i], values[runs / 2]);
    }
    free(values);
    free(buffer);
    MPI_Finalize();
    return 0;
}
