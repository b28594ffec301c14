/* A seat: one buyer with its connections, and the purchase that all locks share. */
#include "lab.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

bool lab_note(lab_seat *seat, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    vsnprintf(seat->note, sizeof seat->note, format, list);
    va_end(list);
    seat->note[strcspn(seat->note, "\n")] = '\0'; /* one line: libraries like to say more */
    return false;
}

int64_t lab_now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t lab_until(const lab_seat *seat)
{
    if (seat->pace.wait_ms == 0)
        return INT64_MAX;
    return lab_now_us() + (seat->pace.wait_ms > 0 ? seat->pace.wait_ms * 1000 : 0);
}

bool lab_seat_open(lab_seat *seat)
{
    seat->note[0] = '\0';
    if (!lab_stock_open(seat))
        return false;
    if (!seat->strategy->open || seat->strategy->open(seat))
        return true;
    lab_stock_close(seat);
    return false;
}

void lab_seat_close(lab_seat *seat)
{
    if (seat->strategy->close)
        seat->strategy->close(seat);
    lab_stock_close(seat);
}

lab_sale lab_sell(lab_seat *seat)
{
    int64_t stock;

    if (!lab_stock_read(seat, &stock))
        return LAB_FAILED;
    if (stock < 1)
        return LAB_SOLD_OUT;
    if (seat->pace.work_us > 0)
        usleep((useconds_t)seat->pace.work_us);
    lab_point(seat, "between read and write");
    return lab_stock_write(seat, stock - 1) ? LAB_SOLD : LAB_FAILED;
}

lab_sale lab_buy(lab_seat *seat)
{
    lab_sale sale;

    seat->note[0] = '\0';
    if (seat->strategy->buy)
        return seat->strategy->buy(seat);
    if (!seat->strategy->lock(seat))
        return seat->note[0] ? LAB_FAILED : LAB_REFUSED;
    sale = seat->strategy->sell ? seat->strategy->sell(seat) : lab_sell(seat);
    seat->strategy->unlock(seat);
    return sale;
}
