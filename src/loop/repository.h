/*
 * repository.h
 *		The function of a loop that takes its fenced writes.
 */
#ifndef RECONCILE_REPOSITORY_H
#define RECONCILE_REPOSITORY_H

/* Tells the fence room where such writes go; once, from _PG_init(). */
extern void repository_init(void);

#endif							/* RECONCILE_REPOSITORY_H */
