/* DIBS_MUTANT=N selects a mutant. DIBS_MUTANT_SEEN=FILE collects the marks of this process and of its children:
 * a file of DIBS__MUTANTS bytes, mapped shared. */
#include "mutant.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static unsigned char own_marks[DIBS__MUTANTS];

int dibs__mutant;
unsigned char *dibs__mutant_seen = own_marks;

__attribute__((constructor)) static void select_mutant(void)
{
    const char *number = getenv("DIBS_MUTANT"), *path = getenv("DIBS_MUTANT_SEEN");
    int fd = path ? open(path, O_RDWR) : -1;
    void *marks =
        fd < 0 ? MAP_FAILED : mmap(NULL, DIBS__MUTANTS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    dibs__mutant = number ? atoi(number) : 0;
    if (marks != MAP_FAILED)
        dibs__mutant_seen = marks;
    if (fd >= 0)
        syscall(SYS_close, fd); /* the simulation has a close of its own */
}
