/* What answers contain, for /openapi.json. */
#include "serve/serve.h"

static const http_member problem[] = {
    {"type", "string", "A URN of the code.", false},
    {"title", "string", NULL, false},
    {"status", "integer", "The HTTP status.", false},
    {"detail", "string", "What happened, to what, what to do.", true},
    {"code", "string", "The name of the library's status.", false},
    {"next", "string", "What to do: none, repeat, later, restart or inspect.", false},
    {"retry_after_ms", "integer", NULL, true},
    {"fence", "integer", "Of the holder, or the floor of the resource.", true},
    {"owner", "string", "Of the holder.", true},
    {"host", "string", NULL, true},
    {"pid", "integer", NULL, true},
    {"engine_code", "string", "The engine's own code.", true},
    {"server", "string", "421: the address to ask.", true},
    {0},
};
static const http_member fenced[] = {
    {"name", "string", NULL, false},
    {"fence", "integer", NULL, false},
    {"floor", "integer", NULL, false},
    {"fence_text", "string", "Both, for a header or a column.", false},
    {0},
};
static const http_member grant[] = {
    {"grant", "string", "A secret: renews and releases the locks.", false},
    {"request", "string", "The id of the request, to send it again.", true},
    {"fence", "integer", "The fencing token of the first lock.", false},
    {"lease_ms", "integer", NULL, false},
    {"remaining_ms", "integer", "What is left of the lease.", false},
    {"locks", "Fenced[]", NULL, false},
    {0},
};
static const http_member queued[] = {
    {"request", "string", "Send the request again with this id ...", false},
    {"wait_ms", "integer", "... and this wait_ms ...", false},
    {"kept_ms", "integer", "... within this time.", false},
    {0},
};
static const http_member released[] = {{"released", "boolean", NULL, false}, {0}};
static const http_member done[] = {{"done", "boolean", NULL, false}, {0}};

#define PARTY                                                                          \
    {"owner", "string?", NULL, false}, {"owner_hex", "string", NULL, true},            \
        {"host", "string?", NULL, false}, {"host_hex", "string", NULL, true},          \
        {"pid", "integer", NULL, false}, {"since_ms", "integer", "Unix time.", false}, \
    {                                                                                  \
        "left_ms", "integer", NULL, false                                              \
    }

static const http_member runner[] = {PARTY, {0}};
static const http_member waiter[] = {
    PARTY, {"weight", "integer", NULL, false}, {"shared", "boolean", NULL, false}, {0}};
static const http_member holder[] = {PARTY,
                                     {"weight", "integer", NULL, false},
                                     {"shared", "boolean", NULL, false},
                                     {"fence", "integer", NULL, false},
                                     {"released", "boolean", NULL, false},
                                     {"breaking", "boolean", NULL, false},
                                     {0}};
static const http_member lock[] = {
    {"name", "string", "Bytes that are no UTF-8 are escaped.", false},
    {"name_hex", "string", "The exact bytes, if they are no UTF-8.", true},
    {"slots", "integer", "Of a semaphore; 0: a plain lock.", false},
    {"used", "integer", NULL, false},
    {"fence", "integer?", "The highest one given out.", false},
    {"holders", "Holder[]", NULL, false},
    {"waiter_count", "integer", NULL, false},
    {"waiters", "Waiter[]", "In the order of the queue.", true},
    {"notes", "string[]", NULL, true},
    {"broken_by", "string?", NULL, false},
    {"broken_by_hex", "string", NULL, true},
    {"broken_at_ms", "integer", NULL, true},
    {0},
};
static const http_member locks[] = {{"locks", "Lock[]", NULL, false}, {0}};
static const http_member step[] = {{"name", "string", NULL, false},
                                   {"name_hex", "string", NULL, true},
                                   {"data", "string?", NULL, false},
                                   {"data_hex", "string", NULL, true},
                                   {0}};
static const http_member key[] = {
    {"scope", "string?", NULL, false},        {"scope_hex", "string", NULL, true},
    {"key", "string?", NULL, false},          {"key_hex", "string", NULL, true},
    {"state", "string", NULL, false},         {"version", "integer", NULL, false},
    {"runs", "integer", NULL, false},         {"fence", "integer?", NULL, false},
    {"runner", "Runner?", NULL, false},       {"decided_by", "string?", NULL, false},
    {"decided_by_hex", "string", NULL, true}, {"left_ms", "integer?", NULL, false},
    {"code", "integer", NULL, false},         {"result_size", "integer", NULL, false},
    {"step_count", "integer", NULL, false},   {"damage", "string?", NULL, false},
    {"steps", "Step[]", NULL, true},          {"result", "string?", NULL, true},
    {"result_hex", "string", NULL, true},     {0},
};
static const http_member keys[] = {
    {"keys", "Key[]", NULL, false}, {"next", "string?", "`after` of the next page.", false}, {0}};
static const http_member begun[] = {
    {"state", "string", "running (the caller does the work), done or failed.", false},
    {"run", "string", "A secret: ends the run.", true},
    {"request", "string", NULL, true},
    {"fence", "integer", NULL, true},
    {"again", "boolean", "An earlier runner died.", true},
    {"lease_ms", "integer", NULL, true},
    {"result", "string?", NULL, true},
    {"result_hex", "string", NULL, true},
    {"code", "integer", NULL, true},
    {0},
};
static const http_member run[] = {
    {"state", "string", "running or ended.", false}, {"remaining_ms", "integer", NULL, true}, {0}};
static const http_member token[] = {{"token", "string", NULL, false}, {0}};
static const http_member redeemed[] = {{"redeemed", "boolean", NULL, false}, {0}};
static const http_member counter[] = {
    {"value", "integer", NULL, false},
    {"repeated", "boolean", "This request was counted before.", false},
    {0}};
static const http_member repeated[] = {{"repeated", "boolean", NULL, false}, {0}};
static const http_member health[] = {{"ok", "boolean", NULL, false}, {0}};
static const http_member about[] = {
    {"version", "string", NULL, false},
    {"engine", "string", NULL, false},
    {"address", "string", NULL, false},
    {"portable", "boolean", "Grants are good at every server.", false},
    {"shared", "boolean", NULL, false},
    {"slots", "boolean", NULL, false},
    {"value_max", "integer", NULL, false},
    {"lease_ms", "integer", "Of locks that say nothing else.", false},
    {"connections", "integer", NULL, false},
    {0},
};

const http_schema serve_schemas[] = {{"Problem", problem},
                                     {"Fenced", fenced},
                                     {"Grant", grant},
                                     {"Queued", queued},
                                     {"Released", released},
                                     {"Done", done},
                                     {"Runner", runner},
                                     {"Waiter", waiter},
                                     {"Holder", holder},
                                     {"Lock", lock},
                                     {"Locks", locks},
                                     {"Step", step},
                                     {"Key", key},
                                     {"Keys", keys},
                                     {"Begun", begun},
                                     {"Run", run},
                                     {"Token", token},
                                     {"Redeemed", redeemed},
                                     {"Counter", counter},
                                     {"Repeated", repeated},
                                     {"Health", health},
                                     {"About", about},
                                     {0}};
