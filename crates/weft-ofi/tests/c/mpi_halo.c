/* A heat equation on a grid in two dimensions: once with messages and once with
 * one-sided puts for the halo; the result is compared bit by bit with that of
 * one process.
 *   mpi_halo [SIDE] [STEPS] */
#include "mpi_common.h"

static int side_cells, steps;

static double start_value(int x, int y)
{
    return (double)((x * 37 + y * 91 + x * y) % 101);
}

static double next_value(double centre, double left, double right, double up, double down)
{
    return centre + 0.125 * (((left + right) + (up + down)) - 4.0 * centre);
}

/* The whole grid by one process, the edge held at 0. */
static double *alone(void)
{
    size_t width = (size_t)side_cells + 2;
    double *now = calloc(width * width, sizeof(double)), *then = calloc(width * width, sizeof(double));
    REQUIRE(now && then, "no memory");
    for (int y = 0; y < side_cells; y++)
        for (int x = 0; x < side_cells; x++)
            now[(size_t)(y + 1) * width + (size_t)x + 1] = start_value(x, y);
    for (int step = 0; step < steps; step++) {
        for (size_t y = 1; y <= (size_t)side_cells; y++)
            for (size_t x = 1; x <= (size_t)side_cells; x++) {
                size_t i = y * width + x;
                then[i] = next_value(now[i], now[i - 1], now[i + 1], now[i - width], now[i + width]);
            }
        double *swap = now;
        now = then;
        then = swap;
    }
    free(then);
    return now;
}

struct block {
    int x, y, columns, rows; /* without the halo */
    int neighbours[4];       /* left, right, up, down */
    MPI_Comm grid;
};

static void share(int total, int parts, int which, int *begin_at, int *count)
{
    *begin_at = (int)((long)total * which / parts);
    *count = (int)((long)total * (which + 1) / parts) - *begin_at;
}

static void exchange_messages(double *cells, size_t width, const struct block *block, MPI_Datatype column)
{
    double *first = cells + width + 1;
    double *last_row = cells + (size_t)block->rows * width + 1;
    MPI_Request requests[8];
    MPI_Irecv(first - 1, 1, column, block->neighbours[0], 1, block->grid, &requests[0]);
    MPI_Irecv(first + block->columns, 1, column, block->neighbours[1], 0, block->grid, &requests[1]);
    MPI_Irecv(first - width, block->columns, MPI_DOUBLE, block->neighbours[2], 3, block->grid, &requests[2]);
    MPI_Irecv(last_row + width, block->columns, MPI_DOUBLE, block->neighbours[3], 2, block->grid, &requests[3]);
    MPI_Isend(first, 1, column, block->neighbours[0], 0, block->grid, &requests[4]);
    MPI_Isend(first + block->columns - 1, 1, column, block->neighbours[1], 1, block->grid, &requests[5]);
    MPI_Isend(first, block->columns, MPI_DOUBLE, block->neighbours[2], 2, block->grid, &requests[6]);
    MPI_Isend(last_row, block->columns, MPI_DOUBLE, block->neighbours[3], 3, block->grid, &requests[7]);
    MPI_Waitall(8, requests, MPI_STATUSES_IGNORE);
}

/* Each neighbour's mailbox has four rows of `most` doubles, by the side from which it is written. */
static void exchange_puts(double *cells, size_t width, const struct block *block, MPI_Win window, double *mailbox, int most)
{
    static const int opposite[4] = { 1, 0, 3, 2 };
    double *edges[4];
    int counts[4] = { block->rows, block->rows, block->columns, block->columns };
    MPI_Win_fence(0, window);
    for (int side = 0; side < 4; side++) {
        edges[side] = room(sizeof(double) * (size_t)counts[side]);
        for (int i = 0; i < counts[side]; i++) {
            size_t y = side < 2 ? (size_t)i + 1 : side == 2 ? 1 : (size_t)block->rows;
            size_t x = side >= 2 ? (size_t)i + 1 : side == 0 ? 1 : (size_t)block->columns;
            edges[side][i] = cells[y * width + x];
        }
        if (block->neighbours[side] != MPI_PROC_NULL)
            MPI_Put(edges[side], counts[side], MPI_DOUBLE, block->neighbours[side], (MPI_Aint)opposite[side] * most, counts[side], MPI_DOUBLE, window);
    }
    MPI_Win_fence(0, window);
    for (int side = 0; side < 4; side++) {
        for (int i = 0; i < counts[side] && block->neighbours[side] != MPI_PROC_NULL; i++) {
            size_t y = side < 2 ? (size_t)i + 1 : side == 2 ? 0 : (size_t)block->rows + 1;
            size_t x = side >= 2 ? (size_t)i + 1 : side == 0 ? 0 : (size_t)block->columns + 1;
            cells[y * width + x] = mailbox[side * most + i];
        }
        free(edges[side]);
    }
}

static void together(const struct block *block, const double *expected, int with_puts)
{
    size_t width = (size_t)block->columns + 2, cells = width * ((size_t)block->rows + 2);
    double *now = calloc(cells, sizeof(double)), *then = calloc(cells, sizeof(double)), *mailbox = NULL;
    REQUIRE(now && then, "no memory");
    MPI_Datatype column;
    MPI_Type_vector(block->rows, 1, (int)width, MPI_DOUBLE, &column);
    MPI_Type_commit(&column);
    MPI_Win window = MPI_WIN_NULL;
    int most = side_cells;
    if (with_puts)
        MPI_Win_allocate((MPI_Aint)sizeof(double) * 4 * most, sizeof(double), MPI_INFO_NULL, block->grid, &mailbox, &window);
    for (int y = 0; y < block->rows; y++)
        for (int x = 0; x < block->columns; x++)
            now[(size_t)(y + 1) * width + (size_t)x + 1] = start_value(block->x + x, block->y + y);
    for (int step = 0; step < steps; step++) {
        if (with_puts)
            exchange_puts(now, width, block, window, mailbox, most);
        else
            exchange_messages(now, width, block, column);
        for (size_t y = 1; y <= (size_t)block->rows; y++)
            for (size_t x = 1; x <= (size_t)block->columns; x++) {
                size_t i = y * width + x;
                then[i] = next_value(now[i], now[i - 1], now[i + 1], now[i - width], now[i + width]);
            }
        double *swap = now;
        now = then;
        then = swap;
    }
    for (int y = 0; y < block->rows; y++)
        for (int x = 0; x < block->columns; x++) {
            double got = now[(size_t)(y + 1) * width + (size_t)x + 1];
            double wanted = expected[(size_t)(block->y + y + 1) * ((size_t)side_cells + 2) + (size_t)(block->x + x) + 1];
            REQUIRE(memcmp(&got, &wanted, sizeof(got)) == 0, "%s: cell %d,%d is %g, not %g", with_puts ? "puts" : "messages", block->x + x, block->y + y, got, wanted);
        }
    if (with_puts)
        MPI_Win_free(&window);
    MPI_Type_free(&column);
    free(now);
    free(then);
}

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    side_cells = argc > 1 ? atoi(argv[1]) : 200;
    steps = argc > 2 ? atoi(argv[2]) : 100;
    int dimensions[2] = { 0, 0 }, periods[2] = { 0, 0 }, place[2];
    struct block block;
    MPI_Dims_create(ranks, 2, dimensions);
    MPI_Cart_create(MPI_COMM_WORLD, 2, dimensions, periods, 0, &block.grid);
    MPI_Cart_coords(block.grid, rank, 2, place);
    share(side_cells, dimensions[0], place[0], &block.y, &block.rows);
    share(side_cells, dimensions[1], place[1], &block.x, &block.columns);
    MPI_Cart_shift(block.grid, 1, 1, &block.neighbours[0], &block.neighbours[1]);
    MPI_Cart_shift(block.grid, 0, 1, &block.neighbours[2], &block.neighbours[3]);
    double *expected = alone();
    together(&block, expected, 0);
    together(&block, expected, 1);
    free(expected);
    MPI_Comm_free(&block.grid);
    if (rank == 0)
        printf("ok halo exchange of %d ranks, %d x %d cells, %d steps, messages and puts\n", ranks, side_cells, side_cells, steps);
    MPI_Finalize();
    return 0;
}
