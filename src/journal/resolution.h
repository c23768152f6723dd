/*
 * resolution.h
 *		What becomes known of commands whose outcome is unknown.
 */
#ifndef RECONCILE_RESOLUTION_H
#define RECONCILE_RESOLUTION_H

#include "journal/command.h"

/* What the worker of a lapsed claim reports after all, beside the outcome; once for each report. */
extern void resolution_late_report(const Command *command, const Command *outcome);

#endif							/* RECONCILE_RESOLUTION_H */
