/* The first lines of an answer; see the header. */
#define _GNU_SOURCE
#include "http/answer.h"

#include <time.h>

static const char *reason_of(int status)
{
    static const struct {
        int status;
        const char *reason;
    } all[] = {{200, "OK"},
               {201, "Created"},
               {202, "Accepted"},
               {204, "No Content"},
               {304, "Not Modified"},
               {400, "Bad Request"},
               {401, "Unauthorized"},
               {403, "Forbidden"},
               {404, "Not Found"},
               {405, "Method Not Allowed"},
               {406, "Not Acceptable"},
               {408, "Request Timeout"},
               {409, "Conflict"},
               {410, "Gone"},
               {412, "Precondition Failed"},
               {413, "Content Too Large"},
               {415, "Unsupported Media Type"},
               {417, "Expectation Failed"},
               {421, "Misdirected Request"},
               {422, "Unprocessable Content"},
               {423, "Locked"},
               {428, "Precondition Required"},
               {429, "Too Many Requests"},
               {431, "Request Header Fields Too Large"},
               {500, "Internal Server Error"},
               {501, "Not Implemented"},
               {502, "Bad Gateway"},
               {503, "Service Unavailable"},
               {504, "Gateway Timeout"},
               {505, "HTTP Version Not Supported"},
               {507, "Insufficient Storage"}};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].status == status)
            return all[i].reason;
    return "";
}

void http_write_status(http_buffer *out, int status)
{
    static char date[64];
    static time_t of;
    time_t now = time(NULL);
    struct tm t;

    if (now != of) {
        strftime(date, sizeof date, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", gmtime_r(&now, &t));
        of = now;
    }
    http_buffer_text(out, "HTTP/1.1 ");
    http_buffer_number(out, (size_t)status);
    http_buffer_add(out, " ", 1);
    http_buffer_text(out, reason_of(status));
    http_buffer_add(out, "\r\n", 2);
    http_buffer_text(out, date);
}
