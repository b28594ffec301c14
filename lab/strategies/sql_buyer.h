/* What the SQL schemes share: a buyer is one connection, and a strategy has a twin on each database. */
#ifndef DIBS_LAB_SQL_BUYER_H
#define DIBS_LAB_SQL_BUYER_H

#include "lab/raw.h"
#include "strategies.h"

bool lab_sql_buyer_open(lab_buyer *buyer); /* buyer->own is a lab_sql on the strategy's database */
void lab_sql_buyer_close(lab_buyer *buyer);

/* Read, check and write on the buyer's own connection, as lab_sell does on the books'. */
lab_sale lab_sql_sell(lab_buyer *buyer);

/* The same on both databases: the rest of the fields follow. */
#define LAB_TWINS(symbol, row, word, text, ...)                                  \
    const lab_strategy symbol##_mariadb = {.id = row,                            \
                                           .name = word "-mariadb",              \
                                           .title = text " (MariaDB)",           \
                                           .stock = LAB_MARIADB,                 \
                                           .needs = LAB_NEED(LAB_MARIADB),       \
                                           __VA_ARGS__};                         \
    const lab_strategy symbol##_postgresql = {.id = row,                         \
                                              .name = word "-postgresql",        \
                                              .title = text " (PostgreSQL)",     \
                                              .stock = LAB_POSTGRESQL,           \
                                              .needs = LAB_NEED(LAB_POSTGRESQL), \
                                              __VA_ARGS__}

#endif
