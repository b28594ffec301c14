/* The page of a report, without its figures: made from report.html when dibs is built. */
#ifndef DIBS_LAB_REPORT_HTML_H
#define DIBS_LAB_REPORT_HTML_H

extern const char lab_report_html[];

#endif
