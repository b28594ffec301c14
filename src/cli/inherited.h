/* Which descriptors the command gets: those that dibs itself was given, and nothing that was opened since.
 *
 * Client libraries open sockets and pipes without asking that they be closed by exec, and another thread may
 * be connecting at the very moment of the fork. So what was there at the start is noted, and everything else
 * is closed by exec. */
#ifndef DIBS_CLI_INHERITED_H
#define DIBS_CLI_INHERITED_H

/* At the start of main, before anything is opened. */
void cli_inherited_note(void);
/* In the child, before exec; async-signal-safe. */
void cli_inherited_only(void);

#endif
