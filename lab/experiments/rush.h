/* Many at the same moment: `processes` x `threads` run the same thing, let loose together. */
#ifndef DIBS_LAB_RUSH_H
#define DIBS_LAB_RUSH_H

/* Returns the sum of what they returned; `number` counts them from 0. A process that dies gives 0. */
int lab_rush(int processes, int threads, int (*run)(void *ctx, int number), void *ctx);

#endif
