/*
 * tree_ddl.h
 *		What a statement did to partition trees, and to the names of columns.
 *
 * For event triggers at the end of a command, each of which asks for its own
 * room what to do.  It looks at the parse tree and at nothing else before it has
 * found something.
 */
#ifndef RECONCILE_TREE_DDL_H
#define RECONCILE_TREE_DDL_H

#include "nodes/nodes.h"

typedef struct TreeFollower
{
	/* a table was made as a partition or a child, attached, detached, or made to inherit */
	void		(*moved) (Oid relation);
	/* tables come to inherit, in the old way, from this one */
	void		(*inherited) (Oid parent);
	/* a column of this table, or of the tree that it is in, has another name */
	void		(*renamed) (Oid relation, const char *from, const char *to);
} TreeFollower;

/* Could the statement concern a follower?  From the parse tree alone. */
extern bool tree_ddl_concerns(Node *statement);

/* Tells the follower of all that the statement did.  Names are looked up by the search path. */
extern void tree_ddl_follow(Node *statement, const TreeFollower *follower);

#endif							/* RECONCILE_TREE_DDL_H */
