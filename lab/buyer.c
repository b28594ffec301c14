/* A buyer: one buyer with its connections, and the purchase that all locks share. */
#include "lab.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

bool lab_note(lab_buyer *buyer, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    vsnprintf(buyer->note, sizeof buyer->note, format, list);
    va_end(list);
    buyer->note[strcspn(buyer->note, "\n")] = '\0'; /* one line: libraries like to say more */
    return false;
}

int64_t lab_now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t lab_until(const lab_buyer *buyer)
{
    if (buyer->pace.wait_ms == 0)
        return INT64_MAX;
    return lab_now_us() + (buyer->pace.wait_ms > 0 ? buyer->pace.wait_ms * 1000 : 0);
}

bool lab_buyer_open(lab_buyer *buyer)
{
    buyer->note[0] = '\0';
    if (!lab_stock_open(buyer))
        return false;
    if (!buyer->strategy->open || buyer->strategy->open(buyer))
        return true;
    lab_stock_close(buyer);
    return false;
}

void lab_buyer_close(lab_buyer *buyer)
{
    if (buyer->strategy->close)
        buyer->strategy->close(buyer);
    lab_stock_close(buyer);
}

lab_sale lab_sell(lab_buyer *buyer)
{
    int64_t stock;

    if (!lab_stock_read(buyer, &stock))
        return LAB_FAILED;
    if (stock < 1)
        return LAB_SOLD_OUT;
    if (buyer->pace.work_us > 0)
        usleep((useconds_t)buyer->pace.work_us);
    lab_point(buyer, "between read and write");
    return lab_stock_write(buyer, stock - 1) ? LAB_SOLD : LAB_FAILED;
}

lab_sale lab_buy(lab_buyer *buyer)
{
    lab_sale sale;

    buyer->note[0] = '\0';
    if (buyer->strategy->buy)
        return buyer->strategy->buy(buyer);
    if (!buyer->strategy->lock(buyer))
        return buyer->note[0] ? LAB_FAILED : LAB_REFUSED;
    sale = buyer->strategy->sell ? buyer->strategy->sell(buyer) : lab_sell(buyer);
    buyer->strategy->unlock(buyer);
    return sale;
}
