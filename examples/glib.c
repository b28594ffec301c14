/* Locks in a GLib main loop. Usage: glib [URL] */
#include "printer.h"

#include <glib-unix.h>

static GMainLoop *loop;

static gboolean on_outcome(gint fd, GIOCondition condition, gpointer data)
{
    (void)fd;
    (void)condition;
    if (printer_take(data))
        return G_SOURCE_CONTINUE;
    g_main_loop_quit(loop);
    return G_SOURCE_REMOVE;
}

int main(int argc, char **argv)
{
    printer p = {0};
    int status = printer_open(&p, argc > 1 ? argv[1] : NULL);

    if (status)
        return status;
    loop = g_main_loop_new(NULL, FALSE);
    g_unix_fd_add(dibs_fd(p.d), G_IO_IN, on_outcome, &p);
    g_main_loop_run(loop);
    g_main_loop_unref(loop);
    return printer_close(&p);
}
