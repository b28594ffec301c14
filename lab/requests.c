/* What the servers have counted: commands on Redis, statements on MariaDB and PostgreSQL (there only
 * with pg_stat_statements), packets on ZooKeeper, calls on etcd. */
#include "raw.h"

#include <hiredis/hiredis.h>
#include <stdlib.h>
#include <string.h>

static int64_t of_redis(lab_buyer *buyer)
{
    redisContext *r = lab_redis_open(buyer, buyer->site->url[LAB_REDIS]);
    redisReply *reply = r ? lab_redis_reply(buyer, r, "INFO stats") : NULL;
    const char *found = reply ? strstr(reply->str, "total_commands_processed:") : NULL;
    int64_t count = found ? strtoll(strchr(found, ':') + 1, NULL, 10) : -1;

    if (reply)
        freeReplyObject(reply);
    if (r)
        redisFree(r);
    return count;
}

static int64_t of_sql(lab_buyer *buyer, lab_server server)
{
    lab_sql *sql = lab_sql_open(buyer, server);
    int64_t count[2] = {-1, -1};
    int found = 0;

    if (sql && server == LAB_MARIADB)
        found = lab_sql_read(buyer, sql, count, 2, "SHOW GLOBAL STATUS LIKE 'Questions'");
    else if (sql)
        found = lab_sql_read(buyer, sql, count + 1, 1, "SELECT sum(calls) FROM pg_stat_statements");
    lab_sql_close(sql);
    return found > 0 ? count[1] : -1;
}

int64_t lab_requests(const lab_site *site, unsigned needs)
{
    lab_buyer buyer = {.site = site};
    int64_t sum = 0, one = -1;

    for (int i = 0; i < LAB_SERVERS; i++) {
        if (!(needs & LAB_NEED(i)))
            continue;
        one = i == LAB_REDIS                            ? of_redis(&buyer)
              : i == LAB_MARIADB || i == LAB_POSTGRESQL ? of_sql(&buyer, (lab_server)i)
                                                        : -1;
        if (one < 0)
            return -1;
        sum += one;
    }
    return sum;
}
