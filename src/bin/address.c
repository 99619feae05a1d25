/*-------------------------------------------------------------------------
 *
 * address.c
 *		An address to listen on, as the user writes it.
 *
 * Invariant: no other machine reaches what we listen on unless the user has
 * written an address that says so.  A port alone means loopback.
 *
 *-------------------------------------------------------------------------
 */
#include "pg_leader.h"

#include <arpa/inet.h>
#include <netinet/in.h>

/*
 * Read a port: 1 to 65535, digits only.
 */
static bool
parse_port(const char *text, in_port_t *port)
{
	int			length = strlen(text);
	int			number = 0;

	if (length <= 5 && strspn(text, "0123456789") == length)
		number = atoi(text);
	*port = htons(number);
	return number >= 1 && number <= 65535;
}

/*
 * Read PORT, :PORT, IPV4:PORT, [IPV6]:PORT or localhost:PORT.  Return false if
 * the text is something else.  Other names are refused: a name server may
 * answer with any address.
 */
bool
address_parse(const char *text, Address *address)
{
	const char *colon = strrchr(text, ':');
	int			length = colon == NULL ? 0 : (int) (colon - text);
	bool		is_v6 = length > 2 && text[0] == '[' && colon[-1] == ']';
	char		host[INET6_ADDRSTRLEN];

	memset(address, 0, sizeof(Address));
	if (is_v6)
	{
		text++;
		length -= 2;
	}
	if (length >= (int) sizeof(host))
		return false;
	strlcpy(host, text, length + 1);
	if (length == 0 || strcmp(host, "localhost") == 0)
		strlcpy(host, "127.0.0.1", sizeof(host));
	if (colon == NULL)
		colon = text - 1;
	if (is_v6)
	{
		address->any.sa_family = AF_INET6;
		return inet_pton(AF_INET6, host, &address->v6.sin6_addr) == 1 &&
			parse_port(colon + 1, &address->v6.sin6_port);
	}
	address->any.sa_family = AF_INET;
	return inet_pton(AF_INET, host, &address->v4.sin_addr) == 1 &&
		parse_port(colon + 1, &address->v4.sin_port);
}

/*
 * Write an address as address_parse() reads it.
 */
char *
address_format(const Address *address)
{
	char		host[INET6_ADDRSTRLEN] = "";
	bool		is_v6 = address->any.sa_family == AF_INET6;

	if (is_v6)
		(void) inet_ntop(AF_INET6, &address->v6.sin6_addr, host, sizeof(host));
	else
		(void) inet_ntop(AF_INET, &address->v4.sin_addr, host, sizeof(host));
	return psprintf(is_v6 ? "[%s]:%d" : "%s:%d", host,
					ntohs(is_v6 ? address->v6.sin6_port : address->v4.sin_port));
}
