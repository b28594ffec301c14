/* Locks in a libuv loop. Usage: libuv [URL] */
#include "printer.h"

#include <uv.h>

static void on_outcome(uv_poll_t *watch, int status, int events)
{
    (void)status;
    (void)events;
    if (!printer_take(watch->data))
        uv_poll_stop(watch); /* nothing is left: uv_run returns */
}

int main(int argc, char **argv)
{
    printer p = {0};
    uv_poll_t watch = {.data = &p};
    int status = printer_open(&p, argc > 1 ? argv[1] : NULL);

    if (status)
        return status;
    uv_poll_init(uv_default_loop(), &watch, dibs_fd(p.d));
    uv_poll_start(&watch, UV_READABLE, on_outcome);
    uv_run(uv_default_loop(), UV_RUN_DEFAULT);
    uv_close((uv_handle_t *)&watch, NULL);
    uv_run(uv_default_loop(), UV_RUN_DEFAULT);
    uv_loop_close(uv_default_loop());
    return printer_close(&p);
}
