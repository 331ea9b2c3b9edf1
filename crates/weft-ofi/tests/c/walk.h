/* The parts of the walk, one for each noun of the interface. */
#ifndef WEFT_TESTS_WALK_H
#define WEFT_TESTS_WALK_H
#include "common.h"

void walk_info(void);
void walk_fabric(void);
void walk_domain(void);
void walk_av(void);
void walk_cq(void);
void walk_cntr(void);
void walk_eq(void);
void walk_sets(void);
void walk_mr(void);
void walk_rdm(void);
void walk_message(void);
void walk_tagged(void);
void walk_multi_receive(void);
void walk_rma(void);
void walk_atomic(void);
void walk_counters(void);
void walk_dgram(void);
void walk_msg(void);
void walk_scalable(void);
void walk_shared(void);
void walk_late(void);
/* Messages of any length from one to the other, which tell no source. */
void walk_variable_messages(struct side *a, struct side *b);
void walk_trigger(void);
void walk_work(void);
void walk_full(void);
void walk_variable(void);
void walk_errors(void);
void walk_formats(void);
void walk_unknown_sources(void);
void walk_stale(void);
void walk_buffers(void);
void walk_regions(void);

#endif
