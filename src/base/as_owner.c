/*-------------------------------------------------------------------------
 *
 * as_owner.c
 *		Running what others have attached to our tables, as the table's owner.
 *
 * Expressions and predicates of indexes, CHECK constraints and generated columns
 * cannot be written without (row.c).  They are evaluated in a security-restricted
 * operation, with a search_path of its own.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/base.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/rel.h"

static void
say_what_is_written(void *arg)
{
	errcontext("write of table \"%s.%s\"", LE_SCHEMA, (const char *) arg);
}

/*
 * Refuse a call while what others have attached to our tables runs: the write
 * that runs it is in the middle of a call, or of the worker's step.  After an
 * error, PostgreSQL restores the stack.
 */
void
le_as_owner_check_none(void)
{
	ErrorContextCallback *c;

	for (c = error_context_stack; c != NULL; c = c->previous)
	{
		if (c->callback == say_what_is_written)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("cannot look at elections while the extension writes a table")));
	}
}

/*
 * Run what is attached to a table with its owner's rights.  A setting that it
 * changes is restored, even where it succeeds.
 */
void
le_as_owner_begin(AsOwner *former, Relation rel)
{
	former->callback.callback = say_what_is_written;
	former->callback.arg = RelationGetRelationName(rel);
	former->callback.previous = error_context_stack;
	error_context_stack = &former->callback;
	GetUserIdAndSecContext(&former->user, &former->context);
	SetUserIdAndSecContext(rel->rd_rel->relowner,
						   former->context | SECURITY_RESTRICTED_OPERATION);
	former->nest_level = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog, pg_temp",
							 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
							 true, 0, false);
}

void
le_as_owner_end(const AsOwner *former)
{
	AtEOXact_GUC(false, former->nest_level);
	SetUserIdAndSecContext(former->user, former->context);
	error_context_stack = former->callback.previous;
}
