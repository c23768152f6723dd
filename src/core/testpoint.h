/*
 * testpoint.h
 *		Places at which a test can hold a process.
 *
 * TEST_POINT("name") is nothing in the library that is shipped.  In the one
 * that is built with RECONCILE_TESTPOINTS (make TESTPOINTS=1) a process that
 * comes by stops while a test asks for it: see testpoint.c.
 */
#ifndef RECONCILE_TESTPOINT_H
#define RECONCILE_TESTPOINT_H

#ifdef RECONCILE_TESTPOINTS
extern PGDLLEXPORT void reconcile_test_point(const char *name);
extern void test_points_init(void);

#define TEST_POINT(name) reconcile_test_point(name)
#define TEST_POINTS_INIT() test_points_init()
#else
#define TEST_POINT(name) ((void) 0)
#define TEST_POINTS_INIT() ((void) 0)
#endif

#endif							/* RECONCILE_TESTPOINT_H */
