/*
 * keep.h
 *		What is over does not change: rows of commands at their end, and of the audit.
 */
#ifndef RECONCILE_KEEP_H
#define RECONCILE_KEEP_H

/* From the one to the other this session may delete them: for prune_commands() alone. */
extern void keep_open(void);
extern void keep_close(void);

#endif							/* RECONCILE_KEEP_H */
