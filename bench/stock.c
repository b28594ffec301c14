/* The stock of scenario d: GET, then SET, each a round trip of its own. */
#include "bench.h"

#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>

struct bench_stock {
    redisContext *connection;
};

bench_stock *bench_stock_open(int port)
{
    bench_stock *stock = calloc(1, sizeof *stock);

    if (!stock)
        return NULL;
    stock->connection = redisConnect("127.0.0.1", port);
    if (!stock->connection || stock->connection->err) {
        fprintf(stderr, "bench: no stock server on port %d\n", port);
        bench_stock_close(stock);
        return NULL;
    }
    return stock;
}

long bench_stock_read(bench_stock *stock)
{
    redisReply *reply = redisCommand(stock->connection, "GET stock");
    long value = reply && reply->type == REDIS_REPLY_STRING ? strtol(reply->str, NULL, 10) : -1;

    freeReplyObject(reply);
    return value;
}

bool bench_stock_write(bench_stock *stock, long value)
{
    redisReply *reply = redisCommand(stock->connection, "SET stock %ld", value);
    bool written = reply && reply->type == REDIS_REPLY_STATUS;

    freeReplyObject(reply);
    return written;
}

void bench_stock_close(bench_stock *stock)
{
    if (stock && stock->connection)
        redisFree(stock->connection);
    free(stock);
}
