/*-------------------------------------------------------------------------
 *
 * hash.c
 *		Hash tables in memory of our own.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "base/base.h"

/*
 * Make a hash table that is freed with context.  flags say what the keys are:
 * HASH_STRINGS or HASH_BLOBS.  It begins small, and grows: some are walked at
 * the end of every transaction, empty places too.
 */
HTAB *
le_hash_make(const char *name, Size keysize, Size entrysize, int flags,
			 MemoryContext context)
{
	HASHCTL		info;

	memset(&info, 0, sizeof(info));
	info.keysize = keysize;
	info.entrysize = entrysize;
	info.hcxt = context;
	return hash_create(name, 8, &info, HASH_ELEM | HASH_CONTEXT | flags);
}
