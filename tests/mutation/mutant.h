/* Goes into every source file that tests/mutation/mutate.py instruments. One build has all mutants; the environment
 * selects one at run time (mutant.c), and each evaluated site leaves a mark. */
#ifndef DIBS_MUTANT_H
#define DIBS_MUTANT_H

extern int dibs__mutant; /* the selected one; 0: none */
extern unsigned char *dibs__mutant_seen;

#define DIBS__MUTANT(n) (dibs__mutant_seen[n] = 1, dibs__mutant == (n))

#endif
