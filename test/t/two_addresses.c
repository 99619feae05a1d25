/*-------------------------------------------------------------------------
 *
 * two_addresses.c
 *		For the tests: a library that is loaded into pg_leader before all others.
 *		To it, the host db.test has the addresses 127.0.0.1 and 127.0.0.2, in
 *		this order.
 *
 *-------------------------------------------------------------------------
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>

int
getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
			struct addrinfo **list)
{
	int			(*real) (const char *, const char *, const struct addrinfo *,
						 struct addrinfo **) = dlsym(RTLD_NEXT, "getaddrinfo");
	int			error;

	if (node == NULL || strcmp(node, "db.test") != 0)
		return real(node, service, hints, list);
	error = real("127.0.0.1", service, hints, list);
	if (error != 0)
		return error;
	/* glibc frees each element of a list by itself. */
	return real("127.0.0.2", service, hints, &(*list)->ai_next);
}
